"""Measurements of trajectories at several lengths, as if they had stopped there, and sums over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operation import AUTO, Settings, Tunable, Tuning
from rayfbnn.mcmc.stepsizes import mean_squares
from rayfbnn.mcmc.tuning.settings import lengths
from rayfbnn.state import Advance, ChainState, HMCInfo, Target, Trajectory, Update

BITS = 40  # the unit of the sums is 2**-40
_LARGEST = 2.0**50  # the limit for a single value; the sum of 2**12 values of this size still fits 63 bits


@dataclass(frozen=True)
class Measured:
    """Sums over trajectories. All but the two counts are in units of 2**-40.

    trajectories  the number of trajectories
    lengths       the numbers of steps at the measurements
    acceptance    for each length, the sum of a = min(1, exp(-change in energy))
    jumps         for each length and each quantity, the sum of a times the squared change of the quantity
    sums, squares for each quantity, the sum of its values and of the squares at the start of trajectories
    slopes        for each group, the sum of stepsizes.mean_squares; empty unless scales are automatic
    diverged      the number of trajectories that met an energy that was not finite
    """

    trajectories: int
    lengths: tuple[int, ...]
    acceptance: tuple[int, ...]
    jumps: tuple[tuple[int, ...], ...] = ()
    sums: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()
    slopes: tuple[int, ...] = ()
    diverged: int = 0

    def __add__(self, other: Measured) -> Measured:
        """Add the sums of two measurements, up to the longest length that both have."""
        n = min(len(self.lengths), len(other.lengths))
        return Measured(
            self.trajectories + other.trajectories,
            self.lengths[:n],
            _added(self.acceptance, other.acceptance),
            tuple(_added(*pair) for pair in zip(self.jumps, other.jumps, strict=False)),
            _added(self.sums, other.sums),
            _added(self.squares, other.squares),
            _added(self.slopes, other.slopes),
            self.diverged + other.diverged,
        )

    def mean_acceptance(self, length: int) -> float:
        """Return the mean acceptance probability of trajectories of this many steps."""
        return ratio(self.acceptance[self.lengths.index(length)], self.trajectories)

    @property
    def diverged_share(self) -> float:
        """The share of trajectories that diverged."""
        return self.diverged / self.trajectories


def _added(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(ours, theirs, strict=False))


def ratio(numerator: int, denominator: int) -> float:
    """Divide a sum in units of 2**-40 by a whole number, rounding only once."""
    return numerator / (denominator << BITS)


def fixed_point_sums(values: Array) -> tuple[int, ...]:
    """Sum values (n_chains, n) over the chains, as whole numbers in units of 2**-40.

    Each value is rounded first, and then whole numbers are summed. The result therefore does not depend on
    the order. A value that is not finite counts as 0.
    """
    xp = array_namespace(values)
    high, low = to_host(xp.stack([part.sum(axis=0) for part in _fixed_point(values)]))
    return tuple((int(a) << BITS) + int(b) for a, b in zip(high, low, strict=True))


def fixed_point(values: Array) -> tuple[tuple[int, ...], ...]:
    """Return values (n_chains, n), row by row, as whole numbers in units of 2**-40.

    They are rounded as in `fixed_point_sums`. A device is asked once for all rows.
    """
    high, low = to_host(array_namespace(values).stack(_fixed_point(values))).astype(object)
    return tuple(map(tuple, ((high << BITS) + low).tolist()))


def _fixed_point(values: Array) -> tuple[Array, Array]:
    """Return the whole part of each value, and the rest in units of 2**-40, both int64."""
    xp = array_namespace(values)
    values = xp.clip(xp.where(xp.isfinite(values), values, 0.0), -_LARGEST, _LARGEST)
    whole = xp.floor(values)
    return whole.astype(xp.int64), xp.rint((values - whole) * 2.0**BITS).astype(xp.int64)


@runtime_checkable
class _Measurable(Protocol):
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
    slopes    stepsizes.mean_squares at the start of the trajectory, (n_chains, n_groups), if requested
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
            quantities = target.quantities if isinstance(target, _Measurable) else _all_parameters
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
