"""The contract of a backend: code that runs trajectories, such as compiled C++ or CUDA kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import WholeHybrid
from rayfbnn.state import Advance, Kick, Target

KICK = -1
"""The number of steps that asks a kernel for one kick by half the stepsizes, without a potential."""


@dataclass(frozen=True)
class NotCovered:
    """A backend's answer for a target that it cannot run.

    reason  in a few words that fit in brackets behind a name, such as "softmax layers"
    """

    reason: str


@dataclass(frozen=True)
class Compiled:
    """A backend's answer for a target that it can run.

    advance  runs the target, and every target that a schedule makes of it: tempered, with other data, or with
             outputs or precisions integrated out. Those that the backend does not cover run in array code.
    name     the name of the kernel that runs the target, for people
    kick     takes one gradient of a posterior; array code unless the backend has something quicker
    whole_hybrid  runs whole updates by hybrid Monte Carlo, or None where their choices are array code
    """

    advance: Advance
    name: str
    kick: Kick = leapfrog.kick
    whole_hybrid: WholeHybrid | None = None


class Backend(Protocol):
    """One way to run trajectories. To add another: write a file with one, and name it in choose.backends."""

    @property
    def name(self) -> str:
        """The name that a store records. It is known before there are data or a device."""
        ...

    @property
    def keyword(self) -> str:
        """The value of RAYFBNN_KERNELS that asks for this backend, or "" if there is none."""
        ...

    def check(self, target: Target) -> NotCovered | None:
        """Return the reason why no device would run the target, or None. No array is looked at."""
        ...

    def compile(self, target: Target) -> Compiled | NotCovered:
        """Return the code that runs the target, or the reason why this backend does not."""
        ...
