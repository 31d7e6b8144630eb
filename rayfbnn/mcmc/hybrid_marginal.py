"""Hybrid Monte Carlo with some variables integrated out, which are drawn anew after it."""

from __future__ import annotations

from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import hybrid
from rayfbnn.state import Advance, ChainState, HMCInfo, Marginal
from rayfbnn.streams import Streams


def hybrid_marginal(
    state: ChainState,
    streams: Streams,
    *,
    marginal: Marginal,
    steps: int,
    stepsize: float,
    window: int = 1,
    jump: int = 1,
    partitions: int = 1,
    stepsize_jitter: float | None = None,
    scales: tuple[float, ...] = (),
    advance: Advance = leapfrog.advance,
) -> tuple[ChainState, HMCInfo]:
    """One hybrid Monte Carlo update of the coordinates that are kept, then a draw of all the rest.

    With x kept, y integrated out, and auxiliary variables a such that p(x | a) can be computed:

    a ~ p(a | x, y) ;  x -> x' by an update that leaves p(x | a) as it is ;  y ~ p(y | x', a)

    Each leaves p(x, y, a) as it is, so that p(x, y) stays. The order matters: nothing may look at y between
    the update of x, which does not know it, and its own draw; van Dyk and Park (2008), "Partially collapsed
    Gibbs samplers". The momentum of parameters in y stays as it is.

    Parameters are those of `hmc.hybrid`.
    """
    target = marginal.given(state, streams)
    moved, info = hybrid(
        target.start(state, streams),
        streams,
        target=target,
        steps=steps,
        stepsize=stepsize,
        window=window,
        jump=jump,
        partitions=partitions,
        stepsize_jitter=stepsize_jitter,
        scales=scales,
        advance=advance,
    )
    return target.complete(state, moved, streams), info
