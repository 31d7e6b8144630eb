"""The fit of an approximation to a run's posterior: how it is made, refused, and summed up at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.special import gammaln

from rayfbnn.approximate.descent import Descent
from rayfbnn.approximate.laplace import MOST_PARAMETERS, Laplace
from rayfbnn.approximate.propagation import Propagation, bytes_of_sites
from rayfbnn.approximate.variational import HasVariationalSteps, Variational
from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.memory import check_memory
from rayfbnn.model.approximation.posterior import ApproximatedPosterior
from rayfbnn.spec.methods import BbbKeys, LaplaceKeys, MapKeys, VepKeys
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.catalogue import StateShapes
    from rayfbnn.store.store import Store

MOST_BINS = 1000  # of the steps, for each of which the mean objective is kept
DRAWS_FOR_BOUND = 1000  # of each start, with which bbb estimates its bound at the end
OBJECTIVE, LOG_EVIDENCE, LEAST_EIGENVALUE = "objective", "log_evidence", "least_eigenvalue"
_COPIES_OF_MATRIX = 4  # that a Gauss-Newton step holds at once: the curvature, its parts, and what is solved


class Fit(Protocol):
    """An approximation whose starts are the chain axis; its state is a mapping of arrays (n_starts, ...)."""

    def initial(self, streams: Streams) -> Mapping[str, Array]:
        """Return the state before the first step."""
        ...

    def step(self, state: Any, streams: Streams) -> tuple[Mapping[str, Array], Any]:
        """Take step streams.iteration, counted from 1; the info has `objective` (n_starts,)."""
        ...

    def is_complete(self, state: Any) -> bool:
        """Return True if further steps would change nothing that matters."""
        ...

    def draws(self, state: Any, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Draw n positions and precisions of every start, with log densities (n_starts, n) of positions."""
        ...


def posterior_of_fit(store: Store) -> ApproximatedPosterior:
    """Return the posterior of a store that a fit approximates, on the run's device."""
    pieces, targets = store.standardized_cases()
    return _posterior(store.spec, pieces, targets)


def posterior_before_fit(spec: RunSpec, dataset: Dataset) -> ApproximatedPosterior:
    """Return the posterior of a fit that has no store yet; ConfigError, naming the method, if not covered."""
    posterior = _posterior(spec, dataset.standardized_pieces(), dataset.standardized_targets)
    _check_covered(spec, posterior)
    return posterior


def _posterior(spec: RunSpec, pieces: Iterable[Array], targets: Array) -> ApproximatedPosterior:
    posterior = ApproximatedPosterior.from_pieces(
        spec.network, spec.model, pieces, targets, dtype=spec.dtype, xp=device_namespace(spec.device)
    )
    return posterior.tempered(1 / spec.temperature)


def fit_of(spec: RunSpec, posterior: ApproximatedPosterior, *, recorded: str | None = None) -> Fit:
    """Return the fit of a run's method.

    recorded  the name of the kernel that the run started with, which is kept where this machine has it
    """
    keys = spec.fit
    if isinstance(keys, LaplaceKeys):
        return Laplace(posterior, keys.settings)
    if isinstance(keys, BbbKeys):
        advance, _ = choose.advance_for(posterior, recorded=recorded)
        if not isinstance(advance, HasVariationalSteps):
            return Variational(posterior, keys.settings)
        return Variational(
            posterior, keys.settings, advance.variational_steps(posterior, keys.settings.batch)
        )
    if isinstance(keys, MapKeys):
        return Descent(posterior, keys.settings)
    assert isinstance(keys, VepKeys)
    return Propagation(posterior, keys.settings)


def with_shortest_steps(fit: Fit) -> Fit:
    """Return the fit with steps as short as they can be: for laplace, one of Gauss-Newton in each."""
    if not isinstance(fit, Laplace):
        return fit
    return replace(fit, settings=replace(fit.settings, first=1, between=1))


def checked_state_shapes(spec: RunSpec, dataset: Dataset) -> StateShapes:
    """Return the arrays of the state of one start; ConfigError, naming the method, if it does not apply.

    Nothing is created, and no step is taken.
    """
    fit = fit_of(spec, posterior_before_fit(spec, dataset))
    state = initial_state(spec, fit, streams_of(spec, np.zeros(1, dtype=np.uint64)))
    return tuple((name, values.shape[1:]) for name, values in state.items())


def streams_of(spec: RunSpec, chains: Array) -> Streams:
    """Return the random numbers of the starts with these numbers."""
    xp = device_namespace(spec.device)
    return choose.streams_class(spec.device)(spec.seed, xp.asarray(chains))


def initial_state(spec: RunSpec, fit: Fit, streams: Streams) -> dict[str, Array]:
    """Return the state of a fit before its first step, with what is kept of its course."""
    xp = array_namespace(streams.chains)
    assert spec.fit is not None
    n_starts = len(streams.chains)
    state = dict(fit.initial(streams.at(iteration=0)))
    state[OBJECTIVE] = xp.full((n_starts, min(spec.fit.n_steps, MOST_BINS)), xp.nan)
    state[LOG_EVIDENCE] = xp.full(n_starts, xp.nan)
    if isinstance(fit, Laplace):
        state[LEAST_EIGENVALUE] = xp.full(n_starts, xp.nan)
    return state


def stepped(
    spec: RunSpec, fit: Fit, state: Mapping[str, Array], streams: Streams, *, most: int
) -> tuple[dict[str, Array], int]:
    """Take up to `most` steps, and add the objective of each to the mean of the steps of its bin.

    Returns the state, and the number of steps taken: more than one where compiled code takes them together.
    """
    of_fit = {name: state[name] for name in state if name not in _KEPT}
    if isinstance(fit, Variational):
        moved, objectives = fit.steps(of_fit, streams, most)
    else:
        moved, info = fit.step(of_fit, streams)
        objectives = info.objective[None]
    kept = {name: state[name] for name in state if name in _KEPT}
    kept[OBJECTIVE] = state[OBJECTIVE].copy()
    for number, objective in enumerate(objectives, start=streams.iteration):
        _add_to_bin(spec, kept[OBJECTIVE], number, objective)
    return {**moved, **kept}, len(objectives)


def _add_to_bin(spec: RunSpec, bins: Array, number: int, objective: Array) -> None:
    """Add the objective (n_starts,) of a step to the mean of its bin; bins is (n_starts, n_bins)."""
    assert spec.fit is not None
    n_steps, n_bins = spec.fit.n_steps, bins.shape[1]
    place = (number - 1) * n_bins // n_steps
    first = -(-place * n_steps // n_bins) + 1  # the first step of the bin, counted from 1
    if number == first:
        bins[:, place] = objective
    else:
        bins[:, place] += (objective - bins[:, place]) / (number - first + 1)


def finished(fit: Fit, state: Mapping[str, Array], streams: Streams) -> dict[str, Array]:
    """Return the state after the last step, with the log evidence as far as the method has one."""
    if isinstance(fit, Laplace):
        modes = fit.modes(state)
        return {**state, LOG_EVIDENCE: modes.log_evidence, LEAST_EIGENVALUE: modes.least_eigenvalue}
    if isinstance(fit, Variational):
        return {**state, LOG_EVIDENCE: fit.bound(state, streams, n=DRAWS_FOR_BOUND)[0]}
    if isinstance(fit, Propagation) and fit.settings.mode == "sites":
        return {**state, LOG_EVIDENCE: fit.log_evidence(state)}
    return dict(state)


def log_density_of_precisions(state: Mapping[str, Array], precisions: Array) -> Array:
    """Return log q(tau) of drawn precisions (n_starts, n, n_precisions), summed: (n_starts, n), on the host.

    q is the product of the Gamma distributions in the state. Precisions without one are constants, which
    count as density 1.
    """
    precisions = to_host(precisions)
    if "shape" not in state:
        return np.zeros(precisions.shape[:2])
    shape, rate = to_host(state["shape"])[:, None], to_host(state["rate"])[:, None]
    is_gamma = np.isfinite(shape)
    shape, rate = np.where(is_gamma, shape, 1.0), np.where(is_gamma, rate, 1.0)
    terms = shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(precisions) - rate * precisions
    return np.where(is_gamma, terms, 0.0).sum(axis=2)


_KEPT = (OBJECTIVE, LOG_EVIDENCE, LEAST_EIGENVALUE)


def _check_covered(spec: RunSpec, posterior: ApproximatedPosterior) -> None:
    """Raise ConfigError if the method does not cover the model or the data."""
    keys, method = spec.fit, f"method {spec.method}"
    if isinstance(keys, LaplaceKeys):
        reason, n = posterior.why_not_curved, posterior.n_parameters
        if n > MOST_PARAMETERS:
            raise ConfigError(
                f"{method}: covers at most {MOST_PARAMETERS} parameters, whose curvature is a matrix, and the"
                f" network has {n}; use bbb"
            )
        check_memory(
            "methods.laplace.starts",
            min(keys.starts, spec.chains_per_batch),
            8 * _COPIES_OF_MATRIX * n**2,
        )
    elif isinstance(keys, BbbKeys):
        # Precisions that stay at their means need no distribution.
        reason = posterior.why_not_expected if keys.precisions == "expected" else None
        if keys.batch is not None and keys.batch > posterior.n_cases:
            raise ConfigError(
                f"methods.bbb.batch: must be at most {posterior.n_cases}, the number of training cases, got"
                f" {keys.batch}; leave it out for all cases"
            )
    elif isinstance(keys, MapKeys):
        reason = posterior.why_not_expected if keys.precisions == "expected" else None
        if keys.validation and posterior.n_cases < 2:
            raise ConfigError("methods.map.validation: needs at least 2 training cases, and there is 1")
    else:
        assert isinstance(keys, VepKeys)
        reason = posterior.why_not_propagated
        if keys.mode == "sites":
            bytes_of_start = bytes_of_sites(posterior.n_cases, posterior.n_parameters)
            check_memory("methods.vep.starts", min(keys.starts, spec.chains_per_batch), 3 * bytes_of_start)
    if reason is not None:
        raise ConfigError(f"{method}: {reason}")
