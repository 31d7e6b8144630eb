"""The kinds of trajectories in the operations of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rayfbnn.mcmc.compositions import COMPOSITIONS
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.operation import Integrator, Operation, TrajectoryOperation, unrolled


@dataclass(frozen=True)
class TrajectoryKind:
    """The properties of a trajectory that determine the time of its steps.

    name        the name of the kind in a table
    over        the variables that hybrid-marginal integrates out
    partitions  number of blocks of cases; each step has a partial gradient for each block
    """

    name: str = ""
    over: tuple[Literal["outputs", "precisions"], ...] = ()
    partitions: int = 1
    integrator: Integrator = "leapfrog"

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients in one step, each over 1/partitions of the cases."""
        return self.partitions * COMPOSITIONS[self.integrator].gradients_per_step


HYBRID = TrajectoryKind()


def trajectory_kinds(operations: Sequence[Operation]) -> tuple[TrajectoryKind, ...]:
    """Return the distinct kinds in the operations and in the operations inside them, in order."""
    kinds: dict[TrajectoryKind, None] = {}
    for operation in unrolled(tuple(operations)):
        if isinstance(operation, HybridMarginal):
            n = operation.partitions
            name = f"{operation.op} over {' and '.join(operation.over)}{_partial(n)}"
            kinds[TrajectoryKind(name, operation.over, n)] = None
        elif isinstance(operation, TrajectoryOperation):
            n, integrator = operation.partitions, operation.integrator
            suffix = _partial(n) if integrator == "leapfrog" else f", {integrator}"
            kinds[TrajectoryKind(operation.op + suffix, partitions=n, integrator=integrator)] = None
        kinds |= dict.fromkeys(trajectory_kinds(operation.inner))
    return tuple(kinds)


def _partial(partitions: int) -> str:
    return f", {partitions} partitions" if partitions > 1 else ""
