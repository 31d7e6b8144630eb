"""Protocols for compiled code that takes many steps of dynamics with friction in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from rayfbnn.arrays import Array
from rayfbnn.state import Advance, CaseBatches, Target, Trajectory
from rayfbnn.streams import Streams

Integration: TypeAlias = Literal["splitting", "euler", "langevin"]


@dataclass(frozen=True)
class Factors:
    """The factors of a step q += first s p; p = persistence p + noise n; q += second s p; p -= kick s g."""

    first: float
    second: float
    persistence: float
    noise: float
    kick: float


def factors_of(integrator: Integration, eps: float, friction: float) -> Factors:
    """Return the factors of a "splitting" or "euler" step, without an estimate of the gradient's noise."""
    if integrator == "splitting":
        c = math.exp(-friction * eps)
        return Factors(eps / 2, eps / 2, c, math.sqrt(1 - c**2), eps)
    return Factors(eps, 0.0, 1 - eps * friction, math.sqrt(2 * friction * eps), eps)


class FrictionSteps(Protocol):
    """Code that takes the steps of all chains. Its random numbers equal those of array code, to rounding."""

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        factors: Factors,
        streams: Streams,
        n_steps: int,
        batches: CaseBatches | None,
    ) -> tuple[Array, Array]:
        """Return the position and momentum after all n_steps steps of this iteration.

        batches  one batch for each step; an iteration continues where the one before it ended. None for all
                 cases
        """
        ...


@runtime_checkable
class _HasFrictionSteps(Protocol):
    """An `Advance` with code for steps with friction, for some targets."""

    def friction_steps(self, target: Target, batch: int | None) -> FrictionSteps | None:
        """Return the code for batches of at most `batch` cases (None: all cases), or None if it has none."""
        ...


def friction_steps_of(advance: Advance | None, target: Target, batch: int | None) -> FrictionSteps | None:
    """Return the compiled code that takes steps with friction, or None if `advance` has none."""
    return advance.friction_steps(target, batch) if isinstance(advance, _HasFrictionSteps) else None
