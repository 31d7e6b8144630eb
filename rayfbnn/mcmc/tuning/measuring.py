"""Settings of trajectories found by trajectories that are measured, in rounds pooled over all chains.

A round is a number of iterations of every chain with the same settings. What its trajectories did is summed
in whole numbers, so that no order and no grouping of chains, blocks or workers can change a bit; the settings
of the next round are a function of the sums of all rounds before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Protocol, cast, runtime_checkable

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operations import AUTO, HybridMarginal, Operation, Tunable, automatic
from rayfbnn.mcmc.tuning.scaling import SlopesProbe, scales_from
from rayfbnn.state import Advance, ChainState, HMCInfo, Target, Trajectory
from rayfbnn.streams import Streams

TARGET_ACCEPTANCE = 0.8
FIRST_STEPSIZE = 0.5  # the heuristic stepsizes are meant for factors a little below one
FIRST_STEPS = 16
SHORTEST, LONGEST, LONGEST_MARGINAL = 4, 4096, 256
# Hoffman and Gelman (2014) take gamma = 0.05 for the acceptance of one trajectory at a time. That of a round
# is nearly free of noise, and answers a change of log stepsize by up to its own size: 0.05 then overshoots.
_GAMMA, _T0, _KAPPA = 0.1, 10, 0.75
_BITS = 40  # sums are whole numbers of 2**-40
_LARGEST = 2.0**50  # what is beyond it counts as this: 2**12 chains of it still fit 63 bits


@runtime_checkable
class Measurable(Protocol):
    """A target that says which functions of a state are to move."""

    def quantities(self, position: Array, precisions: Array) -> Array:
        """(n_chains, n_quantities) float64, of order one."""
        ...


@dataclass(frozen=True)
class Settings:
    """What an automatic operation runs with.

    steps    of a trajectory; longest: of one that is measured, which goes on to see whether more is better
    scales   factors on the stepsizes of each group of coordinates (scaling.py); none: the heuristic's alone
    """

    stepsize: float
    steps: int
    longest: int
    scales: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measured:
    """Sums over trajectories, in whole numbers of 2**-40 but for the count.

    trajectories  how many
    acceptance    of min(1, exp(-change in energy)) after each of the lengths
    jumps         of that times the squared change of each quantity: for each length, for each quantity
    sums, squares of each quantity at the start
    slopes        of scaling.SlopesProbe.mean_squares, for each group, where scales are looked for
    """

    trajectories: int
    lengths: tuple[int, ...]
    acceptance: tuple[int, ...]
    jumps: tuple[tuple[int, ...], ...] = ()
    sums: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()
    slopes: tuple[int, ...] = ()

    def __add__(self, other: Measured) -> Measured:
        """The sums over both; lengths that only one of them has are left out with what is beyond."""
        n = min(len(self.lengths), len(other.lengths))
        return Measured(
            self.trajectories + other.trajectories,
            self.lengths[:n],
            _added(self.acceptance, other.acceptance),
            tuple(_added(ours, theirs) for ours, theirs in zip(self.jumps, other.jumps, strict=False)),
            _added(self.sums, other.sums),
            _added(self.squares, other.squares),
            _added(self.slopes, other.slopes),
        )

    def mean_acceptance(self, length: int) -> float:
        """After trajectories of this many steps."""
        return _ratio(self.acceptance[self.lengths.index(length)], self.trajectories)


def _added(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(ours, theirs, strict=False))


@dataclass(frozen=True)
class MeasuredInfo(HMCInfo):
    """What a measured update did, with its sums over the chains."""

    operation: Tunable
    measured: Measured


@dataclass(frozen=True)
class Tuning:
    """What automatic operations run with; is_measured in the rounds that tune them."""

    settings: Mapping[Tunable, Settings]
    is_measured: bool = False


def lengths(operation: Tunable) -> tuple[int, ...]:
    """The lengths there are to choose from: powers of two."""
    if operation.steps != AUTO:
        return (operation.steps,)
    longest = LONGEST_MARGINAL if isinstance(operation, HybridMarginal) else LONGEST
    return tuple(2**k for k in range(SHORTEST.bit_length() - 1, longest.bit_length()))


def first_settings(operation: Tunable) -> Settings:
    """The settings of the first round."""
    stepsize = FIRST_STEPSIZE if operation.stepsize == AUTO else operation.stepsize
    return _with_steps(operation, stepsize, FIRST_STEPS if operation.steps == AUTO else operation.steps)


def _with_steps(operation: Tunable, stepsize: float, steps: int, scales: tuple[float, ...] = ()) -> Settings:
    return Settings(stepsize, steps, min(2 * steps, lengths(operation)[-1]), scales)


def extreme_tunings(operations: tuple[Operation, ...], *, is_measured: bool) -> tuple[Tuning, Tuning]:
    """The least and the most steps of each automatic operation, with its first stepsize.

    is_measured  in the rounds that tune them, where trajectories go on beyond the length in use
    """
    least, most = (
        Tuning(
            {
                each: _with_steps(each, first_settings(each).stepsize, lengths(each)[place])
                for each in automatic(operations)
            },
            is_measured,
        )
        for place in (0, -1)
    )
    return least, most


def settings_after(rounds: Sequence[Measured], operation: Tunable, *, n_rounds: int) -> Settings:
    """The settings that follow from the rounds so far, of n_rounds in all.

    The stepsize is that of dual averaging, Hoffman and Gelman (2014), sec. 3.2: with a_i the mean acceptance
    of round i at the length then in use, after t rounds

    log e = mu - sqrt(t) / (gamma (t + t0)) sum (target - a_i)

    begun anew, from the average of log e that it has reached, with mu the logarithm of that, after a quarter
    and a half of the rounds; the last settings have the average of the last half. There scales are set too,
    of operations that have them: from the slopes of the later half of the rounds before, by `scales_from`.

    The length l is the one of the largest min_k r_k(l) / (l + 1), where

    r_k(l) = min(1, J / (4 - J)),   J = E[a (f_k(q_l) - f_k(q_0))**2] / Var[f_k(q_0)]

    over the later half of the rounds: the effective draws of the slowest quantity for each gradient, were it
    an autoregression of first order, with correlation 1 - J/2 from one trajectory to the next.
    """
    settings = first_settings(operation)
    average = _DualAveraging(settings.stepsize)
    anew = (n_rounds // 4, n_rounds // 2)
    for number, measured in enumerate(rounds):
        if number in anew:
            average = _DualAveraging(average.averaged)
        average = average.after(measured.mean_acceptance(settings.steps))
        stepsize, steps, scales = settings.stepsize, settings.steps, settings.scales
        if operation.scaling == AUTO and number + 1 in anew:
            scales = _scales(rounds[(number + 1) // 2 : number + 1])
        if operation.stepsize == AUTO:
            stepsize = average.averaged if number == n_rounds - 1 else average.stepsize
        if operation.steps == AUTO:
            steps = _best_length(rounds[(number + 1) // 2 : number + 1], steps)
        settings = _with_steps(operation, stepsize, steps, scales)
    return settings


def _scales(rounds: Sequence[Measured]) -> tuple[float, ...]:
    total = reduce(Measured.__add__, rounds)
    return scales_from([_ratio(each, total.trajectories) for each in total.slopes])


@dataclass(frozen=True)
class _DualAveraging:
    """t rounds after a start at exp(mu): the stepsize to try next, and the average that has settled."""

    start: float
    t: int = 0
    lacking: float = 0.0  # sum of target - acceptance
    log_average: float = 0.0

    @property
    def stepsize(self) -> float:
        return self.start * math.exp(-math.sqrt(self.t) / (_GAMMA * (self.t + _T0)) * self.lacking)

    @property
    def averaged(self) -> float:
        return math.exp(self.log_average) if self.t else self.start

    def after(self, acceptance: float) -> _DualAveraging:
        made = replace(self, t=self.t + 1, lacking=self.lacking + TARGET_ACCEPTANCE - acceptance)
        weight = made.t**-_KAPPA
        log_average = weight * math.log(made.stepsize) + (1 - weight) * self.log_average
        return replace(made, log_average=log_average)


def _best_length(rounds: Sequence[Measured], steps: int) -> int:
    """The length of the most effective draws of the slowest quantity for each gradient.

    Lengths that some of the rounds did not reach are judged by those that did; `steps` if nothing moved.
    """
    best, highest = steps, 0.0
    for length in sorted({length for measured in rounds for length in measured.lengths}):
        rate = _slowest([each for each in rounds if length in each.lengths], length) / (length + 1)
        if rate > highest:
            best, highest = length, rate
    return best


def _slowest(rounds: Sequence[Measured], length: int) -> float:
    """min_k r_k(length) of `settings_after`; 0 where no quantity varies."""
    total = reduce(Measured.__add__, rounds)
    rates = []
    for jump, first, square in zip(
        total.jumps[total.lengths.index(length)], total.sums, total.squares, strict=True
    ):
        n = total.trajectories
        # n sum x**2 - (sum x)**2 in whole numbers: nothing cancels
        variance = _ratio(n * square - ((first * first) >> _BITS), n * n)
        if variance > 0:
            change = _ratio(jump, n) / variance
            rates.append(min(1.0, change / (4 - change)) if change < 4 else 1.0)
    return min(rates, default=0.0)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / (denominator << _BITS)  # of whole numbers, rounded once


def measured_update(
    state: ChainState,
    streams: Streams,
    *,
    update: Callable[..., tuple[ChainState, HMCInfo]],
    operation: Tunable,
    settings: Settings,
    advance: Advance,
) -> tuple[ChainState, MeasuredInfo]:
    """The operation's update with trajectories of settings.longest steps, and what it saw on the way.

    Where the number of steps is given, only acceptance is looked at, that of the windows if there are any.
    """
    update = partial(update, stepsize=settings.stepsize, scales=settings.scales)
    slopes = SlopesProbe(advance) if operation.scaling == AUTO else None
    if slopes is not None:
        advance = slopes
    if operation.steps != AUTO:
        state, info = update(state, streams, steps=settings.steps, advance=advance)
        xp = array_namespace(info.energy_change)
        accepted = _fixed(xp.exp(-xp.clip(info.energy_change, 0, None))[:, None])
        measured = Measured(streams.n_chains, (settings.steps,), accepted)
    else:
        at = tuple(length for length in lengths(operation) if length <= settings.longest)
        probe = Probe(advance, at)
        state, info = update(state, streams, steps=settings.longest, advance=probe)
        measured = probe.measured
    if slopes is not None:
        assert slopes.mean_squares is not None
        measured = replace(measured, slopes=_fixed(slopes.mean_squares))
    return state, MeasuredInfo(info.accepted, info.energy_change, info.diverged, operation, measured)


class Probe:
    """An Advance that stops at some lengths on the way, and sums what trajectories of these would have done.

    The state there is what such a trajectory would propose, so one trajectory measures them all.
    """

    measured: Measured

    def __init__(self, advance: Advance, at: tuple[int, ...]) -> None:
        self._advance, self._at = advance, at

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        _, potential = self._advance(target, trajectory, n_steps=0, order=order)
        if n_steps == 0:
            return trajectory, potential
        assert n_steps == self._at[-1]
        xp, precisions = array_namespace(trajectory.position), trajectory.precisions
        with np.errstate(all="ignore"):
            start = _quantities(target, trajectory.position, precisions)
            start_energy = total_energy(potential, trajectory.momentum)
        acceptance, jumps, done = [], [], 0
        for length in self._at:
            trajectory, potential = self._advance(target, trajectory, n_steps=length - done, order=order)
            with np.errstate(all="ignore"):
                energy = total_energy(potential, trajectory.momentum)
                accepted = xp.exp(xp.minimum(0, start_energy - energy))
                change = _quantities(target, trajectory.position, precisions) - start
                # Where a trajectory has blown up, changes are no numbers.
                moved = xp.where(accepted[:, None] > 0, accepted[:, None] * xp.square(change), 0.0)
            acceptance.append(accepted)
            jumps.append(moved)
            done = length
        self.measured = Measured(
            len(trajectory.position),
            self._at,
            _fixed(xp.stack(acceptance, axis=1)),
            tuple(_fixed(moved) for moved in jumps),
            _fixed(start),
            _fixed(xp.square(start)),
        )
        return trajectory, potential


def _quantities(target: Target, position: Array, precisions: Array) -> Array:
    """What is to move: the target's own choice, or every parameter."""
    if isinstance(target, Measurable):
        return cast(Measurable, target).quantities(position, precisions)
    return position.astype(array_namespace(position).float64)


def _fixed(values: Array) -> tuple[int, ...]:
    """Sums over chains of values (n_chains, n), as whole numbers of 2**-40; what is not finite counts as 0.

    Each value is rounded by itself, and whole numbers are summed: the sum has no order.
    """
    xp = array_namespace(values)
    values = xp.clip(xp.where(xp.isfinite(values), values, 0.0), -_LARGEST, _LARGEST)
    whole = xp.floor(values)
    parts = xp.rint((values - whole) * 2.0**_BITS)
    high, low = (to_host(each.astype(xp.int64).sum(axis=0)) for each in (whole, parts))
    return tuple((int(a) << _BITS) + int(b) for a, b in zip(high, low, strict=True))
