"""Forecasts the time of a run of ladders on this machine, from a second or two of measuring."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.mcmc.ladder.adaptation import first_settings
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import rows_of, started
from rayfbnn.mcmc.operation import Tuning, automatic, unrolled
from rayfbnn.mcmc.tuning.settings import first_settings as first_of_chains
from rayfbnn.model.ladder.choosing import path_of
from rayfbnn.run.executor import InProcess
from rayfbnn.run.sampler import build_posterior
from rayfbnn.store.ladder_rounds import plan_of
from rayfbnn.streams import Streams
from rayfbnn.timing.forecast import first_verdict
from rayfbnn.timing.measured_times import Forecast
from rayfbnn.timing.run_time import UpdateTimes, with_numbers
from rayfbnn.timing.steps import timed

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.model.sampled import SampledPosterior
    from rayfbnn.spec import RunSpec

_USUAL_LEVELS = 24  # what the adaptation found for yacht and energy
_USUAL_NOISE = 0.1  # of the coldest level; it changes the lengths of trajectories little
_SECONDS = 0.5  # for measuring an iteration
LEAST_SECONDS = 5.0  # a shorter run is not worth a forecast


def ladder_forecast(spec: RunSpec, dataset: Dataset, *, workers: int) -> Forecast | None:
    """Return the forecast for this number of processes, or None for a run of a few seconds or on a GPU.

    If the adaptation chooses the number of levels, 24 are assumed.
    """
    if spec.device != "cpu":
        return None
    posterior = build_posterior(spec, dataset, device="cpu")
    n_ladders = min(spec.chains, spec.chains_per_batch)
    n_batches = math.ceil(spec.chains / n_ladders)
    with InProcess():  # one BLAS thread, as workers have
        of_chains = _of_chains(spec, posterior, n_ladders // 2)
        of_ladders = _of_ladders(spec, posterior, n_ladders)
    *warmup, annealed, adapted, kept = (phase.iterations for phase in spec.phase)
    turns = math.ceil(n_batches / max(1, workers))
    before = turns * ((sum(warmup) + annealed) * of_chains + (annealed / 2 + adapted) * of_ladders)
    whole = before + turns * kept * of_ladders
    if whole < LEAST_SECONDS:
        return None
    return Forecast(min(workers, n_batches), whole, before, first_verdict=first_verdict(spec, before, whole))


def _of_chains(spec: RunSpec, posterior: SampledPosterior, n_chains: int) -> float:
    """Return the seconds of an iteration of the default schedule."""
    times = UpdateTimes(posterior, chains=n_chains, sigmas=spec.initial.sigmas, seconds=_SECONDS / 5)
    operations = spec.phase[-1].operations
    tuning = Tuning({operation: first_of_chains(operation) for operation in automatic(operations)})
    return times.iteration([with_numbers(operation, tuning) for operation in unrolled(operations)])


def _of_ladders(spec: RunSpec, posterior: SampledPosterior, n_ladders: int) -> float:
    """Return the seconds of an iteration of all levels of some ladders."""
    path, plan = path_of(posterior), plan_of(spec)
    if plan.levels is None:
        plan = replace(plan, levels=min(_USUAL_LEVELS, plan.most_levels))
    coldest = [round(-2 * math.log(_USUAL_NOISE) * 2**40)] * posterior.n_targets
    settings = first_settings(path.ends, plan, top=coldest if path.ends.kind == "noise" else [], n_chains=1)
    advance = UpdateTimes(posterior, chains=1, sigmas=spec.initial.sigmas, seconds=0.0).advance
    iteration = build(path, spec.phase[-1].operations, settings, n_ladders=n_ladders, advance=advance)
    streams = Streams(spec.seed, np.asarray(rows_of(range(n_ladders), settings.n_levels)))
    chains = posterior.initial_state(streams, sigmas=spec.initial.sigmas)
    state = started(chains, settings.n_levels)
    return timed(lambda: iteration(state, streams.at(iteration=1)), seconds=_SECONDS)
