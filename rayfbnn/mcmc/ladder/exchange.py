"""The exchange of states between neighbouring levels of each ladder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.mcmc.ladder.path import Energies
from rayfbnn.mcmc.ladder.records import LadderState
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True, eq=False)
class Differences:
    """Differences of energies between neighbouring levels, (n_ladders, K-1) float64 each.

    forward  E_{k+1} - E_k at the state of level k
    reverse  E_k - E_{k+1} at the state of level k+1
    """

    forward: Array
    reverse: Array

    @staticmethod
    def of(energies: Energies, x: Array) -> Differences:
        """Return the differences for states at coordinates x (n_ladders, K)."""
        n_ladders, n_levels = x.shape
        colder = array_namespace(x).concatenate([x[:, 1:], x[:, -1:]], axis=1)
        hotter = array_namespace(x).concatenate([x[:, :1], x[:, :-1]], axis=1)

        def at(coordinates: Array) -> Array:
            return finite_or_infinite(energies.at(coordinates.reshape(-1))).reshape(n_ladders, n_levels)

        own, above, below = at(x), at(colder), at(hotter)
        with np.errstate(invalid="ignore"):
            return Differences((above - own)[:, :-1], (below - own)[:, 1:])

    @property
    def log_ratio(self) -> Array:
        """The log of the ratio that an exchange is accepted with; -inf if an energy is not finite.

        log r = E_k(x_k) + E_{k+1}(x_{k+1}) - E_k(x_{k+1}) - E_{k+1}(x_k)
        """
        xp = array_namespace(self.forward)
        with np.errstate(invalid="ignore"):
            ratio = -(self.forward + self.reverse)
        return xp.where(xp.isnan(ratio), -xp.inf, ratio)

    @property
    def rejection(self) -> Array:
        """1 - min(1, r) of every pair, tried or not."""
        xp = array_namespace(self.forward)
        return -xp.expm1(xp.minimum(self.log_ratio, 0.0))


def tried(n_levels: int, iteration: int) -> Array:
    """Return which pairs (k, k+1) are tried in an iteration, (K-1,) bool: the even and the odd ones in turn.

    A state that is accepted goes on in its direction. Syed, Bouchard-Cote, Deligiannidis and Doucet (2022),
    "Non-reversible parallel tempering", section 3.
    """
    is_tried: Array = np.arange(n_levels - 1) % 2 == iteration % 2
    return is_tried


def exchange(
    state: LadderState, energies: Energies, x: Array, streams: Streams
) -> tuple[LadderState, Differences, Array]:
    """Exchange neighbours, each pair with probability min(1, r); return also differences and exchanges.

    In iterations that do not try the pair at the top, the top then tries to exchange with another level. A
    state whose noise is not that of the last held level would otherwise stay at the top.

    energies  of the states
    x         (n_ladders, K) coordinates of the levels
    """
    xp = array_namespace(x)
    differences = Differences.of(energies, x)
    log_uniforms = xp.log(streams.uniform(Purpose.ACCEPT).reshape(x.shape))
    on_host = tried(x.shape[1], streams.iteration)
    # The uniform number of a pair is that of its hotter row.
    exchanged = xp.asarray(on_host) & (log_uniforms[:, :-1] < differences.log_ratio)
    source = xp.tile(xp.arange(x.shape[1]), (len(x), 1))  # the level that each level's state comes from
    source[:, :-1] += exchanged
    source[:, 1:] -= exchanged
    if not on_host[-1]:
        source = _with_top(source, energies, x, log_uniforms[:, -1], streams)
    return _moved(state, source), differences, exchanged


def _with_top(source: Array, energies: Energies, x: Array, log_uniform: Array, streams: Streams) -> Array:
    """Exchange the top with a level from the colder half, drawn independently of the states.

    source, and the result  (n_ladders, K) the level that each level's state comes from
    """
    n_ladders, n_levels = x.shape
    xp, ladders = array_namespace(x), array_namespace(x).arange(n_ladders)
    first = (n_levels - 1) // 2
    uniform = streams.uniform(Purpose.COORDINATE)[::n_levels]
    level = first + xp.floor(uniform * (n_levels - 1 - first)).astype(xp.int64)
    other = x.copy()
    other[ladders, level], other[:, -1] = x[:, -1], x[ladders, level]
    moved = energies.taken(_rows(source))
    own, there = (finite_or_infinite(moved.at(one.reshape(-1))).reshape(x.shape) for one in (x, other))
    with np.errstate(invalid="ignore"):
        log_ratio = (own - there)[ladders, level] + (own - there)[:, -1]
    is_exchanged = log_uniform < xp.where(xp.isnan(log_ratio), -xp.inf, log_ratio)
    swapped = source.copy()
    swapped[:, -1] = xp.where(is_exchanged, source[ladders, level], source[:, -1])
    swapped[ladders, level] = xp.where(is_exchanged, source[:, -1], source[ladders, level])
    return swapped


def _rows(source: Array) -> Array:
    """Return the rows of the states that come from these levels (n_ladders, K)."""
    xp = array_namespace(source)
    return (source + source.shape[1] * xp.arange(len(source))[:, None]).reshape(-1)


def _moved(state: LadderState, source: Array) -> LadderState:
    """Return the ladders with the state of level source[r, k] at level k of ladder r."""
    xp, rows = array_namespace(source), _rows(source)
    chain = ChainState(state.chain.position[rows], state.chain.momentum[rows], state.chain.precisions[rows])
    replica = xp.take_along_axis(state.replica, source, axis=1)
    return _with_ends(
        replace(state, chain=chain, replica=replica), xp.take_along_axis(state.end, source, axis=1)
    )


def _with_ends(state: LadderState, end: Array) -> LadderState:
    """Return the state with the ends that its replicas visited last, and with journeys to the top counted."""
    end = end.copy()
    trips = state.trips + (end[:, -1] == 0)
    end[:, 0], end[:, -1] = 0, 1
    return replace(state, end=end, trips=trips)
