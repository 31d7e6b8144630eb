"""The states of ladders as arrays of the store, which has room for the most levels that a ladder may get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.mcmc.ladder.records import LadderState
from rayfbnn.state import ChainState

_EVEN, _ODD = slice(0, None, 2), slice(1, None, 2)  # a batch begins with a ladder of even number


@dataclass(frozen=True)
class WarmUp:
    """The ladders of a batch before their levels exchange anything.

    chains    a row for each ladder of an even number: its chain, which moves towards the posterior
    annealed  a row for each level of each ladder of an odd number, on its way from the prior; None before
              they have levels
    """

    chains: ChainState
    annealed: ChainState | None


def arrays_of(state: WarmUp | LadderState, most_levels: int) -> dict[str, Array]:
    """Return the arrays that the store keeps, (n_ladders, ...) each, with NaN for absent levels."""
    if isinstance(state, WarmUp):
        n_pairs = len(state.chains.position)
        arrays = _empty(state.chains, 2 * n_pairs, most_levels)
        _put(arrays, _EVEN, _by_ladder(state.chains, n_pairs))
        if state.annealed is not None:
            _put(arrays, _ODD, _by_ladder(state.annealed, n_pairs))
        return arrays
    arrays = _empty(state.chain, state.n_ladders, most_levels)
    travels = {name: to_host(getattr(state, name)) for name in ("replica", "end", "trips")}
    _put(arrays, slice(None), _by_ladder(state.chain, state.n_ladders) | travels)
    return arrays


def _empty(like: ChainState, n_ladders: int, most_levels: int) -> dict[str, Array]:
    shapes = {
        "position": (most_levels, like.position.shape[1]),
        "precisions": (most_levels, like.precisions.shape[1]),
        "replica": (most_levels,),
        "end": (most_levels,),
        "trips": (),
    }
    return {name: np.full((n_ladders, *shape), np.nan) for name, shape in shapes.items()}


def _put(arrays: dict[str, Array], ladders: slice, values: Mapping[str, Array]) -> None:
    """Set arrays of some ladders, given for the levels that they have."""
    for name, of_levels in values.items():
        if of_levels.ndim == 1:
            arrays[name][ladders] = of_levels
        else:
            arrays[name][ladders, : of_levels.shape[1]] = of_levels


def _by_ladder(chain: ChainState, n_ladders: int) -> dict[str, Array]:
    """Return positions and precisions with an axis for the ladders, (n_ladders, n_levels, n) on the host."""
    arrays = {"position": to_host(chain.position), "precisions": to_host(chain.precisions)}
    return {name: values.reshape(n_ladders, -1, values.shape[1]) for name, values in arrays.items()}


def warm_up_from(arrays: Mapping[str, Array], n_levels: int | None, *, dtype: str, xp: Any) -> WarmUp:
    """Return the ladders of a warm-up from arrays of the store; None for ladders without levels."""
    chains = _rows(arrays, _EVEN, 1, dtype=dtype, xp=xp)
    return WarmUp(chains, None if n_levels is None else _rows(arrays, _ODD, n_levels, dtype=dtype, xp=xp))


def are_journeys(arrays: Mapping[str, Array], n_levels: int) -> bool:
    """Return True if arrays of the store say where the replicas of ladders with `n_levels` levels have been.

    Every level has one of the replicas, and only the levels that there are have any.
    """
    replica, end, trips = (arrays[name] for name in ("replica", "end", "trips"))
    are_replicas = (np.sort(replica[:, :n_levels], axis=1) == np.arange(n_levels)).all()
    are_ends = np.isin(end[:, :n_levels], (-1, 0, 1)).all()
    are_whole = (trips == np.floor(trips)).all() and ((trips >= 0) & (trips < 2**53)).all()
    return bool(are_replicas and are_ends and are_whole and np.isnan(replica[:, n_levels:]).all())


def ladders_from(arrays: Mapping[str, Array], n_levels: int, *, dtype: str, xp: Any) -> LadderState:
    """Return ladders with `n_levels` levels from arrays of the store."""
    whole = {
        name: xp.asarray(
            arrays[name][:, :n_levels] if arrays[name].ndim > 1 else arrays[name], dtype=xp.int64
        )
        for name in ("replica", "end", "trips")
    }
    return LadderState(_rows(arrays, slice(None), n_levels, dtype=dtype, xp=xp), **whole)


def _rows(arrays: Mapping[str, Array], ladders: slice, n_levels: int, *, dtype: str, xp: Any) -> ChainState:
    """Return the rows of some ladders; their momentum is 0, because each iteration draws another."""
    position, precisions = (arrays[name][ladders, :n_levels] for name in ("position", "precisions"))
    position = xp.ascontiguousarray(xp.asarray(position.reshape(-1, position.shape[2]), dtype=dtype))
    precisions = xp.asarray(precisions.reshape(-1, precisions.shape[2]), dtype=np.float64)
    return ChainState(position, xp.zeros_like(position), xp.ascontiguousarray(precisions))


def alternating(even: LadderState, odd: LadderState) -> LadderState:
    """Return the ladders of even and of odd numbers together, in the order of their numbers."""
    n_ladders = even.n_ladders + odd.n_ladders

    def mixed(ours: Array, theirs: Array) -> Array:
        xp = array_namespace(ours)
        both = xp.empty((n_ladders, *ours.shape[1:]), dtype=ours.dtype)
        both[0::2], both[1::2] = ours, theirs
        return both

    def mixed_rows(name: str) -> Array:
        ours, theirs = (getattr(one.chain, name) for one in (even, odd))
        shape = (-1, even.n_levels, ours.shape[1])
        return mixed(ours.reshape(shape), theirs.reshape(shape)).reshape(-1, ours.shape[1])

    chain = ChainState(*(mixed_rows(name) for name in ("position", "momentum", "precisions")))
    return LadderState(
        chain,
        mixed(even.replica, odd.replica),
        mixed(even.end, odd.end),
        mixed(even.trips, odd.trips),
    )


def tops(state: LadderState) -> ChainState:
    """Return a copy of the rows at the top, one for each ladder."""
    top, chain = slice(state.n_levels - 1, None, state.n_levels), state.chain
    return ChainState(chain.position[top].copy(), chain.momentum[top].copy(), chain.precisions[top].copy())
