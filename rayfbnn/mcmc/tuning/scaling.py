"""Factors on the heuristic stepsizes of groups of coordinates, computed from slopes at trajectory starts.

Let E be the potential energy and s the stepsize of a coordinate q. By integration by parts, the mean of
(s dE/dq)**2 over the posterior is s**2 times the mean curvature along q. Coordinates with a small mean may
take longer steps. A factor for each group makes these means equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import SamplingError
from rayfbnn.state import Target

LARGEST = 16.0  # chosen by hand: slopes near zero early on do not always mean that a group moves freely


@runtime_checkable
class Grouped(Protocol):
    """A target with coordinates that are grouped by kind."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The number of coordinates of each group, in the order of the position."""
        ...


def group_sizes(target: Target) -> tuple[int, ...]:
    """Return the sizes of the target's groups; without groups, each coordinate is a group of one."""
    return target.group_sizes if isinstance(target, Grouped) else (1,) * target.n_parameters


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

    s is the heuristic stepsize. `measured.fixed_point_sums` counts values that are not finite as 0.
    """
    xp = array_namespace(position)
    with np.errstate(all="ignore"):
        _, gradient = target.potential_and_gradient(position, precisions)
        squares = xp.square(target.stepsizes(precisions) * gradient.astype(xp.float64))
    ends = np.cumsum(group_sizes(target)).tolist()
    return xp.stack(
        [squares[:, first:end].mean(axis=1) for first, end in zip([0, *ends[:-1]], ends, strict=True)], axis=1
    )
