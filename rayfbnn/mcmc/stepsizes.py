"""The stepsizes of one trajectory or proposal, with their random factor and the tuned factors of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import SamplingError
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
    stepsize: float | Array,
    jitter: float | None,
    streams: Streams,
    scales: tuple[float, ...] = (),
) -> Array:
    """Return the stepsize of every parameter, (n_chains, n_parameters) in the position's dtype.

    Stepsizes depend only on the precisions. If they depended on the position, trajectories would not be
    reversible. `scales` are factors for the groups of coordinates (mcmc/stepsizes.py); empty for none.
    """
    factor = jittered_stepsize(stepsize, jitter, streams)[:, None]
    if scales:
        factor = factor * array_namespace(factor).asarray(of_coordinates(scales, target))
    with np.errstate(all="ignore"):  # stepsizes that overflow end in a rejection, which is counted
        return (factor * target.stepsizes(state.precisions)).astype(state.position.dtype)


def jittered_stepsize(stepsize: float | Array, jitter: float | None, streams: Streams) -> Array:
    """Return the stepsize factor of each chain, (n_chains,) float64, from a number or one for each chain.

    jitter None   stepsize itself
    jitter a > 0  stepsize / sqrt(g),  g ~ Gamma(shape a/2, mean 1)
    jitter -a < 0 stepsize * 10**(a (u - 1/2)),  u uniform: log-uniform over a decades

    This is FBM's `stepsize:alpha`. The factor is drawn once for a whole trajectory and independently of the
    state. The update therefore leaves the distribution invariant for each value of the factor.
    """
    xp = array_namespace(streams.chains)
    if jitter is None:
        return xp.zeros(streams.n_chains) + stepsize
    if jitter > 0:
        log_precision = streams.log_gamma(jitter / 2, Purpose.STEPSIZE) - math.log(jitter / 2)
        return stepsize * xp.exp(-log_precision / 2)
    return stepsize * 10.0 ** (-jitter * (streams.uniform(Purpose.STEPSIZE) - 0.5))


LARGEST = 16.0  # chosen by hand: slopes near zero early on do not always mean that a group moves freely


def group_sizes(target: Target) -> tuple[int, ...]:
    """Return the sizes of the target's groups, in the order of the position; without groups, of ones."""
    sizes: tuple[int, ...] | None = getattr(target, "group_sizes", None)
    return (1,) * target.n_parameters if sizes is None else sizes


def of_coordinates(scales: Sequence[float], target: Target) -> Array:
    """Return the scale of each coordinate, (n_parameters,) on the host, from the scales of the groups.

    Raises SamplingError if the number of scales differs from the number of groups.
    """
    sizes = group_sizes(target)
    if len(scales) != len(sizes):
        raise SamplingError(f"tuning gives {len(scales)} factors for the stepsizes of {len(sizes)} groups")
    return np.repeat(np.asarray(scales, dtype=np.float64), sizes)


def scales_from(means: Sequence[float]) -> tuple[float, ...]:
    """Return the factors that make the groups' means of (s dE/dq)**2 equal.

    The group with the largest mean gets the factor 1, and no factor exceeds LARGEST.
    """
    largest = max(means, default=0.0)
    return tuple(
        math.sqrt(min(largest / mean, LARGEST**2)) if mean > 0 else (LARGEST if largest > 0 else 1.0)
        for mean in means
    )


def mean_squares(target: Target, position: Array, precisions: Array) -> Array:
    """Return the mean of (s dE/dq)**2 over the coordinates of each group, (n_chains, n_groups) float64.

    E is the potential energy and s the heuristic stepsize of a coordinate q. By integration by parts, the
    mean over the posterior is s**2 times the mean curvature along q. Coordinates with a small mean may take
    longer steps. `automatic.fixed_point_sums` counts values that are not finite as 0.
    """
    xp = array_namespace(position)
    with np.errstate(all="ignore"):
        _, gradient = target.potential_and_gradient(position, precisions)
        squares = xp.square(target.stepsizes(precisions) * gradient.astype(xp.float64))
    ends = np.cumsum(group_sizes(target)).tolist()
    return xp.stack(
        [squares[:, first:end].mean(axis=1) for first, end in zip([0, *ends[:-1]], ends, strict=True)], axis=1
    )
