"""The mean, quantiles at any probabilities, and samples of the predictive distribution at new cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.linear import check_own_networks
from rayfbnn.draws.outputs import activation_bytes, posterior_of
from rayfbnn.errors import ConfigError
from rayfbnn.model.prior import noise_precisions
from rayfbnn.reduce.executors import InProcess
from rayfbnn.reduce.predictive import summaries
from rayfbnn.reduce.summary import Cases, Summary, joined, quantiles_of_points
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_BLOCK_BYTES = 64e6


def predictive_mean(run: Draws, inputs: Array, *, memory_bytes: float = 256e6) -> Array:
    """Return the mean of each target over all draws, (n_cases, n_targets), on the scale of the data file.

    For labels it is the probability of each label, (n_cases, n_labels). For a target that has no mean, on a
    log scale with t noise, it is the median.

    inputs  (n_cases, n_inputs) as in the data file
    """
    summary = _summary(run, inputs, quantiles_of_points(run), memory_bytes)
    return (
        summary.mean if run.spec.data_model.has_labels else summary.in_file_units(run.data.target_units).point
    )


def predictive_quantiles(
    run: Draws, inputs: Array, probabilities: Sequence[float], *, memory_bytes: float = 256e6
) -> Array:
    """Return quantiles of each target's predictive distribution, (n_probabilities, n_cases, n_targets).

    The distribution is the equally weighted mixture over all draws, noise included, on the scale of the data
    file.

    inputs         (n_cases, n_inputs) as in the data file
    probabilities  strictly between 0 and 1; ConfigError for any other
    """
    model, units = run.spec.data_model, run.data.target_units
    for probability in probabilities:
        if not 0 < probability < 1:
            raise ConfigError(f"quantiles: must lie between 0 and 1, such as 0.9, got {probability}")
    if model.has_labels:
        raise ConfigError(
            f"quantiles: {model.kind} targets are labels and have no quantiles; ask for probabilities"
        )
    wanted = {str(number): probability for number, probability in enumerate(probabilities)}
    found = _summary(run, inputs, wanted, memory_bytes).in_file_units(units).quantiles
    return np.stack([found[name] for name in wanted])


def predictive_sample(run: Draws, inputs: Array, n_samples: int, *, seed: int) -> Array:
    """Draw targets from the predictive distribution, (n_samples, n_cases, n_targets) as in the data file.

    Each sample takes one draw of the posterior at random, with replacement, for all cases, and adds noise. It
    depends only on the seed, the draws, and the number of the sample.

    inputs  (n_cases, n_inputs) as in the data file
    """
    check_own_networks(run)
    model, data, posterior = run.spec.data_model, run.data, posterior_of(run)
    chosen = np.random.default_rng(seed).integers(run.total, size=n_samples)
    positions = run.positions().reshape(-1, posterior.n_parameters)[chosen]
    precisions = run.precisions().reshape(-1, run.precision_layout.n_precisions)[chosen]
    noise = noise_precisions(precisions, run.precision_layout)
    cells = model.cell_inputs(_standardized(run, inputs))
    samples = np.empty((n_samples, len(inputs), data.n_targets))
    at_once = max(1, int(_BLOCK_BYTES / (activation_bytes(run.spec.network, "float64") * len(cells))))
    for first in range(0, n_samples, at_once):
        some = slice(first, min(first + at_once, n_samples))
        outputs = posterior.outputs(np.ascontiguousarray(positions[some], posterior.dtype), cells)
        by_unit = outputs.astype(np.float64).swapaxes(1, 2)
        streams = Streams(seed, np.arange(some.start, some.stop, dtype=np.uint64)).at(iteration=1)
        samples[some] = model.draw(by_unit, noise[some], streams).swapaxes(1, 2)
    return data.target_units.to_file(samples)


def _summary(run: Draws, inputs: Array, quantiles: dict[str, float], memory_bytes: float) -> Summary:
    return joined(
        summaries(
            [run],
            Cases(_standardized(run, inputs)),
            executor=InProcess(),
            quantiles=quantiles,
            with_modes=False,
            memory_bytes=memory_bytes,
        )
    )


def _standardized(run: Draws, inputs: Array) -> Array:
    return run.data.standardized(np.asarray(inputs, dtype=np.float64))
