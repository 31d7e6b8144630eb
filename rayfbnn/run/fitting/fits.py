"""The fit of an approximation to a run's posterior: checks, construction, and steps with stored results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.approximate.approximation import OBJECTIVE, Approximation, Fit
from rayfbnn.arrays import Array, array_namespace, device_namespace
from rayfbnn.kernels import choose
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.state import Advance
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.catalogue import StateShapes
    from rayfbnn.store.store import Store

_MOST_BINS = 1000  # of the steps; the mean objective of each bin is kept


def posterior_of_fit(store: Store) -> ApproximatedPosterior:
    """Return the posterior that a store's fit approximates, on the run's device."""
    pieces, targets = store.standardized_cases()
    return _posterior(store.spec, pieces, targets)


def posterior_before_fit(spec: RunSpec, dataset: Dataset) -> ApproximatedPosterior:
    """Return the posterior of a fit that has no store yet.

    ConfigError, naming the method or the key, if the approximation does not cover it.
    """
    posterior = _posterior(spec, dataset.standardized_pieces(), dataset.standardized_targets)
    n_together = min(spec.chains, spec.chains_per_batch)
    approximation_of(spec).check_covers(posterior, n_together=n_together)
    return posterior


def _posterior(spec: RunSpec, pieces: Iterable[Array], targets: Array) -> ApproximatedPosterior:
    posterior = ApproximatedPosterior.from_pieces(
        spec.network, spec.model, pieces, targets, dtype=spec.dtype, xp=device_namespace(spec.device)
    )
    return posterior.tempered(1 / spec.temperature)


def approximation_of(spec: RunSpec) -> Approximation:
    """Return the approximation that a run fits; it must be no run of Markov chains."""
    assert spec.fit is not None
    return spec.fit


def build_fit(
    approximation: Approximation, posterior: ApproximatedPosterior, *, recorded: str | None = None
) -> Fit:
    """Build the fit of an approximation to a posterior.

    recorded  name of the kernel that the run started with, which is kept if this machine has it
    """
    return approximation.build(posterior, partial(_advance_for, posterior, recorded))


def _advance_for(posterior: ApproximatedPosterior, recorded: str | None) -> Advance:
    return choose.advance_for(posterior, recorded=recorded)[0]


def checked_state_shapes(spec: RunSpec, dataset: Dataset) -> StateShapes:
    """Return the names and shapes of the arrays of one start's state, without taking a step.

    ConfigError, naming the method or the key, if the approximation does not cover the posterior.
    """
    fit = build_fit(approximation_of(spec), posterior_before_fit(spec, dataset))
    state = initial_state(fit, streams_of(spec, np.zeros(1, dtype=np.uint64)))
    return tuple((name, values.shape[1:]) for name, values in state.items())


def streams_of(spec: RunSpec, chains: Array) -> Streams:
    """Return the random numbers of the starts with these numbers."""
    xp = device_namespace(spec.device)
    return choose.streams_class(spec.device)(spec.seed, xp.asarray(chains))


def initial_state(fit: Fit, streams: Streams) -> dict[str, Array]:
    """Return the state before the first step, with empty bins for the objective, and NaN for the results."""
    xp = array_namespace(streams.chains)
    n_starts = len(streams.chains)
    state = dict(fit.initial(streams.at(iteration=0)))
    state[OBJECTIVE] = xp.full((n_starts, min(fit.settings.n_steps, _MOST_BINS)), xp.nan)
    return state | {name: xp.full(n_starts, xp.nan) for name in fit.results}


def stepped(
    fit: Fit, state: Mapping[str, Array], streams: Streams, *, most: int
) -> tuple[dict[str, Array], int]:
    """Take up to `most` steps, and add the objective of each to the mean of its bin.

    Returns the state, and the number of steps taken: more than one if compiled code takes them together.
    """
    kept = {name: state[name] for name in state if name in (OBJECTIVE, *fit.results)}
    moved, objectives = fit.steps({name: state[name] for name in state if name not in kept}, streams, most)
    kept[OBJECTIVE] = state[OBJECTIVE].copy()
    for number, objective in enumerate(objectives, start=streams.iteration):
        _add_to_bin(kept[OBJECTIVE], number, objective, n_steps=fit.settings.n_steps)
    return {**moved, **kept}, len(objectives)


def _add_to_bin(bins: Array, number: int, objective: Array, *, n_steps: int) -> None:
    """Add the objective (n_starts,) of a step to the mean of its bin; bins is (n_starts, n_bins)."""
    n_bins = bins.shape[1]
    place = (number - 1) * n_bins // n_steps
    first = -(-place * n_steps // n_bins) + 1  # the first step of the bin, counted from 1
    if number == first:
        bins[:, place] = objective
    else:
        bins[:, place] += (objective - bins[:, place]) / (number - first + 1)


def finished(fit: Fit, state: Mapping[str, Array], streams: Streams) -> dict[str, Array]:
    """Return the state after the last step, with the results of the fit."""
    return {**state, **fit.result(state, streams)}
