"""Measurements of trajectories at several lengths, as if they had stopped there.

A round is a number of iterations of every chain with the same settings. The measurements of its trajectories
are summed in whole numbers (measured.py). The order and the grouping of chains, blocks or workers therefore
cannot change a bit. The settings of the next round are a function of the sums of all earlier rounds
(choosing.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operation import AUTO, Settings, Tunable, Tuning
from rayfbnn.mcmc.tuning.measured import Measured, fixed_point_sums
from rayfbnn.mcmc.tuning.scaling import mean_squares
from rayfbnn.mcmc.tuning.settings import lengths
from rayfbnn.state import Advance, ChainState, HMCInfo, Target, Trajectory, Update


@runtime_checkable
class Measurable(Protocol):
    """A target that defines functions of the state. Tuning judges trajectories by how far these move."""

    def quantities(self, position: Array, precisions: Array) -> Array:
        """Return the functions' values, (n_chains, n_quantities) float64, of order one."""
        ...


@dataclass(frozen=True)
class MeasuredInfo(HMCInfo):
    """The info of a measured update, with the sums over its chains."""

    operation: Tunable
    measured: Measured


def tuned_kernel(
    update: Callable[..., tuple[ChainState, HMCInfo]],
    operation: Tunable,
    *,
    tuning: Tuning | None,
    advance: Advance,
) -> Update:
    """Bind an update to its configured or tuned number of steps and stepsize.

    In tuning rounds, trajectories are also measured.
    """
    if not operation.is_automatic:
        return partial(update, steps=operation.steps, stepsize=operation.stepsize, advance=advance)
    if tuning is None or operation not in tuning.settings:
        raise AssertionError(f"{operation.op} has not been tuned")
    settings = tuning.settings[operation]
    bound = partial(update, stepsize=settings.stepsize, scales=settings.scales, advance=advance)
    if tuning.is_measured:
        return partial(bound, steps=settings.longest, measuring=Measuring(operation, settings))
    return partial(bound, steps=settings.steps)


@dataclass(frozen=True)
class Measuring:
    """The measurement of an update with trajectories of settings.longest steps.

    If the number of steps is configured, only the acceptance is measured. With windows, this is the
    acceptance of the windows.
    """

    operation: Tunable
    settings: Settings

    def probe(self, advance: Advance) -> Probe:
        """Return an Advance that measures the next trajectory."""
        at = tuple(length for length in lengths(self.operation) if length <= self.settings.longest)
        is_length_open = self.operation.steps == AUTO
        return Probe(advance, at if is_length_open else (), with_slopes=self.operation.scaling == AUTO)

    def info(self, info: HMCInfo, probe: Probe) -> MeasuredInfo:
        """Return the update's info together with the measurements of the probe."""
        is_length_open = self.operation.steps == AUTO
        measured = probe.measured if is_length_open else _acceptance_alone(info, self.settings.steps)
        if probe.slopes is not None:
            measured = replace(measured, slopes=fixed_point_sums(probe.slopes))
        measured = replace(measured, diverged=int(info.diverged.sum()))
        return MeasuredInfo(info.accepted, info.energy_change, info.diverged, self.operation, measured)


def _acceptance_alone(info: HMCInfo, steps: int) -> Measured:
    xp = array_namespace(info.energy_change)
    accepted = xp.exp(-xp.clip(info.energy_change, 0, None))
    return Measured(len(accepted), (steps,), fixed_point_sums(accepted[:, None]))


class Probe:
    """An Advance that measures one trajectory at several lengths.

    It stops at each length. The state there is the proposal of a trajectory of that length, and so one
    trajectory measures all lengths.

    measured  the sums over the chains, set when the trajectory has been run; unset without lengths
    slopes    scaling.mean_squares at the start of the trajectory, (n_chains, n_groups), if requested
    """

    measured: Measured
    slopes: Array | None = None

    def __init__(self, advance: Advance, at: tuple[int, ...], *, with_slopes: bool = False) -> None:
        """Set up measurements at the ascending lengths `at` of the trajectories that `advance` runs."""
        self._advance, self._at, self._with_slopes = advance, at, with_slopes

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Advance as usual, and measure on the way."""
        if self._with_slopes and self.slopes is None:
            self.slopes = mean_squares(target, trajectory.position, trajectory.precisions)
        if n_steps == 0 or not self._at:
            return self._advance(target, trajectory, n_steps=n_steps, order=order)
        assert n_steps == self._at[-1]
        _, potential = self._advance(target, trajectory, n_steps=0, order=order)
        xp, precisions = array_namespace(trajectory.position), trajectory.precisions
        with np.errstate(all="ignore"):
            quantities = target.quantities if isinstance(target, Measurable) else _all_parameters
            start = quantities(trajectory.position, precisions)
            start_energy = total_energy(potential, trajectory.momentum)
        acceptance, jumps, done = [], [], 0
        for length in self._at:
            trajectory, potential = self._advance(target, trajectory, n_steps=length - done, order=order)
            with np.errstate(all="ignore"):
                energy = total_energy(potential, trajectory.momentum)
                accepted = xp.exp(xp.minimum(0, start_energy - energy))
                change = quantities(trajectory.position, precisions) - start
                # If a trajectory has blown up, its changes are NaN.
                moved = xp.where(accepted[:, None] > 0, accepted[:, None] * xp.square(change), 0.0)
            acceptance.append(accepted)
            jumps.append(moved)
            done = length
        self.measured = Measured(
            len(trajectory.position),
            self._at,
            fixed_point_sums(xp.stack(acceptance, axis=1)),
            tuple(fixed_point_sums(moved) for moved in jumps),
            fixed_point_sums(start),
            fixed_point_sums(xp.square(start)),
        )
        return trajectory, potential


def _all_parameters(position: Array, precisions: Array) -> Array:
    """Return all parameters in float64, the quantities of a target that is not Measurable."""
    return position.astype(array_namespace(position).float64)
