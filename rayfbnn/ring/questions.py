"""Questions to a part about sums over its cases, for each chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.updates.noise_sums import Residuals
from rayfbnn.state import Trajectory
from rayfbnn.streams import Streams


class Cases(Protocol):
    """The part of a Part's interface that questions use.

    The asking chains have the numbers `rows` in their batch.
    """

    def data_energy(self, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the part's share of the potential, (n_chains,) float64, +inf where it is not finite."""
        ...

    def residuals(self, rows: Array, position: Array) -> Residuals:
        """Return the residuals of the part's cases."""
        ...

    def log_densities(self, rows: Array, position: Array, log_precisions: Array) -> Array:
        """Return the sum of the log densities of each target, (n_chains, n_targets)."""
        ...

    def kicked(self, rows: Array, chains: Trajectory, over: tuple[str, ...], share: float) -> Array:
        """Return the momentum of chains at rest after the part's share of a kick by the full gradient."""
        ...


class Question(Protocol):
    """A question that every part answers with one array, (n_chains, ...)."""

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the answer of one part."""
        ...


@dataclass(frozen=True)
class DataEnergy:
    """The question for minus the part's log likelihood times the inverse temperature, (n_chains,)."""

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the energy, +inf where it is not finite."""
        return cases.data_energy(rows, position, precisions)


@dataclass(frozen=True)
class SquaredResiduals:
    """The question for the weighted sum of squared residuals of each target, (n_chains, n_targets)."""

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the sums over the part's cases."""
        return cases.residuals(rows, position).sum_of_squares()


@dataclass(frozen=True, eq=False)
class TPrecisions:
    """The question for sums of precisions drawn for single cases of t noise, (n_chains, n_targets).

    current  (n_chains, n_targets): the precisions that these draws are conditional on
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
    """The question for sums of log densities under t noise, (n_chains, n_targets).

    x      (n_chains, n_targets): logs of the precisions
    alpha  degrees of freedom of the noise
    """

    x: Array
    alpha: float

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the sums over the part's cases."""
        return cases.residuals(rows, position).sum_of_t_densities(self.x, self.alpha)


@dataclass(frozen=True, eq=False)
class TargetDensities:
    """The question for sums of log densities of counts given their shapes, (n_chains, n_targets).

    x  (n_chains, n_targets): logs of the shapes
    """

    x: Array

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the sums over the part's cases."""
        return cases.log_densities(rows, position, self.x)


@dataclass(frozen=True, eq=False)
class Kick:
    """The question for the part's share of a kick by the full gradient, (n_chains, n_parameters).

    stepsizes  (n_chains, n_parameters)
    over       the variables that are integrated out: ("precisions",), or () for none
    share      factor on the stepsizes: 1/2 at either end of a trajectory
    """

    stepsizes: Array
    over: tuple[str, ...]
    share: float

    def answer(self, cases: Cases, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the change of the momentum, in the dtype of the positions."""
        chains = Trajectory(position, np.zeros_like(position), precisions, self.stepsizes)
        return cases.kicked(rows, chains, self.over, self.share)
