"""The backend that covers every target: leapfrog steps in array code with NumPy or CuPy."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.mcmc import leapfrog
from rayfbnn.state import Target


@dataclass(frozen=True)
class ArrayCode:
    """The backend that runs targets that no kernel covers.

    why_forced  the reason that follows the name in brackets if RAYFBNN_KERNELS selects array code
    """

    name: str
    why_forced: str
    keyword: str = "plain"

    def check(self, target: Target) -> NotCovered | None:
        """Return None, because array code runs every target."""
        return None

    def compile(self, target: Target) -> Compiled:
        """Return the plain leapfrog."""
        return Compiled(leapfrog.advance, self.name)

    def name_with(self, reason: NotCovered) -> str:
        """Return the name that a store records when no kernel could be used."""
        return f"{self.name} ({reason.reason})"
