"""Forecasts the time of a run of ladders on this machine, from a second or two of measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import rows_of, started
from rayfbnn.mcmc.operation import Operation, Tuning, automatic, unrolled
from rayfbnn.mcmc.tuning.settings import first_settings as first_of_chains
from rayfbnn.model.ladder_path import path_of
from rayfbnn.run.estimate import usual_settings
from rayfbnn.run.executor import InProcess
from rayfbnn.run.sampler import build_posterior
from rayfbnn.streams import Streams
from rayfbnn.timing.forecast import first_verdict
from rayfbnn.timing.run_time import UpdateTimes, gradients, with_numbers
from rayfbnn.timing.steps import Cost, Forecast, RunEstimate, four_digits, timed

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.model.sampled import SampledPosterior
    from rayfbnn.spec import RunSpec

_SECONDS = 0.5  # for measuring an iteration
LEAST_LADDER_SECONDS = 5.0  # a shorter run is not worth a forecast


def ladder_forecast(spec: RunSpec, dataset: Dataset, *, workers: int) -> Forecast | None:
    """Return the forecast for this number of processes, or None for a run of a few seconds or on a GPU.

    If the adaptation chooses the number of levels, 24 are assumed.
    """
    if spec.device != "cpu":
        return None
    measured = _Measured.of(spec, build_posterior(spec, dataset, device="cpu"))
    turns = math.ceil(measured.n_batches / max(1, workers))
    before, whole = turns * measured.before, turns * measured.whole
    if whole < LEAST_LADDER_SECONDS:
        return None
    first = first_verdict(spec, before, whole)
    assert spec.ladder is not None
    levels = usual_settings(spec).n_levels if spec.ladder.levels == "auto" else 0
    return Forecast(
        min(workers, measured.n_batches),
        whole,
        before,
        first_verdict=first,
        levels=levels,
        is_of_ladders=True,
    )


def ladder_estimate(spec: RunSpec, posterior: SampledPosterior, *, workers: int) -> RunEstimate:
    """Return the cost of a run of ladders on the CPU, with the levels that `ladder_forecast` assumes."""
    measured = _Measured.of(spec, posterior)
    *warmup, annealed, adapted, kept = (phase.iterations for phase in spec.phase)
    of_chain = sum(map(gradients, _with_first_settings(spec)))
    of_ladder = sum(usual_settings(spec).steps)
    evaluations = spec.chains // 2 * (sum(warmup) + annealed) * of_chain
    evaluations += (spec.chains // 2 * annealed + spec.chains * (adapted + kept)) * of_ladder
    workers = min(workers, measured.n_batches)
    turns = math.ceil(measured.n_batches / workers)
    cost = Cost(
        evaluations,
        core_seconds=four_digits(measured.n_batches * measured.whole),
        seconds=four_digits(turns * measured.whole),
    )
    return RunEstimate(workers, cost, cost, cost)


@dataclass(frozen=True)
class _Measured:
    """The seconds of a batch of ladders before its first kept draw, and of its whole run."""

    n_batches: int
    before: float
    whole: float

    @staticmethod
    def of(spec: RunSpec, posterior: SampledPosterior) -> _Measured:
        """Measure an iteration of the chains and one of the ladders of a batch."""
        n_ladders = min(spec.chains, spec.chains_per_batch)
        with InProcess():  # one BLAS thread, as workers have
            of_chains = _of_chains(spec, posterior, n_ladders // 2)
            of_ladders = _of_ladders(spec, posterior, n_ladders)
        *warmup, annealed, adapted, kept = (phase.iterations for phase in spec.phase)
        before = (sum(warmup) + annealed) * of_chains + (annealed / 2 + adapted) * of_ladders
        return _Measured(math.ceil(spec.chains / n_ladders), before, before + kept * of_ladders)


def _of_chains(spec: RunSpec, posterior: SampledPosterior, n_chains: int) -> float:
    """Return the seconds of an iteration of the default schedule."""
    times = UpdateTimes(posterior, chains=n_chains, sigmas=spec.initial.sigmas, seconds=_SECONDS / 5)
    return times.iteration(_with_first_settings(spec))


def _with_first_settings(spec: RunSpec) -> list[Operation]:
    """Return the operations of the default schedule with the settings that their tuning begins with."""
    operations = spec.phase[-1].operations
    tuning = Tuning({operation: first_of_chains(operation) for operation in automatic(operations)})
    return [with_numbers(operation, tuning) for operation in unrolled(operations)]


def _of_ladders(spec: RunSpec, posterior: SampledPosterior, n_ladders: int) -> float:
    """Return the seconds of an iteration of all levels of some ladders."""
    path, settings = path_of(posterior), usual_settings(spec)
    advance = UpdateTimes(posterior, chains=1, sigmas=spec.initial.sigmas, seconds=0.0).advance
    iteration = build(path, spec.phase[-1].operations, settings, n_ladders=n_ladders, advance=advance)
    streams = Streams(spec.seed, np.asarray(rows_of(range(n_ladders), settings.n_levels)))
    chains = posterior.initial_state(streams, sigmas=spec.initial.sigmas)
    state = started(chains, settings.n_levels)
    return timed(lambda: iteration(state, streams.at(iteration=1)), seconds=_SECONDS)
