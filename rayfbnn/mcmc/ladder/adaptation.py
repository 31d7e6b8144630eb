"""The settings of a ladder from measured rounds: its levels, their stepsizes and lengths, and its hot end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np

from rayfbnn.arrays import array_namespace
from rayfbnn.mcmc.automatic import (
    DIVERGED_COST,
    TARGET_ACCEPTANCE,
    added,
    fixed_point,
    fixed_point_sums,
    ratio,
)
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, Path, started
from rayfbnn.mcmc.operation import Settings
from rayfbnn.state import LadderEnds

_FIRST_LEVELS = 16
_FIRST_STEPSIZE = 0.5
_SHORTEST = 16
_LONGEST = {"noise": 128, "powers": 64}
_REJECTION = 0.5  # wanted between neighbours; 0.6 is the largest that may remain
_GAIN = 2.0  # of the log stepsize, for a difference of one in the acceptance
_AGREE = 1.05  # R-hat of the hot end
_STEP_BACK = 0.7  # of the coordinate
_LEAST_SPAN = 1.0  # noise at the hot end is 1.6 times that of the top, or more
_MOST_BEFORE_HOT = 24  # levels while the hot end is not found; most of them will be dropped
_FIRST_HOT = {"noise": 2.0, "powers": math.log(1e-3)}


@dataclass(frozen=True)
class Plan:
    """The plan of an adaptation.

    rounds  number of iterations of each round
    levels  number of levels, or None for as many as rejections of at most 0.6 need
    most_levels  the largest number of levels
    hot     coordinate of the hot end, or None for the coldest level where all ladders agree
    """

    rounds: tuple[int, ...] = (16, 16, 24, 32, 48, 64, 96)
    levels: int | None = None
    most_levels: int = 64
    hot: float | None = None

    @property
    def moves_hot_after(self) -> tuple[int, ...]:
        """The rounds that may move the hot end."""
        n = len(self.rounds)
        return () if self.hot is not None else tuple(range(n // 2, n - 1))

    def is_hot_known_after(self, number: int) -> bool:
        """Return True after the first half of the rounds; the hot end may move from then on."""
        return self.hot is not None or number >= len(self.rounds) // 2


def first_settings(
    ends: LadderEnds,
    plan: Plan,
    *,
    top: Sequence[int],
    n_chains: int,
    tuned: Settings | None = None,
) -> LadderSettings:
    """Return the settings before the first round.

    top    for each target the sum, in units of 2**-40, of its log noise precision over the chains that the
           ladders start from; () for powers
    tuned  the settings that the warm-up of these chains found, or None. The top gets the length of their
           trajectories, and all levels get their scales
    """
    longest = _LONGEST[ends.kind] if tuned is None else min(tuned.steps, _LONGEST[ends.kind])
    means = [ratio(value, n_chains) for value in top]
    hot = _FIRST_HOT[ends.kind] if plan.hot is None else plan.hot
    cold = sum(means) / len(means) if math.isinf(ends.top) else ends.top
    n_levels = plan.levels or min(_FIRST_LEVELS, plan.most_levels)
    last = n_levels - 1 if math.isinf(ends.top) else n_levels
    levels = tuple(np.linspace(min(hot, cold - 2.0), cold, last)[: n_levels - 1].tolist())
    return LadderSettings(
        levels,
        (_FIRST_STEPSIZE,) * n_levels,
        _steps(levels, ends, longest),
        () if tuned is None else tuned.scales,
        _multipliers(means),
    )


def adapted(
    settings: LadderSettings, measured: MeasuredLadders, *, ends: LadderEnds, plan: Plan, number: int
) -> LadderSettings:
    """Return the settings after round `number`, a function of what all ladders measured in it."""
    stepsizes = _stepsizes(settings, measured, number)
    means = measured.means(measured.top)
    rejection = np.maximum(measured.means(measured.rejection), 1e-3)
    old = _coordinates(settings, ends)
    barrier = np.concatenate([[0.0], np.cumsum(rejection)])
    hot = plan.hot
    if hot is None:
        hot = _hot(settings, measured) if number in plan.moves_hot_after else settings.levels[0]
    if hot < old[0]:  # rejections between new levels are taken to be as between the hottest two
        steepness = barrier[1] / (old[1] - old[0])
        old = np.concatenate([[hot], old])
        barrier = np.concatenate([[0.0], barrier + steepness * (old[1] - hot)])
    start = float(np.interp(hot, old, barrier[: len(old)]))
    n_levels = plan.levels or _n_levels(
        barrier[-1] - start,
        settings.n_levels,
        plan.most_levels if plan.is_hot_known_after(number) else min(plan.most_levels, _MOST_BEFORE_HOT),
    )
    levels = _spread(old, barrier, start, hot, n_levels, ends, means)
    log_stepsizes = np.interp(
        [*levels, levels[-1] + 1], [*settings.levels, settings.levels[-1] + 1], np.log(stepsizes)
    )
    return LadderSettings(
        levels,
        tuple(np.exp(log_stepsizes).tolist()),
        _steps(levels, ends, settings.steps[-1]),
        settings.scales,
        _multipliers(means),
    )


def moved(state: LadderState, before: LadderSettings, after: LadderSettings, path: Path) -> LadderState:
    """Return the ladders at new levels: each level takes the state of the old level that is nearest.

    The top keeps its state. Replicas start again.
    """
    xp = array_namespace(state.chain.position)
    old = np.array([*before.levels])
    nearest = [int(np.argmin(abs(old - x))) for x in after.levels] + [before.n_levels - 1]
    rows = (np.array(nearest) + before.n_levels * np.arange(state.n_ladders)[:, None]).reshape(-1)
    chain = state.chain
    if nearest != list(range(before.n_levels)):
        chain = chain.of_chains(xp.asarray(rows))
    x = xp.asarray(np.tile([*after.levels, path.ends.top], state.n_ladders))
    chain = path.with_multipliers(after.multipliers).placed(chain, x)
    again = started(chain, after.n_levels)
    return again if after.n_levels != before.n_levels else replace(again, trips=state.trips)


def _stepsizes(settings: LadderSettings, measured: MeasuredLadders, number: int) -> tuple[float, ...]:
    """Return stepsizes that approach the wanted acceptance, with fewer divergences where there are many.

    A share d of diverged trajectories counts as an acceptance that is lower by 20 d, as for chains.
    """
    gain, stepsizes = _GAIN / math.sqrt(1 + number / 3), []
    all_accepted = measured.means(measured.accepted)
    all_diverged = measured.means(measured.diverged) or (0.0,) * len(all_accepted)
    for stepsize, accepted, diverged in zip(settings.stepsizes, all_accepted, all_diverged, strict=True):
        excess = accepted - min(1.0, DIVERGED_COST * diverged) - TARGET_ACCEPTANCE
        stepsizes.append(min(max(stepsize * math.exp(gain * excess), 1e-3), 32.0))
    return tuple(stepsizes)


def _coordinates(settings: LadderSettings, ends: LadderEnds) -> np.ndarray:
    """Return the coordinates with a place on the scale: of all levels, or of those with held noise."""
    return np.array(settings.levels if math.isinf(ends.top) else (*settings.levels, ends.top))


def _hot(settings: LadderSettings, measured: MeasuredLadders) -> float:
    """Return the coordinate of the coldest level where all ladders agree, as they do at the next hotter one.

    Without such a level, it is the level where they disagree least: levels that are hot can be slow too. If
    this is the hottest level, the hot end becomes hotter. It stays at least _LEAST_SPAN hotter than the
    coldest held level, because without a climb ladders would show no more than chains.
    """
    r_hat = measured.r_hat()[:-1]
    agrees = [value < _AGREE for value in r_hat]
    pairs = [level for level in range(1, len(agrees)) if agrees[level] and agrees[level - 1]]
    level = pairs[-1] if pairs else int(np.argmin(r_hat))
    if level == 0 and not agrees[0]:
        return settings.levels[0] - _STEP_BACK
    return max(min(settings.levels[level], settings.levels[-1] - _LEAST_SPAN), settings.levels[0])


def _n_levels(barrier: float, before: int, most: int) -> int:
    """Return a number of levels that gives the wanted rejection; it changes by at most half in a round."""
    wanted = math.ceil(barrier / _REJECTION) + 1
    return min(max(wanted, before // 2, 4), before + before // 2, most)


def _spread(
    old: np.ndarray,
    barrier: np.ndarray,
    start: float,
    hot: float,
    n_levels: int,
    ends: LadderEnds,
    means: Sequence[float],
) -> tuple[float, ...]:
    """Return the levels below the top at equal rejections between the hot end and the cold one.

    The last held level of free noise is at the mean log precision of the top.
    """
    end = barrier[len(old) - 1]
    n = n_levels - 1 if math.isinf(ends.top) else n_levels
    levels = np.interp(np.linspace(start, end, n), barrier[: len(old)], old)
    levels[0] = hot
    if math.isinf(ends.top):
        cold = max(sum(means) / len(means), hot + 0.1)
        levels = hot + (levels - hot) * (cold - hot) / (levels[-1] - hot)
    return tuple(levels[: n_levels - 1].tolist())


def _steps(levels: Sequence[float], ends: LadderEnds, longest: int) -> tuple[int, ...]:
    """Return lengths that rise with the square root of the precision or power, as powers of two.

    longest  the length at the top
    """
    cold = levels[-1] if math.isinf(ends.top) else ends.top
    return tuple(
        min(max(2 ** round(math.log2(longest) + (x - cold) / 2 / math.log(2)), _SHORTEST), longest)
        for x in (*levels, cold)
    )


def _multipliers(means: Sequence[float]) -> tuple[float, ...]:
    middle = sum(means) / len(means) if means else 0.0
    return tuple(math.exp(mean - middle) for mean in means)


@dataclass(frozen=True)
class MeasuredLadders:
    """Sums over the iterations of a round. All but the counts are in units of 2**-40.

    iterations  number of iterations
    ladders     number of ladders
    rejection   (K-1,) sum over ladders of 1 - min(1, r) of each pair of levels
    accepted    (K,)   sum over ladders of the accepted trajectories of each level
    top         (n_targets,) sum over ladders of the log noise precisions at the top; () without noise
    measure     for each ladder (K,): the sum of the misfits of its states (`Energies`)
    squares     for each ladder (K,): the sum of its squares
    diverged    (K,) sum over ladders of the trajectories of each level that diverged; () in old stores
    """

    iterations: int
    ladders: int
    rejection: tuple[int, ...]
    accepted: tuple[int, ...]
    top: tuple[int, ...]
    measure: tuple[tuple[int, ...], ...]
    squares: tuple[tuple[int, ...], ...]
    diverged: tuple[int, ...] = ()

    @staticmethod
    def of(info: LadderInfo) -> MeasuredLadders:
        """Return the sums of one iteration. A device is asked for two arrays, for any number of ladders."""
        xp, (n_ladders, n_levels) = array_namespace(info.measure), info.measure.shape
        moves = info.accepted.astype(np.float64), info.diverged.astype(np.float64)
        sums = fixed_point_sums(xp.concatenate([info.rejection, *moves, info.top], axis=1))
        rejection, accepted, diverged, top = _split(sums, n_levels - 1, n_levels, n_levels)
        rows = fixed_point(xp.concatenate([info.measure, info.measure**2], axis=1))
        return MeasuredLadders(
            1,
            n_ladders,
            rejection,
            accepted,
            top,
            tuple(row[:n_levels] for row in rows),
            tuple(row[n_levels:] for row in rows),
            diverged,
        )

    def __add__(self, other: MeasuredLadders) -> MeasuredLadders:
        """Add further iterations of the same ladders."""
        sums = {name: added(value, getattr(other, name)) for name, value in vars(self).items()}
        return MeasuredLadders(**sums | {"ladders": self.ladders})

    @staticmethod
    def joined(batches: Sequence[MeasuredLadders]) -> MeasuredLadders:
        """Join the measurements of one round of all batches, in the order of their ladders."""
        return replace(
            reduce(MeasuredLadders.__add__, batches),
            iterations=batches[0].iterations,
            ladders=sum(batch.ladders for batch in batches),
            measure=tuple(row for batch in batches for row in batch.measure),
            squares=tuple(row for batch in batches for row in batch.squares),
        )

    def means(self, sums: tuple[int, ...]) -> tuple[float, ...]:
        """Return the means over iterations and ladders of sums such as `rejection`."""
        return tuple(ratio(value, self.iterations * self.ladders) for value in sums)

    def r_hat(self) -> tuple[float, ...]:
        """Return R-hat of the measure at each level over the ladders, (K,); 1 if nothing varies.

        R-hat**2 = ((n-1)/n W + B/n)/W, Gelman and Rubin (1992). Halves of a round are not separated.
        """
        n = self.iterations
        values = []
        for level in range(len(self.accepted)):
            means = [ratio(row[level], n) for row in self.measure]
            within = [
                max(ratio(row[level], n) - mean**2, 0.0)
                for row, mean in zip(self.squares, means, strict=True)
            ]
            w = sum(within) / len(within)
            between = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
            values.append(
                math.sqrt(((n - 1) / n * w + between) / w) if w > 0 else 1.0 if between == 0 else math.inf
            )
        return tuple(values)


def _split(values: Sequence[int], *lengths: int) -> list[tuple[int, ...]]:
    """Return the first values in pieces of these lengths, and the rest as the last piece."""
    ends = [0, *accumulate(lengths), len(values)]
    return [tuple(values[first:last]) for first, last in pairwise(ends)]
