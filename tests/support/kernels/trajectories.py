"""The end of a part of a trajectory as plain arrays, for tests that compare them one by one."""

from __future__ import annotations

from rayfbnn.arrays import Array
from rayfbnn.state import Advance, Target, Trajectory


def end_of(
    advance: Advance, target: Target, start: Trajectory, *, n_steps: int, order: Array | None = None
) -> tuple[Array, Array, Array]:
    """Position, momentum and potential after n_steps steps of `advance`."""
    end, potential = advance(target, start, n_steps=n_steps, order=order)
    return end.position, end.momentum, potential


def chains_of(trajectory: Trajectory, chains: slice) -> Trajectory:
    """Some of the chains of a trajectory."""
    return Trajectory(
        trajectory.position[chains],
        trajectory.momentum[chains],
        trajectory.precisions[chains],
        trajectory.stepsizes[chains],
    )
