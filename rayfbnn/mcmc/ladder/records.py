"""The records of a ladder: its path of densities, its settings, its state, and one iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import ChainState, LadderEnds, TemperedTarget
from rayfbnn.streams import Streams


@dataclass(frozen=True)
class LadderSettings:
    """The settings of all ladders of a run, which do not change within a round.

    K is the number of levels: number 0 is the hot one, number K-1 the posterior, which is called the top.

    levels       (K-1,) ascending coordinates of the levels below the top (`Path`)
    stepsizes    (K,)   factors on the heuristic stepsizes
    steps        (K,)   numbers of steps of a trajectory
    scales       factors on the stepsizes of groups of coordinates (mcmc/stepsizes.py), or ()
    multipliers  (n_targets,) noise precision of each target, relative to their geometric mean, or ()
    """

    levels: tuple[float, ...]
    stepsizes: tuple[float, ...]
    steps: tuple[int, ...]
    scales: tuple[float, ...] = ()
    multipliers: tuple[float, ...] = ()

    @property
    def n_levels(self) -> int:
        """K, the number of levels with the top."""
        return len(self.levels) + 1


@dataclass(frozen=True)
class LadderState:
    """The state of R whole ladders.

    Row r K + k of the chains is level k of ladder r. Levels stay where they are, and replicas travel.

    chain    the chains, R K rows
    replica  (R, K) int64  number of the replica at each level, from 0 in each ladder
    end      (R, K) int64  the end that this replica visited last: 0 the hot level, 1 the top, -1 neither
    trips    (R,) int64    journeys from the hot level to the top since `started`
    """

    chain: ChainState
    replica: Array
    end: Array
    trips: Array

    @property
    def n_ladders(self) -> int:
        """R, the number of ladders."""
        return int(self.replica.shape[0])

    @property
    def n_levels(self) -> int:
        """K, the number of levels."""
        return int(self.replica.shape[1])


@dataclass(frozen=True)
class LadderInfo:
    """Information on one iteration. Quantities of levels belong to the states before the exchange.

    accepted       (R, K)    whether the trajectory was accepted
    diverged       (R, K)    whether its energy was not finite
    energy_change  (R, K)    of the trajectory
    measure        (R, K)    misfit of the state (`Energies`)
    forward        (R, K-1)  E_{k+1} - E_k at the state of level k
    reverse        (R, K-1)  E_k - E_{k+1} at the state of level k+1
    rejection      (R, K-1)  1 - min(1, r) of each pair, whether tried or not
    exchanged      (R, K-1)  whether levels k and k+1 exchanged their states
    top            (R, n_targets) log noise precisions at the top after the exchange; (R, 0) without noise
    """

    accepted: Array
    diverged: Array
    energy_change: Array
    measure: Array
    forward: Array
    reverse: Array
    rejection: Array
    exchanged: Array
    top: Array


def started(chain: ChainState, n_levels: int) -> LadderState:
    """Return ladders that begin with these chains, whose replicas have not travelled yet."""
    xp = array_namespace(chain.position)
    n_ladders = chain.position.shape[0] // n_levels
    replica = xp.tile(xp.arange(n_levels, dtype=xp.int64), (n_ladders, 1))
    end = xp.full((n_ladders, n_levels), -1, dtype=xp.int64)
    end[:, 0], end[:, -1] = 0, 1
    return LadderState(chain, replica, end, xp.zeros(n_ladders, dtype=xp.int64))


def rows_of(ladders: range, n_levels: int) -> Array:
    """Return the numbers of the random streams of these ladders' rows, ladder * K + level: uint64."""
    return np.arange(ladders.start * n_levels, ladders.stop * n_levels, dtype=np.uint64)


class Energies(Protocol):
    """The energies of the data of some states at any level, with all constants of the likelihood."""

    @property
    def measure(self) -> Array:
        """The misfit of each state, (n_rows,), which does not depend on its level.

        It is the log of the residual sum of squares, the log of the scale of t noise that fits the residuals
        best, or -log likelihood.
        """

    def at(self, x: Array) -> Array:
        """Return each state's energy at the level with coordinate x, both (n_rows,) float64.

        If the noise has no closed integral, this is the energy at the top of a state with a precision.
        """


class Path(Protocol):
    """A path of densities prior * exp(-E_x); the coordinate x rises from the hot level to the posterior."""

    @property
    def ends(self) -> LadderEnds:
        """The quantity that differs between levels, and the coordinate of the posterior."""

    def on_device(self, values: Array) -> Array:
        """Return values of the host where the arrays of the chains are."""

    def with_multipliers(self, multipliers: tuple[float, ...]) -> Path:
        """Return the path on which the noise precision of target t is multipliers[t] * exp(x)."""

    def target(self, x: Array) -> TemperedTarget:
        """Return the density of rows at coordinates x (n_rows,), given their noise precisions."""

    def hot(self, x: float) -> TemperedTarget:
        """Return the density of all rows at one coordinate below the top, given the precisions held there."""

    def placed(self, state: ChainState, x: Array) -> ChainState:
        """Return the state with the noise precisions that the coordinates x (n_rows,) hold."""

    def offered(self, state: ChainState, streams: Streams, *, is_below: Array) -> tuple[ChainState, Energies]:
        """Return the state as it may exchange, and its energies, from one pass through the network.

        A row below the top, which `is_below` (n_rows,) selects, has noise precisions drawn for the top. It
        keeps them if it goes there.
        """

    def log_precisions(self, precisions: Array) -> Array:
        """Return the logs of the targets' noise precisions, (n_rows, n_targets), or (n_rows, 0)."""

    def prior_draw(self, streams: Streams) -> ChainState:
        """Return a draw from the prior for each row, with a momentum."""

    @property
    def sigmas(self) -> tuple[str, ...] | None:
        """The groups whose sigmas a held level draws; None for all."""
