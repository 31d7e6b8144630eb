"""The stepsizes of one trajectory or proposal, with their random factor."""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.tuning.scaling import of_coordinates
from rayfbnn.state import ChainState, Target
from rayfbnn.streams import Purpose, Streams


def check_stepsize(stepsize: float, jitter: float | None = None) -> None:
    """Raise ValueError unless the stepsize is positive and the jitter is absent or valid."""
    if not (stepsize > 0 and math.isfinite(stepsize)):
        raise ValueError(f"stepsize: must be a positive number, got {stepsize}")
    if jitter is not None and (jitter == 0 or not math.isfinite(jitter)):
        raise ValueError(
            f"stepsize_jitter: must be positive (alpha of a Gamma) or negative (decades), got {jitter}"
        )


def describe_stepsize(stepsize: float | str, jitter: float | None) -> str:
    """Describe a stepsize and its jitter in a few words; the stepsize may be "auto"."""
    text = f"stepsize {stepsize:g}" if isinstance(stepsize, int | float) else "automatic stepsize"
    if jitter is None:
        return text
    how = (
        f"log-uniform jitter over {-jitter:g} decades" if jitter < 0 else f"Gamma jitter of alpha {jitter:g}"
    )
    return f"{text} with {how}"


def scaled_stepsizes(
    target: Target,
    state: ChainState,
    stepsize: float,
    jitter: float | None,
    streams: Streams,
    scales: tuple[float, ...] = (),
) -> Array:
    """Return the stepsize of every parameter, (n_chains, n_parameters) in the position's dtype.

    Stepsizes depend only on the precisions. If they depended on the position, trajectories would not be
    reversible. `scales` are factors for the groups of coordinates (mcmc/tuning/scaling.py); empty for none.
    """
    factor = jittered_stepsize(stepsize, jitter, streams)[:, None]
    if scales:
        factor = factor * array_namespace(factor).asarray(of_coordinates(scales, target))
    with np.errstate(all="ignore"):  # stepsizes that overflow end in a rejection, which is counted
        return (factor * target.stepsizes(state.precisions)).astype(state.position.dtype)


def jittered_stepsize(stepsize: float, jitter: float | None, streams: Streams) -> Array:
    """Return the stepsize factor of each chain, (n_chains,) float64.

    jitter None   stepsize itself
    jitter a > 0  stepsize / sqrt(g),  g ~ Gamma(shape a/2, mean 1)
    jitter -a < 0 stepsize * 10**(a (u - 1/2)),  u uniform: log-uniform over a decades

    This is FBM's `stepsize:alpha`. The factor is drawn once for a whole trajectory and independently of the
    state. The update therefore leaves the distribution invariant for each value of the factor.
    """
    xp = array_namespace(streams.chains)
    if jitter is None:
        return xp.full(streams.n_chains, float(stepsize))
    if jitter > 0:
        log_precision = streams.log_gamma(jitter / 2, Purpose.STEPSIZE) - math.log(jitter / 2)
        return stepsize * xp.exp(-log_precision / 2)
    return stepsize * 10.0 ** (-jitter * (streams.uniform(Purpose.STEPSIZE) - 0.5))
