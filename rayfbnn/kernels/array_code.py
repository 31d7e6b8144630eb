"""The backend that covers every target: leapfrog steps in array code, of NumPy or CuPy."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.mcmc import leapfrog
from rayfbnn.state import Target


@dataclass(frozen=True)
class ArrayCode:
    """The backend that runs what no kernel covers.

    why_forced  the reason in brackets behind the name where RAYFBNN_KERNELS asks for array code
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
        """Return the name that a store records where a kernel could not be used."""
        return f"{self.name} ({reason.reason})"
