"""Updates of the momentum alone: refresh it, draw its length, or reverse it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rayfbnn.arrays import array_namespace
from rayfbnn.mcmc.operation import BuildContext, Operation
from rayfbnn.state import ChainState, Update
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class Heatbath(Operation):
    """Refresh the momentum, partly or wholly.

    decay  factor on the old momentum; with 0, the momentum is drawn independently of the old one
    """

    decay: float = 0.0
    op: ClassVar[str] = "heatbath"
    is_reversible: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: must be at least 0 and below 1, got {self.decay}")

    def build(self, context: BuildContext) -> Update:
        return partial(heatbath, decay=self.decay)

    def description(self) -> str:
        how = f"refresh the momentum with decay {self.decay:g}" if self.decay else "draw a new momentum"
        return f"heatbath: {how}"


def heatbath(state: ChainState, streams: Streams, *, decay: float = 0.0) -> tuple[ChainState, None]:
    """Refresh the momentum: p becomes decay p + sqrt(1 - decay**2) n, where n is standard normal.

    Neal (1996) sec. 3.5.3 (persistence). With decay 0 the old momentum is forgotten.
    """
    noise = streams.normal(Purpose.MOMENTUM, state.momentum.shape[1:])
    momentum = decay * state.momentum + math.sqrt(1 - decay**2) * noise
    momentum = momentum.astype(state.momentum.dtype)
    return ChainState(state.position, momentum, state.precisions), None


@dataclass(frozen=True)
class RadialHeatbath(Operation):
    """Draw a new length for the momentum and keep its direction."""

    op: ClassVar[str] = "radial-heatbath"

    def description(self) -> str:
        return "radial-heatbath: draw a new length of the momentum"

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, None]:
        """Draw |p|**2 from the chi-squared distribution with n_parameters degrees of freedom."""
        xp = array_namespace(state.momentum)
        squares = xp.square(state.momentum.astype(xp.float64)).sum(axis=1)
        new_squares = 2 * xp.exp(streams.log_gamma(state.momentum.shape[1] / 2, Purpose.MOMENTUM))
        factor = xp.sqrt(new_squares / xp.where(squares > 0, squares, 1.0))  # (n_chains,)
        return replace(state, momentum=(factor[:, None] * state.momentum).astype(state.momentum.dtype)), None


@dataclass(frozen=True)
class Negate(Operation):
    """Reverse the momentum. After `hybrid`, the momentum then persists when a proposal is accepted."""

    op: ClassVar[str] = "negate"
    is_reversible: ClassVar[bool] = True

    def description(self) -> str:
        return "negate: reverse the momentum"

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, None]:
        """Reverse the momentum, which `hybrid` reverses on acceptance: the trajectory then continues."""
        return ChainState(state.position, -state.momentum, state.precisions), None
