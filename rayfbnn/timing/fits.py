"""Says what a fit will take on this machine, from a few steps of its real size."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.model.approximation.posterior import ApproximatedPosterior
from rayfbnn.run.executor import InProcess
from rayfbnn.run.fitting.fits import (
    DRAWS_FOR_BOUND,
    Fit,
    fit_of,
    initial_state,
    posterior_before_fit,
    stepped,
    streams_of,
    with_shortest_steps,
)
from rayfbnn.spec import RunSpec
from rayfbnn.spec.methods import BbbKeys, LaplaceKeys
from rayfbnn.timing.forecast import LEAST_SECONDS
from rayfbnn.timing.results import Forecast
from rayfbnn.timing.steps import timed

if TYPE_CHECKING:
    from rayfbnn.data import Dataset

_STEP_SECONDS, _DENSITY_SECONDS = 0.5, 0.1  # spent on steps, and on the densities of a draw
_UPDATES = 50  # of the precisions by laplace; starts of the robot arm settled after 23 to 80


def fit_forecast(spec: RunSpec, dataset: Dataset, *, workers: int) -> Forecast | None:
    """Return what a fit will take with so many processes, or None for a few seconds or on a GPU.

    A fit that is complete before its last step takes less. The evidence at the end is counted for bbb alone.
    ConfigError, naming the method, if it does not cover the model or the data.
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
    keys, n_starts = spec.fit, min(spec.chains, spec.chains_per_batch)
    assert keys is not None
    fit = with_shortest_steps(fit_of(spec, posterior))
    n_steps, measured = keys.n_steps, n_starts
    if isinstance(keys, LaplaceKeys):
        # A step has many of Gauss-Newton, and starts gain nothing from one another: one of each is measured.
        n_steps, measured = _gauss_newton_steps(keys), 1
    steps = n_steps * _seconds_per_step(spec, fit, measured) * n_starts / measured
    start = posterior.start(streams_of(spec, np.arange(n_starts, dtype=np.uint64)).at(iteration=0))
    position, precisions = start[0].astype(posterior.dtype), start[1]
    density = timed(lambda: posterior.log_likelihood(position, precisions), seconds=_DENSITY_SECONDS)
    bound = DRAWS_FOR_BOUND * density if isinstance(keys, BbbKeys) else 0.0
    return steps + bound, keys.draws * density


def _gauss_newton_steps(keys: LaplaceKeys) -> int:
    """Return how many steps of Gauss-Newton a start of laplace is likely to take."""
    if keys.precisions == "fixed":  # it settles at its first step, which is followed by the last descent
        return 2 * keys.first
    return keys.first + keys.between * (min(keys.steps, _UPDATES) - 1)


def _seconds_per_step(spec: RunSpec, fit: Fit, n_starts: int) -> float:
    """Return the time of a step; the first call is left out where there are more, because it allocates."""
    assert spec.fit is not None
    streams = streams_of(spec, np.arange(n_starts, dtype=np.uint64))
    state, number, first = initial_state(spec, fit, streams), 0, (0.0, 0)
    started_at = time.perf_counter()
    while number < spec.fit.n_steps and not fit.is_complete(state):
        left = spec.fit.n_steps - number
        state, taken = stepped(spec, fit, state, streams.at(iteration=number + 1), most=left)
        number, passed = number + taken, time.perf_counter() - started_at
        if not first[1]:
            first = passed, number
        if passed >= _STEP_SECONDS:
            break
    if number > first[1]:
        return (passed - first[0]) / (number - first[1])
    return passed / number
