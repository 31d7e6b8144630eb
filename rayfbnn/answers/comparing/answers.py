"""The answers of a run's draws at some cases: probabilities of labels, or functions and densities."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes, output_blocks
from rayfbnn.model.prior import noise_precisions

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_SMALLEST = 1e-12  # probability; smaller ones have the same log odds
_COPIES = 6  # of all draws of a function at some cases, while methods are compared


@dataclass(frozen=True)
class Answers:
    """The answers of a run at some cases: averages over draws for labels, all draws for numbers.

    n_draws        number of draws of all chains together
    log_density    (n_cases,) log of the mean density of a case's targets, on the scale of the data file;
                   NaN if a case has no known target
    probabilities  (n_cases, n_targets, n_labels) for labels, None for numbers
    log_odds       (2, n_cases, n_targets, n_labels), the mean and the mean square over draws of each label's
                   log odds, None for numbers
    outputs        (n_cases, n_outputs, n_draws) on the networks' scale, None for labels
    sigmas         (n_targets, n_draws) of the noise on that scale; no rows if targets have no noise
    """

    n_draws: int
    log_density: Array
    probabilities: Array | None = None
    log_odds: Array | None = None
    outputs: Array | None = None
    sigmas: Array | None = None

    @property
    def spread(self) -> Array:
        """Standard deviation over draws of log odds or outputs, (n_cases, n_functions)."""
        if self.outputs is not None:
            return np.asarray(self.outputs.std(axis=2, dtype=np.float64))
        assert self.log_odds is not None
        mean, square = self.log_odds.reshape(2, len(self.log_density), -1)
        return np.sqrt(np.maximum(square - mean**2, 0.0))


def cases_at_once(runs: list[Draws], memory_bytes: float) -> int:
    """Return the number of cases to compare these runs at together."""
    spec, model = runs[0].spec, runs[0].spec.data_model
    n_draws = max(run.total for run in runs)
    per_case = 8 * _COPIES * spec.network.outputs * model.n_cells * (1 if model.has_labels else n_draws)
    per_case = max(per_case, 4 * model.n_cells * activation_bytes(spec.network, spec.dtype))
    return max(1, int(memory_bytes / 2 / per_case))


def answers(run: Draws, inputs: Array, targets: Array, *, memory_bytes: float) -> Answers:
    """Return the answers of all draws of a run.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)     as in the data file
    targets : (n_cases, n_targets)   as in the data file, NaN where missing
    memory_bytes : float             approximate memory for a block of draws
    """
    standardized = (inputs - run.data.input_center) / run.data.input_scale
    blocks = output_blocks(run, standardized, memory_bytes=memory_bytes)
    return _answers_of(run, ((outputs, precisions) for _, _, outputs, precisions in blocks), targets)


def _answers_of(run: Draws, blocks: Iterable[tuple[Array, Array]], targets: Array) -> Answers:
    """Return the answers of draws, given their outputs.

    Parameters
    ----------
    run : the run, for its model and the scale of its targets
    blocks : outputs (n_chains, n_draws, n_cases, n_outputs) on the networks' scale, with the draws'
        precisions (n_chains, n_draws, n_precisions)
    targets : (n_cases, n_targets)   as in the data file, NaN where missing
    """
    data, model = run.data, run.spec.data_model
    scaled = (targets - data.target_center) / data.target_scale
    log_sum, n_draws = np.full(len(targets), -np.inf), 0
    sums: list[Array] = []
    kept, sigmas = [], []
    for outputs, precisions in blocks:
        flat = outputs.reshape(-1, len(targets), outputs.shape[-1])
        noise = noise_precisions(precisions.reshape(len(flat), -1), run.precision_layout)
        density = model.log_density(flat, scaled, noise)
        log_sum = np.logaddexp(log_sum, scipy.special.logsumexp(density, axis=0))
        n_draws += len(flat)
        if model.has_labels:
            sums = [_sums_of_labels(distributions(run, model.probabilities(flat)), sums)]
        else:
            kept.append(np.moveaxis(flat, 0, 2))
            sigmas.append(noise.T**-0.5)
    is_observed = ~np.isnan(targets)
    log_scale = (is_observed * np.log(data.target_scale)).sum(axis=1)
    log_density = np.where(is_observed.any(axis=1), log_sum - math.log(n_draws) - log_scale, np.nan)
    if model.has_labels:
        probabilities, *log_odds = sums[0] / n_draws
        return Answers(n_draws, log_density, probabilities, np.stack(log_odds))
    outputs, sigma = np.concatenate(kept, axis=2), np.concatenate(sigmas, axis=1)
    return Answers(n_draws, log_density, outputs=outputs, sigmas=sigma)


def distributions(run: Draws, probabilities: Array) -> Array:
    """Return probabilities (..., n_outputs) as a distribution for each target, (..., n_targets, n_labels)."""
    has_opposites = run.spec.data_model.n_labels == 2
    return (
        np.stack([1 - probabilities, probabilities], axis=-1)
        if has_opposites
        else probabilities[..., None, :]
    )


def merged(first: Answers, second: Answers) -> Answers:
    """Return the answers of the draws of both together."""
    n_draws = first.n_draws + second.n_draws
    share = first.n_draws / n_draws

    def mean(a: Array | None, b: Array | None) -> Array | None:
        return None if a is None or b is None else share * a + (1 - share) * b

    # logaddexp would warn about cases without a target, because both are NaN there.
    log_densities = np.stack([first.log_density, second.log_density])
    log_density = scipy.special.logsumexp(log_densities, axis=0, b=np.array([[share], [1 - share]]))
    probabilities, log_odds = (
        mean(first.probabilities, second.probabilities),
        mean(first.log_odds, second.log_odds),
    )
    if first.outputs is None:
        return Answers(n_draws, log_density, probabilities, log_odds)
    outputs = np.concatenate([first.outputs, second.outputs], axis=2)
    return Answers(
        n_draws, log_density, outputs=outputs, sigmas=np.concatenate([first.sigmas, second.sigmas], axis=1)
    )


def _sums_of_labels(p: Array, before: list[Array]) -> Array:
    """Sum probabilities (n_draws, n_cases, n_targets, n_labels), their log odds, and the squares of these.

    The result is (3, n_cases, n_targets, n_labels). `before` is empty or contains the sum so far.
    """
    odds = scipy.special.logit(np.clip(p, _SMALLEST, 1 - _SMALLEST))
    now = np.stack([p.sum(axis=0), odds.sum(axis=0), np.square(odds).sum(axis=0)])
    return now + before[0] if before else now
