"""A predictor that keeps draws in memory, all or a few evenly spaced ones, to answer in milliseconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.predict import Prediction, predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.data import Source, read_cases
from rayfbnn.draws.fits import check_own_networks
from rayfbnn.draws.outputs import activation_bytes, outputs_by_case, posterior_of
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import evenly_spaced, hold, spread
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.model.prior import noise_precisions
from rayfbnn.reduce.effective import MIN_DRAWS, mcse_mean
from rayfbnn.reduce.passes import TasksInProcess
from rayfbnn.reduce.predictive import PredictiveSummary, joined, quantiles_of_points, summaries
from rayfbnn.spec import RunSpec
from rayfbnn.streams import Streams


class Predictor:
    """Draws of a run, held in memory to make predictions.

    Attributes
    ----------
    mcse
        Largest Monte Carlo standard error of a predictive mean at some training cases, as a share of the
        predictive standard deviation; NaN if there are fewer than four draws of each chain.
    early_phase
        Number of the phase that the draws are from, counted from 1, if the run had kept no draws yet; None if
        they are from the posterior.
    """

    def __init__(
        self,
        run: Draws,
        thinning: Thinning,
        *,
        max_memory: float = 256e6,
        dtype: str | None = None,
        spec: RunSpec | None = None,
    ) -> None:
        """Read the chosen draws of a run.

        dtype  type of the arithmetic; None for that of the run
        spec   the configuration for reading cases; None for that of the run
        """
        self.mcse = thinning.mcse
        self.early_phase = run.early_phase
        self._held = hold(run, thinning.numbers, dtype=dtype)
        self._max_memory = max_memory
        self._spec = self._held.spec if spec is None else spec

    @property
    def n_draws(self) -> int:
        """Number of draws of all chains together."""
        return self._held.total

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that cases must have, in the order of an array."""
        encoding = self._held.spec.encoding
        return self._held.data.input_names if encoding is None else encoding.source_names

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return self._held.data.target_names

    def predict(self, data: Source, *, max_memory: float | None = None) -> Prediction:
        """Predict the targets of new cases, as `rayfbnn.predict` does from the same draws.

        Parameters
        ----------
        data
            The cases: an array (n_cases, n_columns) or one case (n_columns,) with the columns of `columns` in
            their order, or anything that `rayfbnn.predict` accepts, such as a DataFrame or a file. Values are
            as in the training cases.
        max_memory
            Approximate number of bytes to use at once; by default the number given to `load`. Cases are
            processed in parts that fit.

        Returns
        -------
        Prediction
            A table with a row for each case: mean, median, sd and quantiles of its targets, noise included,
            or probabilities; and a summary of the errors, if the cases have targets.
        """
        memory_bytes = self._max_memory if max_memory is None else max_memory
        if not memory_bytes > 0:
            raise ConfigError(
                f"max_memory: must be a number of bytes above 0, such as 256e6, got {max_memory}"
            )
        inputs, targets = _cases(data, self._held, self._spec)
        return predict_from_draws([self._held], inputs, targets, memory_bytes=memory_bytes)

    def mean(self, data: Source) -> Array:
        """Return the predictive mean of each target, (n_cases, n_targets), without the rest of `predict`.

        For labels these are probabilities, (n_cases, n_labels); for targets with two labels, of the second.
        For a target that has no mean, on a log scale with t noise, it is the median.

        Parameters
        ----------
        data
            The cases, as for `predict`.
        """
        run = self._held
        summary = self._summary(data, quantiles_of_points(run))
        has_labels = run.spec.data_model.has_labels
        return summary.mean if has_labels else summary.in_file_units(run.data.target_units).point

    def quantiles(self, data: Source, probabilities: Sequence[float]) -> Array:
        """Return quantiles of the predictive distribution, (n_probabilities, n_cases, n_targets).

        The distribution is the equally weighted mixture over all draws, noise included, on the scale of the
        data file.

        Parameters
        ----------
        data
            The cases, as for `predict`.
        probabilities
            Numbers strictly between 0 and 1. Others raise ConfigError, and so do targets that are labels.
        """
        model, wanted = self._held.spec.data_model, {}
        for number, probability in enumerate(probabilities):
            if not 0 < probability < 1:
                raise ConfigError(f"quantiles: must lie between 0 and 1, such as 0.9, got {probability}")
            wanted[str(number)] = probability
        if model.has_labels:
            raise ConfigError(
                f"quantiles: {model.kind} targets are labels and have no quantiles; ask for probabilities"
            )
        found = self._summary(data, wanted).in_file_units(self._held.data.target_units).quantiles
        return np.stack([found[name] for name in wanted])

    def _summary(self, data: Source, quantiles: dict[str, float]) -> PredictiveSummary:
        run = self._held
        inputs, _ = _cases(data, run, self._spec)
        parts = summaries(
            [run],
            run.data.standardized(inputs),
            executor=TasksInProcess(),
            quantiles=quantiles,
            with_modes=False,
            memory_bytes=self._max_memory,
        )
        return joined(parts)

    def sample(self, data: Source, n_samples: int, *, seed: int) -> Array:
        """Draw targets of new cases from the predictive distribution, (n_samples, n_cases, n_targets).

        In each sample all cases share one draw of the posterior, taken at random with replacement, so samples
        are joint over cases. A sample depends only on the seed, the draws, and its number. Labels are given
        as their numbers, from 0; survival times are never censored.

        Parameters
        ----------
        data
            The cases, as for `predict`.
        n_samples
            Number of samples.
        seed
            Seed of the random numbers, from 0 to 2**32 - 1; equal seeds give equal samples.
        """
        run = self._held
        inputs, _ = _cases(data, run, self._spec)
        check_own_networks(run)
        model, posterior = run.spec.data_model, posterior_of(run)
        chosen = np.random.default_rng(seed).integers(run.total, size=n_samples)
        positions = run.positions().reshape(-1, posterior.n_parameters)[chosen]
        precisions = run.precisions().reshape(-1, run.precision_layout.n_precisions)[chosen]
        noise = noise_precisions(precisions, run.precision_layout)
        cells = model.cell_inputs(run.data.standardized(inputs))
        samples = np.empty((n_samples, len(inputs), run.data.n_targets))
        at_once = max(1, int(_BLOCK_BYTES / (activation_bytes(run.spec.network, "float64") * len(cells))))
        for first in range(0, n_samples, at_once):
            some = slice(first, min(first + at_once, n_samples))
            outputs = posterior.outputs(np.ascontiguousarray(positions[some], posterior.dtype), cells)
            by_unit = outputs.astype(np.float64).swapaxes(1, 2)
            streams = Streams(seed, np.arange(some.start, some.stop, dtype=np.uint64)).at(iteration=1)
            samples[some] = model.draw(by_unit, noise[some], streams).swapaxes(1, 2)
        return run.data.target_units.to_file(samples)

    def __repr__(self) -> str:
        names = ", ".join(at_most_ten(self.target_names))
        early = "" if self.early_phase is None else f", NOT FROM THE POSTERIOR: phase {self.early_phase}"
        return f"Predictor({names}: {self.n_draws} draws, Monte Carlo error {self.mcse:.2g} sd{early})"


def _cases(data: Source, held: Draws, spec: RunSpec) -> tuple[Array, Array | None]:
    """Return inputs, (n_cases, n_inputs), and targets if the data have them.

    Arrays of numbers that the network takes unchanged are not converted to a table, because the conversion
    takes longer than predicting a row.
    """
    if isinstance(data, np.ndarray | list):
        values = np.atleast_2d(np.asarray(data))
        columns = () if spec.encoding is None else spec.encoding.inputs
        is_plain = all(column.kind == "number" and not column.n_missing for column in columns)
        if values.dtype.kind in "fiu" and is_plain and np.isfinite(values).all():
            inputs = values.astype(np.float64)
            if inputs.ndim == 2 and inputs.shape[1] == held.data.n_inputs:
                held.data.check_range(inputs, None, dtype=spec.dtype, source="data", is_training=False)
            return inputs, None
        data = values
    return read_cases(data, spec, held.data)


_BLOCK_BYTES = 64e6  # of samples at work
_LEAST_DRAWS = 100  # of all chains together, because quantiles and standard deviations need draws too
_N_CASES = 20  # evenly spaced training cases for estimates of the error
_GROWTH = 1.25  # factor from one number of draws tried to the next
_LITTLE_MORE = 1.05  # times the error of all draws
_FEW = 1 / 8  # of all draws
_NETWORK_BYTES = 64e6
_CASES_BYTES = 128e6  # of outputs at some cases


@dataclass(frozen=True)
class Thinning:
    """Chosen draws and their Monte Carlo error.

    numbers      numbers of the chosen draws of each chain, increasing
    mcse         largest Monte Carlo standard error of a predictive mean at some training cases, as a share of
                 the predictive standard deviation; NaN if there are fewer than four draws of each chain
    mcse_of_all  the same error with all draws
    """

    numbers: Array
    mcse: float
    mcse_of_all: float


def thin(run: Draws, *, draws: int | None, max_mcse: float) -> Thinning:
    """Choose evenly spaced draws of each chain: `draws` of all chains together, or as few as are enough.

    max_mcse  largest acceptable error; 0 takes all draws

    If even all draws have a larger error, the draws chosen have at most 5 % more than that: if chains
    disagree, most of the error remains however many draws each chain has. ConfigError if `draws` is less than
    the number of chains.
    """
    n_draws = run.n_draws
    if draws is not None:
        if draws < run.n_chains:
            raise ConfigError(f"draws: must be at least {run.n_chains}, one for each chain, got {draws}")
        wanted = min(draws // run.n_chains, n_draws)
        errors = _errors(run, [wanted, n_draws])
        return Thinning(spread(n_draws, wanted), errors[wanted], errors[n_draws])
    numbers, wanted = [], max(MIN_DRAWS, -(-_LEAST_DRAWS // run.n_chains))
    while max_mcse > 0 and wanted < n_draws:
        numbers.append(wanted)
        wanted = math.ceil(wanted * _GROWTH)
    # The errors of few draws take little time compared with that of all draws, and few are often enough.
    n_few = bisect_right(numbers, n_draws * _FEW)
    errors = _errors(run, [*numbers[:n_few], n_draws])
    of_all = errors[n_draws]
    for wanted in numbers:
        if wanted not in errors:
            errors |= _errors(run, numbers[n_few:])
        if errors[wanted] <= max(max_mcse, _LITTLE_MORE * of_all):
            return Thinning(spread(n_draws, wanted), errors[wanted], of_all)
    return Thinning(spread(n_draws, n_draws), of_all, of_all)


def _errors(run: Draws, numbers: list[int]) -> dict[int, float]:
    """Return the largest error of a mean with each number of evenly spaced draws, NaN if there are too few.

    Errors are shares of the predictive standard deviations; a value that never varies has none.
    """
    largest, noise = dict.fromkeys(numbers, 0.0), noise_sigmas(run).reshape(1, -1, run.total)
    for outputs in _outputs_of_cases(run):
        means, variances = run.spec.data_model.moments(outputs, noise)
        sd = np.sqrt(variances.mean(axis=2) + means.var(axis=2))
        of_chains = means.reshape(*means.shape[:2], run.n_chains, run.n_draws)
        for number in numbers:
            chosen = of_chains if number == run.n_draws else of_chains[..., spread(run.n_draws, number)]
            if chosen.shape[-1] < MIN_DRAWS:
                largest[number] = math.nan
                continue
            share = np.divide(np.nan_to_num(mcse_mean(chosen)), sd, out=np.zeros_like(sd), where=sd > 0)
            largest[number] = max(float(share.max()), largest[number])
    return largest


def _outputs_of_cases(run: Draws) -> Iterator[Array]:
    """Yield the outputs of every draw at one training case after another, (1, n_outputs, n_draws) float64.

    The networks are evaluated at a few cases together, so the draws are not read for each case.
    """
    data = run.data
    inputs = data.standardized(data.inputs[evenly_spaced(data.n_cases, _N_CASES)])
    bytes_of_case = np.dtype(run.spec.dtype).itemsize * run.total * run.spec.network.outputs
    at_once = max(1, int(_CASES_BYTES / bytes_of_case))
    for first in range(0, len(inputs), at_once):
        together = outputs_by_case(run, inputs[first : first + at_once], memory_bytes=_NETWORK_BYTES)
        for case in range(len(together)):
            yield together[case : case + 1].reshape(1, together.shape[1], -1).astype(np.float64)
        del together  # before the next cases
