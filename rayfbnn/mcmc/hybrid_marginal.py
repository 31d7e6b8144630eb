"""Hybrid Monte Carlo with some variables integrated out. These are drawn again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol, cast

from rayfbnn.mcmc.hybrid import tuned_hybrid
from rayfbnn.mcmc.leapfrog import Order
from rayfbnn.mcmc.operation import Auto, BuildContext, Tunable
from rayfbnn.state import ChainState, HMCInfo, Marginal, Target, Update
from rayfbnn.streams import Streams


class _MarginalizableTarget(Target, Protocol):
    """A target that can integrate some of its variables out."""

    def marginal(self, over: tuple[str, ...]) -> Marginal:
        """Integrate "outputs", "precisions" or both out, for hybrid-marginal.

        Raises ConfigError if the model does not allow it.
        """


@dataclass(frozen=True)
class HybridMarginal(Tunable):
    """A hybrid Monte Carlo update with some variables integrated out. These are drawn again afterwards.

    over        "outputs": the parameters that feed the outputs; the outputs are linear in them.
                "precisions": the common precisions of groups of Gaussian parameters without precisions of
                units. With both, the precisions of parameters that feed the outputs are not integrated out
                but move with the others
    partitions  must be 1 with "outputs", because that energy is not a sum over cases
    The other settings are those of `Hybrid`.
    """

    longest: ClassVar[int] = 256
    over: tuple[Literal["outputs", "precisions"], ...]
    steps: int | Auto
    stepsize: float | Auto
    window: int = 1
    partitions: int = 1
    stepsize_jitter: float | None = None
    jump: int = 1
    scaling: Auto | None = None
    order: Order | None = None
    op: ClassVar[str] = "hybrid-marginal"
    undivided: ClassVar[str] = (
        "over outputs needs all cases in one place; leave out data.parts, or integrate over precisions alone"
    )

    def __post_init__(self) -> None:
        if not self.over or len(set(self.over)) < len(self.over):
            names = list(self.over)
            raise ValueError(f'over: must name "outputs", "precisions" or both, each only once, got {names}')
        super().__post_init__()
        if self.partitions > 1 and "outputs" in self.over:
            raise ValueError(
                'partitions: must be 1 with over = "outputs", because that energy is not a sum over cases,'
                f" got {self.partitions}; leave it out"
            )

    def build(self, context: BuildContext) -> Update:
        marginal = cast(_MarginalizableTarget, context.target).marginal(self.over)
        return partial(hybrid_marginal, marginal=marginal, trajectory=tuned_hybrid(self, context))

    def why_undivided(self) -> str | None:
        """Say that a regression on the outputs' parameters needs all cases."""
        return super().why_undivided() if "outputs" in self.over else None

    def description(self) -> str:
        return f"hybrid-marginal over {' and '.join(self.over)}: {self.describe_trajectories()}"


def hybrid_marginal(
    state: ChainState,
    streams: Streams,
    *,
    marginal: Marginal,
    trajectory: Callable[..., tuple[ChainState, HMCInfo]],
) -> tuple[ChainState, HMCInfo]:
    """Update the coordinates that are kept by hybrid Monte Carlo, then draw all the others.

    Let x be the coordinates that are kept, and y the ones that are integrated out. The auxiliary variables a
    make p(x | a) computable:

    a ~ p(a | x, y) ;  x -> x' by an update that leaves p(x | a) invariant ;  y ~ p(y | x', a)

    Each step leaves p(x, y, a) invariant, and so the update leaves p(x, y) invariant. The order matters. The
    update of x does not condition on y, so nothing may use y until it is drawn again; van Dyk and Park
    (2008), "Partially collapsed Gibbs samplers". The momentum of parameters in y does not change.

    trajectory  `hybrid.hybrid`, bound to its settings; the info is that of this update
    """
    target = marginal.given(state, streams)
    moved, info = trajectory(target.start(state, streams), streams, target=target)
    return target.complete(state, moved, streams), info
