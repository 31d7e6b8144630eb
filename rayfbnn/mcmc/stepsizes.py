"""The stepsizes of one trajectory or proposal, with their random factor."""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.tuning.scaling import of_coordinates
from rayfbnn.state import ChainState, Target
from rayfbnn.streams import Purpose, Streams


def scaled_stepsizes(
    target: Target,
    state: ChainState,
    stepsize: float,
    jitter: float | None,
    streams: Streams,
    scales: tuple[float, ...] = (),
) -> Array:
    """Stepsize of every parameter, (n_chains, n_parameters) in the position's dtype.

    From the precisions alone: dependence on the position would not be reversible. `scales` are factors for
    each group of coordinates (scaling.py), if there are any.
    """
    factor = jittered_stepsize(stepsize, jitter, streams)[:, None]
    if scales:
        factor = factor * array_namespace(factor).asarray(of_coordinates(scales, target))
    with np.errstate(all="ignore"):  # stepsizes that overflow end in a rejection, which is counted
        return (factor * target.stepsizes(state.precisions)).astype(state.position.dtype)


def jittered_stepsize(stepsize: float, jitter: float | None, streams: Streams) -> Array:
    """The stepsize factor of each chain, (n_chains,) float64.

    jitter None   stepsize itself
    jitter a > 0  stepsize / sqrt(g),  g ~ Gamma(shape a/2, mean 1)
    jitter -a < 0 stepsize * 10**(a (u - 1/2)),  u uniform: log-uniform over a decades

    FBM's `stepsize:alpha`. Drawn once for a whole trajectory and independently of the state, so each value
    of it leaves the distribution as it is.
    """
    xp = array_namespace(streams.chains)
    if jitter is None:
        return xp.full(streams.n_chains, float(stepsize))
    if jitter > 0:
        log_precision = streams.log_gamma(jitter / 2, Purpose.STEPSIZE) - math.log(jitter / 2)
        return stepsize * xp.exp(-log_precision / 2)
    return stepsize * 10.0 ** (-jitter * (streams.uniform(Purpose.STEPSIZE) - 0.5))
