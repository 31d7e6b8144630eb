"""Forecasts the time of a run, of ladders, or of a fit on this machine, from a second or two of measuring."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import to_host
from rayfbnn.kernels import choose
from rayfbnn.mcmc.automatic import extreme_tunings, first_settings, with_steps
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import rows_of
from rayfbnn.mcmc.ladder.records import started as started_ladders
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
from rayfbnn.mcmc.schedule import build_iteration
from rayfbnn.mcmc.stepsizes import mean_squares
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.run.estimate import usual_settings
from rayfbnn.run.executor import InProcess
from rayfbnn.run.fitter import (
    approximation_of,
    build_fit,
    initial_state,
    posterior_before_fit,
    stepped,
)
from rayfbnn.run.job import streams_of
from rayfbnn.run.sampler import build_posterior, densities_of
from rayfbnn.spec.defaults import FIRST_ITERATIONS
from rayfbnn.streams import Streams
from rayfbnn.timing.steps import (
    STEPSIZE,
    Cost,
    Forecast,
    RunEstimate,
    floating_point_operations,
    four_digits,
    repeated,
    started,
    steps_within,
    timed,
)

START_OF_WORKERS = 12.0
"""Seconds from the start of a run until its workers begin to sample; Ray took 8 to 15 on two cores."""
# A run that takes fewer seconds is not worth a forecast. Chains are only measured if a guess says more.
LEAST_SECONDS = 5.0
_GUESSED_RATE, _GUESSED_OVERHEAD = 5e9, 5e-4  # operations a second; seconds of an iteration of a batch
_MESSAGES = 1.13  # time with cases in parts on two workers over time in one process (docs/benchmarks.md)


def forecast(spec: RunSpec, dataset: Dataset, *, workers: int) -> Forecast | None:
    """Return the forecast for this number of processes, or None for a run of a few seconds or on a GPU.

    An automatic length of trajectories is assumed to be the usual one: the initial length of tuning, or 128
    steps for several hidden layers. Trying enough rounds of tuning would take too long for a forecast. If
    ladders find the number of their levels, 24 are assumed. A fit that is complete before its last step takes
    less. ConfigError, naming the method or the key, if an approximation does not cover the posterior.
    """
    if spec.device != "cpu":
        return None
    measured = _of_fit if spec.fit is not None else _of_chains if spec.ladder is None else _of_ladders
    of_batch = measured(spec, dataset)
    if of_batch is None:
        return None
    n_batches = _n_batches(spec)
    turns = math.ceil(n_batches / max(1, workers))
    before, whole = (turns * seconds for seconds in of_batch)
    if whole < LEAST_SECONDS and (spec.fit is not None or spec.ladder is not None):
        return None  # chains are judged before they are measured
    first_verdict = None
    if spec.fit is None and spec.has_open_length and spec.chains > 1:
        first_verdict = before + (whole - before) * min(1.0, FIRST_ITERATIONS / spec.phase[-1].iterations)
    return Forecast(min(workers, n_batches), whole, before, first_verdict=first_verdict)


def _chains_per_batch(spec: RunSpec) -> int:
    return min(spec.chains, spec.chains_per_batch)


def _n_batches(spec: RunSpec) -> int:
    return math.ceil(spec.chains / _chains_per_batch(spec))


# Chains. _of_chains, _of_ladders, and _of_fit give the time that one worker needs for one batch before the
# first draw is kept, and for all of it.

_UPDATE_SECONDS = 0.1  # for measuring each kind of update
# The median of the lengths found for two layers, on nine tables of 250 cases or more (docs/decisions/0017).
_USUAL_STEPS_OF_LAYERS = 128
_MOST_VALUES = 2e6  # hidden values of all chains at all cases that are measured together


def _of_chains(spec: RunSpec, dataset: Dataset) -> tuple[float, float] | None:
    """Return the times of a batch of chains, or None if a guess says that the run takes a few seconds."""
    posterior = build_posterior(spec, dataset, device="cpu")
    settings = _usual_settings(spec)
    if _guessed_seconds(spec, posterior, settings) < LEAST_SECONDS:
        return None
    with InProcess():  # one BLAS thread, as workers have
        return _MeasuredRun(spec, posterior, seconds=_UPDATE_SECONDS).seconds(settings)


class _MeasuredRun:
    """A run with measured updates, for a number of chains that is at most that of a batch."""

    def __init__(self, spec: RunSpec, posterior: SampledPosterior, *, seconds: float) -> None:
        """Prepare to measure each kind of update for `seconds`."""
        self._spec = spec
        units = max([1, *(layer.units for layer in posterior.network.hidden)])
        # A chain of a large table takes no less time in a batch, so a few chains are representative.
        most = int(_MOST_VALUES / (posterior.n_cases * units)) if spec.device == "cpu" else spec.chains
        chains = max(1, min(_chains_per_batch(spec), most))
        self._scale = _chains_per_batch(spec) / chains * (_MESSAGES if spec.n_parts > 1 else 1.0)
        times = UpdateTimes(posterior, chains=chains, sigmas=spec.initial.sigmas, seconds=seconds)
        self._times, state = times, times.state
        self._recording = timed(
            lambda: to_host(densities_of(state, posterior, times.advance)["energy"]), seconds=_UPDATE_SECONDS
        )
        slopes = partial(mean_squares, posterior, state.position, state.precisions)
        self._slopes = timed(lambda: to_host(slopes()), seconds=_UPDATE_SECONDS)

    def seconds(self, settings: Mapping[Tunable, Settings]) -> tuple[float, float]:
        """Return the time of a batch before the first phase with draws, and that of all its phases."""
        before = whole = 0.0
        is_kept = False
        for number, phase in enumerate(self._spec.phase):
            is_kept = is_kept or phase.keep is True
            tuning = Tuning(settings, is_measured=number in self._spec.tuning_phases)
            updates = [with_numbers(operation, tuning) for operation in unrolled(phase.operations)]
            one = self._times.iteration(updates) + (self._recording if phase.keep else 0.0)
            if tuning.is_measured:
                scaled = [operation for operation in automatic(phase.operations) if operation.scaling == AUTO]
                one += len(scaled) * self._slopes
            whole += phase.iterations * one
            before += 0.0 if is_kept else phase.iterations * one
        return self._scale * before, self._scale * whole


def _guessed_seconds(
    spec: RunSpec, posterior: SampledPosterior, settings: Mapping[Tunable, Settings]
) -> float:
    operations = _evaluations(spec, settings) * floating_point_operations(posterior)
    return operations / _GUESSED_RATE + _n_batches(spec) * spec.total_iterations * _GUESSED_OVERHEAD


def _evaluations(spec: RunSpec, settings: Mapping[Tunable, Settings]) -> int:
    """Return the gradient evaluations of all chains in all phases."""
    n = 0
    for number, phase in enumerate(spec.phase):
        tuning = Tuning(settings, is_measured=number in spec.tuning_phases)
        n += phase.iterations * gradient_evaluations(phase.operations, tuning=tuning)
    return spec.chains * n


def _automatic(spec: RunSpec) -> tuple[Tunable, ...]:
    return tuple(operation for phase in spec.phase for operation in automatic(phase.operations))


def _usual_settings(spec: RunSpec) -> dict[Tunable, Settings]:
    settings = {operation: first_settings(operation) for operation in _automatic(spec)}
    if len(spec.network.hidden) < 2:
        return settings
    return {
        operation: with_steps(operation, first.stepsize, min(_USUAL_STEPS_OF_LAYERS, operation.longest))
        if operation.steps == AUTO
        else first
        for operation, first in settings.items()
    }


# Ladders.

_LADDER_SECONDS = 0.5  # for measuring an iteration


def _of_ladders(spec: RunSpec, dataset: Dataset) -> tuple[float, float]:
    return _batch_of_ladders(spec, build_posterior(spec, dataset, device="cpu"))


def _batch_of_ladders(spec: RunSpec, posterior: SampledPosterior) -> tuple[float, float]:
    n_ladders, sigmas = _chains_per_batch(spec), spec.initial.sigmas
    with InProcess():  # one BLAS thread, as workers have
        times = UpdateTimes(posterior, chains=n_ladders // 2, sigmas=sigmas, seconds=_LADDER_SECONDS / 5)
        of_chains = times.iteration(_with_first_settings(spec))
        path, settings = path_of(posterior), usual_settings(spec)
        operations = spec.phase[-1].operations
        iteration = build(path, operations, settings, n_ladders=n_ladders, advance=times.advance)
        streams = Streams(spec.seed, np.asarray(rows_of(range(n_ladders), settings.n_levels)))
        state = started_ladders(posterior.initial_state(streams, sigmas=sigmas), settings.n_levels)
        of_ladders = timed(lambda: iteration(state, streams.at(iteration=1)), seconds=_LADDER_SECONDS)
    *warmup, annealed, adapted, kept = (phase.iterations for phase in spec.phase)
    before = (sum(warmup) + annealed) * of_chains + (annealed / 2 + adapted) * of_ladders
    return before, before + kept * of_ladders


def _with_first_settings(spec: RunSpec) -> list[Operation]:
    """Return the operations of the default schedule with the settings that their tuning begins with."""
    operations = spec.phase[-1].operations
    tuning = Tuning({operation: first_settings(operation) for operation in automatic(operations)})
    return [with_numbers(operation, tuning) for operation in unrolled(operations)]


# Fits.

_STEP_SECONDS, _DENSITY_SECONDS = 0.5, 0.1  # for measuring steps, and the log likelihood of a draw


def _of_fit(spec: RunSpec, dataset: Dataset) -> tuple[float, float]:
    """Return the time of all steps of a batch of starts, and that with its draws.

    The approximation decides whether the log evidence at the end is counted (`Timing`).
    """
    posterior = posterior_before_fit(spec, dataset)
    approximation, n_starts = approximation_of(spec), _chains_per_batch(spec)
    timing = approximation.timing()
    n_measured = n_starts if timing.is_together else 1
    start = posterior.start(streams_of(spec, np.arange(n_starts, dtype=np.uint64)).at(iteration=0))
    position, precisions = start[0].astype(posterior.dtype), start[1]
    with InProcess():  # one BLAS thread, as workers have
        per_step = _seconds_per_step(spec, build_fit(timing.measured, posterior), n_measured)
        density = timed(lambda: posterior.log_likelihood(position, precisions), seconds=_DENSITY_SECONDS)
    steps = timing.n_steps * per_step * n_starts / n_measured + timing.n_densities * density
    return steps, steps + approximation.draws * density


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


# The estimate of bench, and the times of single updates.


_ESTIMATE_SECONDS = 0.25  # for measuring each operation


def estimate_run(spec: RunSpec, posterior: SampledPosterior, *, workers: int) -> RunEstimate:
    """Estimate the time of a whole run from the time of each of its operations for a batch of chains.

    Ladders have the levels that `forecast` assumes.
    """
    chains, n_batches = _chains_per_batch(spec), _n_batches(spec)
    workers = min(workers, n_batches)

    def cost(evaluations: int, batch_seconds: float) -> Cost:
        return Cost(
            evaluations,
            core_seconds=four_digits(batch_seconds * spec.chains / chains),
            seconds=four_digits(batch_seconds * math.ceil(n_batches / workers)),
        )

    if spec.ladder is not None:
        of_ladders = cost(_evaluations_of_ladders(spec), _batch_of_ladders(spec, posterior)[1])
        return RunEstimate(workers, of_ladders, of_ladders)
    run = _MeasuredRun(spec, posterior, seconds=_ESTIMATE_SECONDS)
    extremes = (one.settings for one in extreme_tunings(_automatic(spec), is_measured=False))
    costs = [cost(_evaluations(spec, settings), run.seconds(settings)[1]) for settings in extremes]
    return RunEstimate(workers, *costs)


def _evaluations_of_ladders(spec: RunSpec) -> int:
    *warmup, annealed, adapted, kept = (phase.iterations for phase in spec.phase)
    of_chain = sum(map(gradients, _with_first_settings(spec)))
    of_ladder = sum(usual_settings(spec).steps)
    pairs = spec.chains // 2
    in_warmup = pairs * ((sum(warmup) + annealed) * of_chain + annealed * of_ladder)
    return in_warmup + spec.chains * (adapted + kept) * of_ladder


class UpdateTimes:
    """The times of single updates of a batch of chains. Each time is measured once."""

    def __init__(
        self, posterior: SampledPosterior, *, chains: int, sigmas: float | None, seconds: float
    ) -> None:
        """Prepare to measure updates of `chains` chains with these initial sigmas, for `seconds` each."""
        self.posterior, self.seconds = posterior, seconds
        self.advance, _ = choose.advance_for(posterior)
        self.state, self.streams = started(posterior, chains, sigmas)
        self._times: dict[Operation, float] = {}

    def iteration(self, operations: Sequence[Operation]) -> float:
        """Return the time of one update by each of the operations. They must have no automatic settings."""
        return sum(self.update(operation) for operation in operations)

    def update(self, operation: Operation) -> float:
        """Return the time of one update."""
        if operation not in self._times:
            self._times[operation] = self._measured(operation)
        return self._times[operation]

    def _measured(self, operation: Operation) -> float:
        """Measure one update of all chains, extrapolated for long trajectories."""
        if inner := operation.inner:
            times = gradient_evaluations((operation,)) / max(1, gradient_evaluations(unrolled(inner)))
            return max(1.0, times) * self.iteration(unrolled(inner))

        def run(timed: Operation) -> float:
            target, advance = self.posterior, self.advance
            iteration = build_iteration((timed,), target=target, updates=target.updates, advance=advance)
            started_at = time.perf_counter()
            to_host(iteration(self.state, self.streams)[0].position)  # waits for a device
            return time.perf_counter() - started_at

        short = with_few_steps(operation, 2)
        n_steps = steps_within(run(short) / (gradients(short) + 1), self.seconds / 5)
        short = with_few_steps(operation, n_steps)
        measured = statistics.median(repeated(lambda: run(short), seconds=self.seconds))
        window = getattr(operation, "window", 1)
        # A trajectory of n steps evaluates n + 1 gradients, the energy of its start, and the energy of each
        # state in a window.
        return measured * (gradients(operation) + 2 * window) / (gradients(short) + 2)


def with_numbers(operation: Operation, tuning: Tuning) -> Operation:
    """Return the operation with the steps of `tuning`, and with STEPSIZE for an automatic stepsize."""
    if operation.tuned is None or operation.tuned not in tuning.settings:
        return operation
    settings = tuning.settings[operation.tuned]
    steps = settings.longest if tuning.is_measured else settings.steps
    stepsize = STEPSIZE if operation.tuned.stepsize == AUTO else operation.tuned.stepsize
    # Scales belong to an automatic stepsize. They change where a step leads, not how long it takes.
    changes: dict[str, Any] = {"steps": steps, "stepsize": stepsize, "scaling": None}
    return replace(operation, **changes)


def gradients(operation: Operation) -> int:
    """Return the number of gradient evaluations in one update of a chain."""
    return gradient_evaluations((operation,))


def with_few_steps(operation: Operation, n_steps: int) -> Operation:
    """Return the operation with at most n_steps and without windows, or unchanged if it has no steps."""
    names = {field.name for field in dataclasses.fields(operation)}
    changes: dict[str, Any] = {name: 1 for name in ("window", "jump") if name in names}
    for name in ("steps", "max_steps"):
        if name in names and gradients(operation) > 0:
            changes[name] = min(n_steps, getattr(operation, name))
    return replace(operation, **changes) if "steps" in changes or "max_steps" in changes else operation


if TYPE_CHECKING:
    from rayfbnn.approximate.approximation import Fit
    from rayfbnn.data import Dataset
    from rayfbnn.model.sampled import SampledPosterior
    from rayfbnn.spec import RunSpec
