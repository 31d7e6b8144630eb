"""Scales of groups of coordinates beside the heuristic stepsizes, found from slopes where trajectories begin.

With E the potential energy and s the stepsize of a coordinate q, the mean of (s dE/dq)**2 over the
posterior is s**2 times the mean curvature along q (integrate by parts). Where it is smaller than elsewhere,
steps may be longer: a factor for each group evens these means out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import Advance, Target, Trajectory

LARGEST = 16.0  # chosen: slopes near zero, early on, need not mean that a group is free


@runtime_checkable
class Grouped(Protocol):
    """A target that says which of its coordinates are of one kind."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """How many coordinates each group has, in the order of the position."""
        ...


def group_sizes(target: Target) -> tuple[int, ...]:
    """The target's own groups, or each coordinate by itself."""
    return target.group_sizes if isinstance(target, Grouped) else (1,) * target.n_parameters


def of_coordinates(scales: Sequence[float], target: Target) -> Array:
    """The scale of each coordinate from those of the groups, (n_parameters,) on the host."""
    return np.repeat(np.asarray(scales, dtype=np.float64), group_sizes(target))


def scales_from(mean_squares: Sequence[float]) -> tuple[float, ...]:
    """Factors that even the groups' means of (s dE/dq)**2 out: 1 for the largest, at most 16 for others."""
    largest = max(mean_squares, default=0.0)
    return tuple(
        math.sqrt(min(largest / each, LARGEST**2)) if each > 0 else (LARGEST if largest > 0 else 1.0)
        for each in mean_squares
    )


class SlopesProbe:
    """An Advance that looks at the slopes where a trajectory begins.

    mean_squares  of heuristic stepsize times slope, over the coordinates of each group, (n_chains, n_groups)
                  float64
    """

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self.mean_squares: Array | None = None

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        if self.mean_squares is None:
            self.mean_squares = _mean_squares(target, trajectory.position, trajectory.precisions)
        return self._advance(target, trajectory, n_steps=n_steps, order=order)


def _mean_squares(target: Target, position: Array, precisions: Array) -> Array:
    xp = array_namespace(position)
    with np.errstate(all="ignore"):  # what is not finite is left out of the sums
        _, gradient = target.potential_and_gradient(position, precisions)
        squares = xp.square(target.stepsizes(precisions) * gradient.astype(xp.float64))
    ends = np.cumsum(group_sizes(target)).tolist()
    return xp.stack(
        [squares[:, first:end].mean(axis=1) for first, end in zip([0, *ends[:-1]], ends, strict=True)], axis=1
    )
