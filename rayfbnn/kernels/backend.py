"""The interface of a backend, which runs trajectories by code such as compiled C++ or CUDA kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import WholeHybrid
from rayfbnn.state import Advance, Kick, Target

KICK = -1
"""The number of steps that requests one kick by half the stepsizes from a kernel, without a potential."""


@dataclass(frozen=True)
class NotCovered:
    """A backend's answer for a target that it cannot run.

    reason  a few words that can follow a name in brackets, such as "softmax layers"
    """

    reason: str


@dataclass(frozen=True)
class Compiled:
    """A backend's answer for a target that it can run.

    advance  runs the target, and every target that a schedule derives from it: tempered, with other data, or
             with outputs or precisions integrated out. Targets that the backend does not cover run in array
             code.
    name     the name of the kernel that runs the target, for people
    kick     takes one gradient of a posterior; array code unless the backend has something faster
    whole_hybrid  runs whole updates by hybrid Monte Carlo; None if array code makes their choices
    """

    advance: Advance
    name: str
    kick: Kick = leapfrog.kick
    whole_hybrid: WholeHybrid | None = None


class Backend(Protocol):
    """One way to run trajectories. To add another, write it in a new file and list it in choose.backends."""

    @property
    def name(self) -> str:
        """The name that a store records. It is known before the data and the device are."""
        ...

    @property
    def keyword(self) -> str:
        """The value of RAYFBNN_KERNELS that selects this backend, or "" if none does."""
        ...

    def check(self, target: Target) -> NotCovered | None:
        """Return the reason why no device can run the target, or None. This reads no arrays."""
        ...

    def compile(self, target: Target) -> Compiled | NotCovered:
        """Return the code that runs the target, or the reason why this backend cannot run it."""
        ...
