"""Steps of dynamics with friction in place of array code, many in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

from rayfbnn.arrays import Array, stack_alike
from rayfbnn.state import Advance, MinibatchTarget, Target, Trajectory
from rayfbnn.streams import Streams

Integration: TypeAlias = Literal["splitting", "euler", "langevin"]

_STEPS_AT_ONCE = 64  # in a call, so that the numbers of their cases take little memory


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
    """Takes steps of all chains in place of array code; it draws the same random numbers, to rounding."""

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        factors: Factors,
        streams: Streams,
        n_steps: int,
        first_step: int,
        cases: Array | None,
    ) -> tuple[Array, Array]:
        """Return the position and momentum after n_steps steps, of which the first has number first_step.

        cases  (n_steps, n_chains, n), those of each step's batch, or None for all cases
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


def all_steps(
    take_steps: FrictionSteps,
    target: Target,
    start: Trajectory,
    streams: Streams,
    factors: Factors,
    steps: int,
    batch: int | None,
) -> tuple[Array, Array]:
    """Take all steps, as many in a call as have batches of one size, and at most _STEPS_AT_ONCE."""
    if batch is not None:
        cases_of = cast(MinibatchTarget, target).batches(streams, batch)
    first, at, done = (streams.iteration - 1) * steps, start, 0
    while done < steps:
        most = min(steps - done, _STEPS_AT_ONCE)
        together: Array | None = None
        if batch is not None:
            together = stack_alike(cases_of(first + done + k) for k in range(most))
            most = len(together)
        moved = take_steps(
            target, at, factors=factors, streams=streams, n_steps=most, first_step=done, cases=together
        )
        at, done = at.moved(*moved), done + most
    return at.position, at.momentum
