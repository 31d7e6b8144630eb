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


def tried(n_levels: int, iteration: int) -> np.ndarray:
    """Return which pairs (k, k+1) are tried in an iteration, (K-1,) bool: the even and the odd ones in turn.

    A state that is accepted goes on in its direction. Syed, Bouchard-Cote, Deligiannidis and Doucet (2022),
    "Non-reversible parallel tempering", section 3.
    """
    return np.arange(n_levels - 1) % 2 == iteration % 2


def exchange(
    state: LadderState, differences: Differences, streams: Streams
) -> tuple[LadderState, Array, Array]:
    """Exchange neighbours, each pair with probability min(1, r); return also rejections and exchanges.

    The rejection 1 - min(1, r) is that of every pair. The uniform number of a pair is that of its hotter row.
    """
    xp = array_namespace(state.replica)
    shape = state.n_ladders, state.n_levels
    log_ratio = differences.log_ratio
    uniforms = streams.uniform(Purpose.ACCEPT).reshape(shape)[:, :-1]
    is_tried = xp.asarray(tried(state.n_levels, streams.iteration))
    exchanged = is_tried & (xp.log(uniforms) < log_ratio)
    rejection = -xp.expm1(xp.minimum(log_ratio, 0.0))
    return _exchanged(state, exchanged), rejection, exchanged


def _exchanged(state: LadderState, exchanged: Array) -> LadderState:
    """Return the ladders after the exchanges (n_ladders, K-1), of which no two share a level."""
    xp = array_namespace(exchanged)
    n_ladders, n_levels = state.n_ladders, state.n_levels
    nothing = xp.zeros((n_ladders, 1), dtype=xp.int64)
    step = exchanged.astype(xp.int64)
    source = xp.arange(n_levels) + xp.concatenate([step, nothing], axis=1)
    source = source - xp.concatenate([nothing, step], axis=1)  # the level that each level's state comes from
    rows = (source + n_levels * xp.arange(n_ladders)[:, None]).reshape(-1)
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
