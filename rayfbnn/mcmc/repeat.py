"""A group of operations that is repeated several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rayfbnn.mcmc.operation import BuildContext, Operation, Tuning, gradient_evaluations, unrolled
from rayfbnn.state import Update


@dataclass(frozen=True)
class Repeat(Operation):
    """A group of operations that is run `times` times."""

    times: int
    operations: tuple[Operation, ...]
    op: ClassVar[str] = "repeat"

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.times < 1:
            raise ValueError(f"times: must be at least 1, got {self.times}")
        if not self.operations:
            raise ValueError("operations: must name at least one operation, got none")

    @property
    def inner(self) -> tuple[Operation, ...]:
        """The operations that are repeated."""
        return self.operations

    def unrolled(self) -> tuple[Operation, ...]:
        """Return the operations, repeated `times` times."""
        return unrolled(self.operations) * self.times

    def build(self, context: BuildContext) -> Update:
        """Never called: an iteration holds the updates of the repeated operations."""
        raise AssertionError("repeat is written out by `unrolled`")

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradient evaluations of all repetitions."""
        return self.times * gradient_evaluations(self.operations, tuning=tuning)

    def description(self) -> str:
        """Say how often the operations are repeated."""
        return f"repeat {self.times} times:"
