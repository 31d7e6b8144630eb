"""Stepsizes, lengths and scales chosen from measured trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from rayfbnn.mcmc.operation import AUTO, Settings, Tunable
from rayfbnn.mcmc.stepsizes import scales_from
from rayfbnn.mcmc.tuning.measuring import BITS, Measured, ratio
from rayfbnn.mcmc.tuning.settings import first_settings, with_steps

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
