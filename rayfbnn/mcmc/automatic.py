"""Automatic settings: trajectories are measured, and stepsizes, lengths and scales follow from the sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operation import AUTO, Operation, Settings, Tunable, Tuning, automatic
from rayfbnn.mcmc.stepsizes import mean_squares, scales_from
from rayfbnn.state import Advance, HMCInfo, Target, Trajectory

_FIRST_STEPSIZE = 0.5  # the heuristic stepsizes are meant for factors a little below one
_FIRST_STEPS = 16
# With a smaller minimum, tuning chose shorter trajectories before the rounds revealed a slow quantity
# (docs/decisions/0017).
_SHORTEST = 16


def lengths(operation: Tunable) -> tuple[int, ...]:
    """Return the lengths to choose from: powers of two, or only the configured length."""
    if operation.steps != AUTO:
        return (operation.steps,)
    return tuple(2**k for k in range(_SHORTEST.bit_length() - 1, operation.longest.bit_length()))


def first_settings(operation: Tunable) -> Settings:
    """Return the settings of the first round."""
    stepsize = _FIRST_STEPSIZE if operation.stepsize == AUTO else operation.stepsize
    return with_steps(operation, stepsize, _FIRST_STEPS if operation.steps == AUTO else operation.steps)


def with_steps(operation: Tunable, stepsize: float, steps: int, scales: tuple[float, ...] = ()) -> Settings:
    """Return settings with this number of steps; trajectories are measured up to twice this length."""
    return Settings(stepsize, steps, min(2 * steps, lengths(operation)[-1]), scales)


def extreme_tunings(operations: tuple[Operation, ...], *, is_measured: bool) -> tuple[Tuning, Tuning]:
    """Return two tunings, with the fewest and the most steps that each automatic operation may have.

    The stepsizes are those of the first round.

    is_measured  whether the tunings are for tuning rounds, which run longer trajectories than the current
                 settings
    """

    def extreme(place: int) -> Tuning:
        return Tuning(
            {
                operation: with_steps(
                    operation, first_settings(operation).stepsize, lengths(operation)[place]
                )
                for operation in automatic(operations)
            },
            is_measured,
        )

    return extreme(0), extreme(-1)


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
        sums = {name: added(value, getattr(other, name)) for name, value in vars(self).items()}
        return Measured(**sums | {"lengths": min(self.lengths, other.lengths, key=len)})

    def mean_acceptance(self, length: int) -> float:
        """Return the mean acceptance probability of trajectories of this many steps."""
        return ratio(self.acceptance[self.lengths.index(length)], self.trajectories)

    @property
    def diverged_share(self) -> float:
        """The share of trajectories that diverged."""
        return self.diverged / self.trajectories


def added(ours: Any, theirs: Any) -> Any:
    """Add whole numbers, or nested tuples of them place by place, up to the end of the shorter tuple."""
    if isinstance(ours, int):
        return ours + theirs
    return tuple(added(*pair) for pair in zip(ours, theirs, strict=False))


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


@dataclass(frozen=True)
class MeasuredInfo(HMCInfo):
    """The info of a measured update, with the sums over its chains."""

    operation: Tunable
    measured: Measured


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
            quantities = getattr(target, "quantities", _all_parameters)
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
    """Return all parameters in float64, the quantities of a target that defines no functions of its own."""
    return position.astype(array_namespace(position).float64)


TARGET_ACCEPTANCE = 0.8
# Hoffman and Gelman (2014) use gamma = 0.05 for the acceptance of one trajectory at a time. The acceptance of
# a round has almost no noise, and changes by up to the change of the log stepsize. 0.05 then overshoots.
_GAMMA, _T0, _KAPPA = 0.1, 10, 0.75
# If a share d of trajectories diverges, stepsizes settle where the acceptance is 0.8 + 20 d. At most 1 % then
# diverge, which `diagnose` allows. Windows accept often even where steps are unstable.
DIVERGED_COST = 20.0
# The cost of the rest of an iteration, in gradients: Gibbs draws and energies of small networks. Without it,
# short trajectories that hardly move the slowest quantity appear cheapest (docs/decisions/0017).
_OVERHEAD = 16


def settings_after(rounds: Sequence[Measured], operation: Tunable, *, n_rounds: int) -> Settings:
    """Return the settings chosen from the rounds so far, out of n_rounds in total.

    The stepsize e follows from dual averaging, Hoffman and Gelman (2014), sec. 3.2. Let a_i be the mean
    acceptance of round i at the length used in that round, and d_i the share of its trajectories that
    diverged. After t rounds

    log e = mu - sqrt(t) / (gamma (t + t0)) sum (target - a_i + min(1, 20 d_i))

    The averaging restarts after a quarter and after half of the rounds: mu becomes the average of log e so
    far. The last round sets the stepsize to the average over the second half. Each restart also sets
    automatic scales, by `scales_from`, from the slopes in the later half of the rounds so far.

    The length is the l with the largest min_k r_k(l) / (l + 1 + 16), where

    r_k(l) = min(1, J / (4 - J)),   J = E[a (f_k(q_l) - f_k(q_0))**2] / Var[f_k(q_0)]

    over the later half of the rounds. This ratio is the number of effective draws of the slowest quantity
    per gradient. The 16 stands for the other costs of an iteration. The formula assumes that successive
    values of each quantity form a first-order autoregression with correlation 1 - J/2 from one trajectory to
    the next.
    """
    settings = first_settings(operation)
    average = _DualAveraging(settings.stepsize)
    restarts = (n_rounds // 4, n_rounds // 2)
    for number, measured in enumerate(rounds):
        if number in restarts:
            average = _DualAveraging(average.averaged)
        penalty = min(1.0, DIVERGED_COST * measured.diverged_share)
        average = average.after(measured.mean_acceptance(settings.steps) - penalty)
        stepsize, steps, scales = settings.stepsize, settings.steps, settings.scales
        if operation.scaling == AUTO and number + 1 in restarts:
            scales = _scales(rounds[(number + 1) // 2 : number + 1])
        if operation.stepsize == AUTO:
            stepsize = average.averaged if number == n_rounds - 1 else average.stepsize
        if operation.steps == AUTO:
            steps = _best_length(rounds[(number + 1) // 2 : number + 1], steps)
        settings = with_steps(operation, stepsize, steps, scales)
    return settings


def _scales(rounds: Sequence[Measured]) -> tuple[float, ...]:
    total = reduce(Measured.__add__, rounds)
    return scales_from([ratio(slope, total.trajectories) for slope in total.slopes])


@dataclass(frozen=True)
class _DualAveraging:
    """The state of dual averaging, t rounds after it started at exp(mu).

    start        exp(mu)
    t            number of rounds since the start
    lacking      sum of target - acceptance over these rounds
    log_average  weighted average of the logarithms of the stepsizes
    """

    start: float
    t: int = 0
    lacking: float = 0.0
    log_average: float = 0.0

    @property
    def stepsize(self) -> float:
        """The stepsize to try next."""
        return self.start * math.exp(-math.sqrt(self.t) / (_GAMMA * (self.t + _T0)) * self.lacking)

    @property
    def averaged(self) -> float:
        """The average of the stepsizes, which varies less than the next stepsize."""
        return math.exp(self.log_average) if self.t else self.start

    def after(self, acceptance: float) -> _DualAveraging:
        """Return the state after one more round with this mean acceptance."""
        updated = replace(self, t=self.t + 1, lacking=self.lacking + TARGET_ACCEPTANCE - acceptance)
        weight = updated.t**-_KAPPA
        log_average = weight * math.log(updated.stepsize) + (1 - weight) * self.log_average
        return replace(updated, log_average=log_average)


def _best_length(rounds: Sequence[Measured], steps: int) -> int:
    """Return the length with the most effective draws of the slowest quantity per gradient.

    A length is judged by the rounds that reached it. If nothing moved at any length, `steps` is returned.
    """
    best, highest = steps, 0.0
    for length in sorted({length for measured in rounds for length in measured.lengths}):
        reached = [measured for measured in rounds if length in measured.lengths]
        rate = _slowest(reached, length) / (length + 1 + _OVERHEAD)
        if rate > highest:
            best, highest = length, rate
    return best


def _slowest(rounds: Sequence[Measured], length: int) -> float:
    """Return min_k r_k(length) of `settings_after`, or 0 if no quantity varies."""
    n = sum(measured.trajectories for measured in rounds)
    jumps, firsts, squares = (
        map(sum, zip(*values, strict=True))  # over the rounds, for each quantity
        for values in (
            [measured.jumps[measured.lengths.index(length)] for measured in rounds],
            [measured.sums for measured in rounds],
            [measured.squares for measured in rounds],
        )
    )
    rates = []
    for jump, first, square in zip(jumps, firsts, squares, strict=True):
        # n sum x**2 - (sum x)**2 in whole numbers avoids cancellation
        variance = ratio(n * square - ((first * first) >> BITS), n * n)
        if variance > 0:
            change = ratio(jump, n) / variance
            rates.append(min(1.0, change / (4 - change)) if change < 4 else 1.0)
    return min(rates, default=0.0)
