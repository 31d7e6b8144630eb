"""All operations. An operation listed here can be configured, run, described, counted and tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rayfbnn.mcmc.dynamic import Dynamic
from rayfbnn.mcmc.heatbath import Heatbath, Negate, RadialHeatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.hybrid_max import HybridMax
from rayfbnn.mcmc.metropolis import Metropolis, Metropolis1
from rayfbnn.mcmc.model_updates import RandomGrid, Rescale, SampleNoise, SampleSigmas
from rayfbnn.mcmc.operation import Nesting, Operation, Tuning, gradient_evaluations, unrolled
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.mcmc.slice_1 import Slice1
from rayfbnn.mcmc.tempering.simulated_tempering import SimulatedTempering
from rayfbnn.mcmc.tempering.tempered_transition import TemperedTransition


@dataclass(frozen=True)
class Repeat(Nesting):
    """A group of operations that is run `times` times."""

    times: int
    operations: tuple[Operation, ...]
    op: ClassVar[str] = "repeat"

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times: must be at least 1, got {self.times}")
        self.check_operations()

    def unrolled(self) -> tuple[Operation, ...]:
        return unrolled(self.operations) * self.times

    def gradients(self, tuning: Tuning | None = None) -> int:
        return self.times * gradient_evaluations(self.operations, tuning=tuning)

    def description(self) -> str:
        return f"repeat {self.times} times:"


OPERATIONS: tuple[type[Operation], ...] = (
    SampleSigmas,
    SampleNoise,
    RandomGrid,
    Rescale,
    Heatbath,
    RadialHeatbath,
    Negate,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Dynamic,
    Sghmc,
    Metropolis,
    Metropolis1,
    Slice1,
    SimulatedTempering,
    TemperedTransition,
    Repeat,
)
