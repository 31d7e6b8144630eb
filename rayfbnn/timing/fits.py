"""The forecast of a fit's time on this machine, from a few steps of its real size."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.model.approximation.posterior import ApproximatedPosterior
from rayfbnn.run.executor import InProcess
from rayfbnn.run.fitting.fits import (
    approximation_of,
    build_fit,
    initial_state,
    posterior_before_fit,
    stepped,
    streams_of,
)
from rayfbnn.spec import RunSpec
from rayfbnn.timing.forecast import LEAST_SECONDS
from rayfbnn.timing.results import Forecast
from rayfbnn.timing.steps import timed

if TYPE_CHECKING:
    from rayfbnn.approximate.approximation import Fit
    from rayfbnn.data import Dataset

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
