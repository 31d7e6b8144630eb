"""Questions to a part about its cases: sums over them, for each chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.updates.noise_sums import Residuals
from rayfbnn.state import Trajectory
from rayfbnn.streams import Streams


class Cases(Protocol):
    """The cases of a part, as far as questions need them.

    The chains that ask have the numbers `rows` in their batch.
    """

    def data_energy(self, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the part's share of the potential, (n_chains,) float64, +inf where it is not finite."""
        ...

    def residuals(self, rows: Array, position: Array) -> Residuals:
        """Return the residuals of the part's cases."""
        ...

    def kicked(self, rows: Array, chains: Trajectory, over: tuple[str, ...], share: float) -> Array:
        """Return the momentum of chains at rest after the part's share of a kick with the full gradient."""
        ...


class Question(Protocol):
    """A question that every part answers with one array, (n_chains, ...)."""

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the answer of one part."""
        ...


@dataclass(frozen=True)
class DataEnergy:
    """Asks for minus the log likelihood of the part's cases times the inverse temperature, (n_chains,)."""

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the energy, +inf where it is not finite."""
        return cases.data_energy(rows, position, precisions)


@dataclass(frozen=True)
class SquaredResiduals:
    """Asks for the weighted sum of squared residuals of each target, (n_chains, n_targets)."""

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the sums over the part's cases."""
        return cases.residuals(rows, position).sum_of_squares()


@dataclass(frozen=True, eq=False)
class TPrecisions:
    """Asks for sums of precisions that are drawn for single cases of t noise, (n_chains, n_targets).

    current  (n_chains, n_targets): the precisions given which they are drawn
    alpha    degrees of freedom of the noise
    """

    current: Array
    alpha: float
    streams: Streams

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the sums over the part's cases."""
        return cases.residuals(rows, position).sum_of_t_precisions(self.current, self.alpha, self.streams)


@dataclass(frozen=True, eq=False)
class TDensities:
    """Asks for sums of log densities under t noise, (n_chains, n_targets).

    x      (n_chains, n_targets): logs of the precisions
    alpha  degrees of freedom of the noise
    """

    x: Array
    alpha: float

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the sums over the part's cases."""
        return cases.residuals(rows, position).sum_of_t_densities(self.x, self.alpha)


@dataclass(frozen=True, eq=False)
class Kick:
    """Asks for the share of a kick that the part's full gradient has, (n_chains, n_parameters).

    stepsizes  (n_chains, n_parameters)
    over       what is integrated out: ("precisions",), or () for nothing
    share      factor on the stepsizes: 1/2 at either end of a trajectory
    """

    stepsizes: Array
    over: tuple[str, ...]
    share: float

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the change of the momentum, in the dtype of the positions."""
        chains = Trajectory(position, np.zeros_like(position), precisions, self.stepsizes)
        return cases.kicked(rows, chains, self.over, self.share)
