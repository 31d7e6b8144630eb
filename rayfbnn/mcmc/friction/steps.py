"""Steps of dynamics with friction in place of array code, many in one call."""

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
    """The numbers of steps q += first s p; p = persistence p + noise n; q += second s p; p -= kick s g(q)."""

    first: float
    second: float
    persistence: float
    noise: float
    kick: float


def factors_of(integrator: Integration, eps: float, friction: float) -> Factors:
    """Return the numbers of a step by "splitting" or "euler" without an estimate of the gradient's noise."""
    if integrator == "splitting":
        c = math.exp(-friction * eps)
        return Factors(eps / 2, eps / 2, c, math.sqrt(1 - c**2), eps)
    return Factors(eps, 0.0, 1 - eps * friction, math.sqrt(2 * friction * eps), eps)


class FrictionSteps(Protocol):
    """Takes the steps of all chains in place of array code; it draws the same random numbers, to rounding."""

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
        """Return the position and momentum after n_steps steps, all those of this iteration.

        batches  the steps' own, each iteration going on where the one before it ended; None for all cases
        """
        ...


@runtime_checkable
class HasFrictionSteps(Protocol):
    """An `Advance` that takes steps with friction for some targets."""

    def friction_steps(self, target: Target, batch: int | None) -> FrictionSteps | None:
        """Return the code for batches of at most so many cases (None: all), or None if there is none."""
        ...


def friction_steps_of(advance: Advance | None, target: Target, batch: int | None) -> FrictionSteps | None:
    """Return the code that takes steps with friction in place of array code, or None."""
    return advance.friction_steps(target, batch) if isinstance(advance, HasFrictionSteps) else None
