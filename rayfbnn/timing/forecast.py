"""Forecasts the time of a run or a fit on this machine, from a second or two of measuring."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.kernels import choose
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.operation import (
    AUTO,
    Operation,
    Settings,
    Tunable,
    Tuning,
    automatic,
    gradient_evaluations,
    unrolled,
)
from rayfbnn.mcmc.stepsizes import mean_squares
from rayfbnn.mcmc.tuning.settings import extreme_tunings, first_settings, with_steps
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.run.executor import InProcess
from rayfbnn.run.fitter import (
    approximation_of,
    build_fit,
    initial_state,
    posterior_before_fit,
    stepped,
    streams_of,
)
from rayfbnn.run.sampler import build_posterior, densities_of
from rayfbnn.spec import RunSpec
from rayfbnn.spec.defaults import FIRST_ITERATIONS
from rayfbnn.timing.run_time import UpdateTimes, with_numbers
from rayfbnn.timing.steps import (
    Change,
    Forecast,
    TrajectoryKind,
    floating_point_operations,
    seconds_per_step,
    timed,
    trajectory_kinds,
)

if TYPE_CHECKING:
    from rayfbnn.approximate.approximation import Fit
    from rayfbnn.data import Dataset


START_OF_WORKERS = 12.0
"""Seconds from the start of a run until its workers begin to sample; Ray took 8 to 15 on two cores."""
_UPDATE_SECONDS = 0.1  # for measuring each kind of update
# A run that takes fewer seconds, by a guess without measuring, is not worth a forecast.
LEAST_SECONDS = 5.0
_GUESSED_RATE, _GUESSED_OVERHEAD = 5e9, 5e-4  # operations a second; seconds of an iteration of a batch
_LARGEST_FACTOR = 0.9  # a change that saves less is not listed
_LEAST_FOR_CHANGES = 30.0  # seconds; changes are tried only for longer runs
# The median of the lengths found for two layers, on nine tables of 250 cases or more (docs/decisions/0017).
_USUAL_STEPS_OF_LAYERS = 128
_MESSAGES = 1.13  # time with cases in parts on two workers over time in one process (docs/benchmarks.md)
_MOST_VALUES = 2e6  # hidden values of all chains at all cases that are measured together


def forecast(spec: RunSpec, dataset: Dataset, *, workers: int) -> Forecast | None:
    """Return the forecast for this number of processes, or None for a run of a few seconds or on a GPU.

    An automatic length of trajectories is assumed to be the usual one: the initial length of tuning, or 128
    steps for several hidden layers. Trying enough rounds of tuning would take too long for a forecast.
    """
    if spec.device != "cpu":
        return None
    posterior = build_posterior(spec, dataset, device="cpu")
    settings = _settings(spec, longest=False)
    if _guessed_seconds(spec, posterior, settings) < LEAST_SECONDS:
        return None
    with InProcess():  # one BLAS thread, as workers have
        return _measured(spec, dataset, posterior, settings, workers)


def _measured(
    spec: RunSpec,
    dataset: Dataset,
    posterior: SampledPosterior,
    settings: dict[Tunable, Settings],
    workers: int,
) -> Forecast:
    """Return the forecast from measurements.

    settings  the likely settings of automatic operations
    """
    run = _MeasuredRun(spec, posterior)
    before, whole = run.seconds(settings, workers)
    open_lengths = [operation for operation in settings if operation.steps == AUTO]
    result = Forecast(
        min(workers, _n_batches(spec)),
        whole,
        before,
        lengths=tuple(dict.fromkeys(settings[operation].steps for operation in open_lengths)),
        longest=run.seconds(_settings(spec, longest=True), workers)[1],
        first_verdict=first_verdict(spec, before, whole),
    )
    if whole < _LEAST_FOR_CHANGES:
        return result
    written, operation, share = run.slowest(settings)
    option, shorter_spec = shorter(spec)
    quicker = [Change(option, run.seconds(settings, workers, shorter_spec)[1])]
    for faster in changes(spec, dataset, run.times, operation, written=written, workers=workers):
        quicker.append(Change(faster.options, whole * (1 - share + share * faster.factor), faster.note))
    worthwhile = [change for change in quicker if change.seconds < _LARGEST_FACTOR * whole]
    return replace(result, changes=tuple(sorted(worthwhile, key=lambda change: change.seconds)))


def first_verdict(spec: RunSpec, before: float, whole: float) -> float | None:
    """Return the time before the first verdict on a run of open length, or None for other runs."""
    if not spec.has_open_length or spec.chains == 1:
        return None
    return before + (whole - before) * min(1.0, FIRST_ITERATIONS / spec.phase[-1].iterations)


class _MeasuredRun:
    """A run with measured updates, for a number of chains that is at most that of a batch."""

    def __init__(self, spec: RunSpec, posterior: SampledPosterior) -> None:
        self._spec = spec
        units = max([1, *(layer.units for layer in posterior.network.hidden)])
        # A chain of a large table takes no less time in a batch, so a few chains are representative.
        most = int(_MOST_VALUES / (posterior.n_cases * units))
        self._chains = max(1, min(_chains_per_batch(spec), most))
        self.times = UpdateTimes(
            posterior, chains=self._chains, sigmas=spec.initial.sigmas, seconds=_UPDATE_SECONDS
        )
        state, advance = self.times.state, self.times.advance
        self._recording = timed(lambda: densities_of(state, posterior, advance), seconds=_UPDATE_SECONDS)
        slopes = partial(mean_squares, posterior, state.position, state.precisions)
        self._slopes = timed(slopes, seconds=_UPDATE_SECONDS)

    def seconds(
        self, settings: Mapping[Tunable, Settings], workers: int, spec: RunSpec | None = None
    ) -> tuple[float, float]:
        """Return the time before the first phase with draws, and the time of the whole run.

        spec  the same run with phases of another length
        """
        before = whole = 0.0
        is_kept = False
        spec = spec or self._spec
        for number, phase in enumerate(spec.phase):
            is_kept = is_kept or phase.keep is True
            tuning = Tuning(settings, is_measured=number in spec.tuning_phases)
            updates = [with_numbers(operation, tuning) for operation in unrolled(phase.operations)]
            one = self.times.iteration(updates) + (self._recording if phase.keep else 0.0)
            if tuning.is_measured:
                scaled = [operation for operation in automatic(phase.operations) if operation.scaling == AUTO]
                one += len(scaled) * self._slopes
            whole += phase.iterations * one
            before += 0.0 if is_kept else phase.iterations * one
        if self._spec.n_parts > 1:
            before, whole = _MESSAGES * before, _MESSAGES * whole
        turns = math.ceil(_n_batches(self._spec) / max(1, workers))
        scale = turns * _chains_per_batch(self._spec) / self._chains
        return before * scale, whole * scale

    def slowest(self, settings: Mapping[Tunable, Settings]) -> tuple[Operation, Operation, float]:
        """Return the slowest operation of the last phase, as written and with settings, and its share.

        The share is that of the time of an iteration.
        """
        written = unrolled(self._spec.phase[-1].operations)
        updates = [with_numbers(operation, Tuning(settings)) for operation in written]
        number = max(range(len(updates)), key=lambda index: self.times.update(updates[index]))
        share = self.times.update(updates[number]) / (self.times.iteration(updates) + self._recording)
        return written[number], updates[number], share


def _guessed_seconds(
    spec: RunSpec, posterior: SampledPosterior, settings: Mapping[Tunable, Settings]
) -> float:
    """Return a rough time for the whole run on one core, without measuring."""
    evaluations = sum(
        phase.iterations * gradient_evaluations(phase.operations, tuning=Tuning(settings))
        for phase in spec.phase
    )
    operations = spec.chains * evaluations * floating_point_operations(posterior)
    return operations / _GUESSED_RATE + _n_batches(spec) * spec.total_iterations * _GUESSED_OVERHEAD


def _settings(spec: RunSpec, *, longest: bool) -> dict[Tunable, Settings]:
    """Return the usual settings of automatic operations, or those with the longest trajectories."""
    operations = [operation for phase in spec.phase for operation in automatic(phase.operations)]
    if longest:
        return dict(extreme_tunings(tuple(operations), is_measured=False)[1].settings)
    settings = {operation: first_settings(operation) for operation in operations}
    if len(spec.network.hidden) < 2:
        return settings
    return {
        operation: with_steps(operation, first.stepsize, min(_USUAL_STEPS_OF_LAYERS, operation.longest))
        if operation.steps == AUTO
        else first
        for operation, first in settings.items()
    }


def _chains_per_batch(spec: RunSpec) -> int:
    return min(spec.chains, spec.chains_per_batch)


def _n_batches(spec: RunSpec) -> int:
    return math.ceil(spec.chains / _chains_per_batch(spec))


_STEP_SECONDS, _DENSITY_SECONDS = 0.5, 0.1  # for measuring steps, and the log likelihood of a draw


def fit_forecast(spec: RunSpec, dataset: Dataset, *, workers: int) -> Forecast | None:
    """Return the forecast for a number of processes; None for a fit of a few seconds, or on a GPU.

    A fit that is complete before its last step takes less. The approximation decides whether the log evidence
    at the end is counted (`Timing`). ConfigError, naming the method or the key, if it does not cover the
    posterior.
    """
    if spec.device != "cpu":
        return None
    posterior = posterior_before_fit(spec, dataset)
    with InProcess():  # one BLAS thread, as workers have
        steps, draws = _batch_seconds(spec, posterior)
    n_batches = math.ceil(spec.chains / spec.chains_per_batch)
    turns = math.ceil(n_batches / max(1, workers))
    whole = turns * (steps + draws)
    return None if whole < LEAST_SECONDS else Forecast(min(workers, n_batches), whole, turns * steps)


def _batch_seconds(spec: RunSpec, posterior: ApproximatedPosterior) -> tuple[float, float]:
    """Return the time of all steps of a batch of starts, and that of its draws."""
    approximation, n_starts = approximation_of(spec), min(spec.chains, spec.chains_per_batch)
    timing = approximation.timing()
    n_measured = n_starts if timing.is_together else 1
    per_step = _seconds_per_step(spec, build_fit(timing.measured, posterior), n_measured)
    steps = timing.n_steps * per_step * n_starts / n_measured
    start = posterior.start(streams_of(spec, np.arange(n_starts, dtype=np.uint64)).at(iteration=0))
    position, precisions = start[0].astype(posterior.dtype), start[1]
    density = timed(lambda: posterior.log_likelihood(position, precisions), seconds=_DENSITY_SECONDS)
    return steps + timing.n_densities * density, approximation.draws * density


def _seconds_per_step(spec: RunSpec, fit: Fit, n_starts: int) -> float:
    """Return the time of a step, without the first call if there are more, because it allocates memory."""
    n_steps = fit.settings.n_steps
    streams = streams_of(spec, np.arange(n_starts, dtype=np.uint64))
    state, number, first = initial_state(fit, streams), 0, (0.0, 0)
    started_at = time.perf_counter()
    while number < n_steps and not fit.is_complete(state):
        state, taken = stepped(fit, state, streams.at(iteration=number + 1), most=n_steps - number)
        number, passed = number + taken, time.perf_counter() - started_at
        if not first[1]:
            first = passed, number
        if passed >= _STEP_SECONDS:
            break
    if number > first[1]:
        return (passed - first[0]) / (number - first[1])
    return passed / number


_CHANGE_SECONDS = 0.05  # for measuring the steps of each change
_PARTITIONS = 4
_FEWER = 4  # a quarter of the iterations
_FEW_CHAINS = 4  # fewer cannot be judged


@dataclass(frozen=True)
class Faster:
    """Options of `sample` that make a run faster.

    options  as they are typed in a shell
    factor   factor on the time of the updates of an operation
    note     what they do, if the options do not say it themselves
    """

    options: str
    factor: float
    note: str = ""


def shorter(spec: RunSpec) -> tuple[str, RunSpec]:
    """Return the option that makes a run's last phase a quarter as long, and the run with it.

    If the schedule is the default one, its tuning becomes shorter too.
    """
    n = max(1, spec.phase[-1].iterations // _FEWER)
    if "phase" in spec.written():
        return f"--set phase[{len(spec.phase) - 1}].iterations={n}", spec.with_iterations(n)
    keys = {**spec.written(), "iterations": n}
    return f"--set iterations={n}", RunSpec.from_dict(keys).resolved(spec.encoding)


def changes(
    spec: RunSpec,
    dataset: Dataset,
    times: UpdateTimes,
    operation: Operation,
    *,
    written: Operation,
    workers: int,
) -> list[Faster]:
    """Return options that change the time of an operation's updates.

    times      the run's updates, with the measured chains
    operation  the operation with the longest updates; without trajectories nothing is returned
    written    the operation as it is written, perhaps with automatic settings
    workers    number of processes that could share the batches

    Some changes shorten trajectories or leave out chains, so the factors do not tell how many draws are
    needed. Fewer units are not proposed, because chains then agree less and predict worse
    (docs/decisions/0017).
    """
    kinds = trajectory_kinds((operation,))
    if not kinds:
        return []
    kind, posterior, chains = kinds[0], times.posterior, len(times.state.position)
    now = _per_step(posterior, kind, chains)
    found = []
    if spec.dtype == "float64":
        other = RunSpec.from_dict({**spec.to_dict(), "dtype": "float32"}).resolved(spec.encoding)
        in_float32 = build_posterior(other, dataset, device="cpu")
        found.append(Faster("--set dtype=float32", _per_step(in_float32, kind, chains) / now))
    place = _place_of(spec, written)
    if place and isinstance(operation, Hybrid) and _can_have_partial_gradients(operation, posterior):
        steps = max(1, int(operation.steps) // _PARTITIONS)
        partial = _per_step(posterior, replace(kind, partitions=_PARTITIONS), chains) / now
        options = f"--set {place}.steps={steps} --set {place}.partitions={_PARTITIONS}"
        found.append(Faster(options, partial * steps / int(operation.steps), "partial gradients"))
    batch = min(spec.chains, spec.chains_per_batch)
    turns = math.ceil(math.ceil(spec.chains / batch) / workers)

    def of_batches(n_chains: int, size: int) -> float:
        """Return the factor of a run with n_chains chains in batches of this size, at most those measured."""
        per_step = _per_step(posterior, kind, min(chains, size)) / now
        return per_step * size * math.ceil(math.ceil(n_chains / size) / workers) / (turns * batch)

    smaller = math.ceil(spec.chains / workers)
    if smaller < batch:
        note = f"shares the chains among {workers} workers"
        found.append(Faster(f"--set chains_per_batch={smaller}", of_batches(spec.chains, smaller), note))
    if spec.chains > _FEW_CHAINS:
        is_shared = batch == smaller  # then fewer chains are shared among the workers, too
        size = min(batch, math.ceil(_FEW_CHAINS / workers) if is_shared else _FEW_CHAINS)
        found.append(Faster(f"--set chains={_FEW_CHAINS}", of_batches(_FEW_CHAINS, size)))
    return found


def _place_of(spec: RunSpec, operation: Operation) -> str:
    """Return the key of an operation in the last of the phases as written; "" for a default schedule."""
    if "phase" not in spec.written() or operation not in spec.phase[-1].operations:
        return ""
    return f"phase[{len(spec.phase) - 1}].operations[{spec.phase[-1].operations.index(operation)}]"


def _can_have_partial_gradients(operation: Hybrid, posterior: SampledPosterior) -> bool:
    is_plain = operation.partitions == 1 and operation.integrator == "leapfrog"
    return is_plain and operation.steps != "auto" and posterior.n_cases >= _PARTITIONS


def _per_step(posterior: SampledPosterior, kind: TrajectoryKind, chains: int) -> float:
    advance, _ = choose.advance_for(posterior)
    return seconds_per_step(posterior, advance, chains=chains, seconds=_CHANGE_SECONDS, trajectory=kind)
