"""The evidence of ladders: where they agree, their log normalising constants, and lasting obstacles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.judging.verdicts import modes
from rayfbnn.answers.judging.words import RHAT_IN_REACH, are_steady
from rayfbnn.arrays import Array
from rayfbnn.draws.ladders import LadderDraws, LadderLevels, ladder_draws
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.view import Draws
from rayfbnn.mcmc.ladder.bennett import LogRatios, bennett
from rayfbnn.reduce.effective import rhat
from rayfbnn.store.catalogue import FAMILIES

AGREES = 1.05  # R-hat of a level that ladders have in common
_UNKNOWN = 1.0  # nats: the least error of log Z from halves without a common draw


@dataclass(frozen=True)
class Phase:
    """A group of ladders with similar log likelihoods at the posterior, apart from those of all others.

    ladders         numbers of the ladders, from 0
    log_likelihood  mean over their draws
    noise           geometric mean of their noise, in standard deviations of the targets; NaN without noise
    log_z           log of the mean over its ladders of exp(log Z), from the common level
    gap             difference to the `log_z` of the heaviest phase, in nats
    """

    ladders: tuple[int, ...]
    log_likelihood: float
    noise: float
    log_z: float
    gap: float


@dataclass(frozen=True)
class LadderEvidence(LadderLevels):
    """The agreement of ladders, as far as their draws show it.

    measured   the name of the quantity that `rhat` is of: "log_rss" (log of the residual sum of squares),
               "log_scale" (log of the scale of t noise that fits the residuals best), or "data_energy"
    rhat       R-hat of this quantity at each level over all ladders
    rejection  mean probability that neighbouring levels do not exchange
    common     number of the level that log Z is counted from; None if ladders agree at no level
    log_z, errors  log Z of the posterior less that of the common level, of each ladder, and its standard
               error. The error follows from the autocorrelation of the draws. It is at least that which log Z
               of the halves of all ladders implies, because slow changes hardly show in autocorrelations
    families   the side that each ladder started from
    trips      round trips of each ladder between both ends
    phases     groups of ladders with separate log likelihoods, the heaviest first
    """

    measured: str
    rhat: tuple[float, ...]
    rejection: tuple[float, ...]
    common: int | None
    log_z: tuple[float, ...]
    errors: tuple[float, ...]
    families: tuple[str, ...]
    trips: tuple[int, ...]
    phases: tuple[Phase, ...]

    @property
    def is_known(self) -> bool:
        """True if log Z of all ladders can be compared.

        They must have a level in common, and every level must share draws with the next one.
        """
        return self.common is not None and all(map(math.isfinite, self.errors))

    @property
    def within(self) -> float:
        """The spread of log Z within families: the larger standard deviation of the two."""
        return max(float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in self.by_family())

    @property
    def between(self) -> float:
        """The difference between the mean log Z of the families; NaN if one of them is absent."""
        first, second = self.by_family()
        return abs(float(np.mean(first) - np.mean(second))) if len(first) and len(second) else math.nan

    def by_family(self) -> tuple[list[float], list[float]]:
        """Return log Z of the ladders from chains, and of those from the prior."""
        first, second = (
            [z for z, family in zip(self.log_z, self.families, strict=True) if family == name]
            for name in FAMILIES
        )
        return first, second

    @property
    def error(self) -> float:
        """The root mean square of the standard errors of log Z of a ladder."""
        return math.sqrt(sum(error**2 for error in self.errors) / len(self.errors))

    @property
    def span(self) -> float:
        """The coordinate of the coldest level below the posterior less that of the hottest.

        For powers it is that of the posterior less that of the hottest. It is infinite for pooled ladders,
        which have one level below the posterior.
        """
        if self.kind == "powers":
            return -math.log(self.held[0])
        return 2 * math.log(self.held[0] / self.held[-1]) if len(self.held) > 1 else math.inf

    @property
    def of_heaviest(self) -> tuple[float, float]:
        """The mean log Z of the ladders in the heaviest phase, and its standard error.

        The error follows from their spread, or from their own errors if these are larger.
        """
        numbers = self.phases[0].ladders
        rows = [self.ladders.index(ladder) for ladder in numbers]
        values, errors = np.array(self.log_z)[rows], np.array(self.errors)[rows]
        spread = float(values.std(ddof=1)) if len(rows) > 1 else 0.0
        largest = max(spread, math.sqrt(float((errors**2).mean())))
        return float(values.mean()), largest / math.sqrt(len(rows))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each ladder: phases weigh exp(log_z), and a phase's ladders have equal shares.

        All weights are equal if log Z is not known.
        """
        if not self.is_known:
            return (1 / len(self.ladders),) * len(self.ladders)
        shares = dict.fromkeys(self.ladders, 0.0)
        for phase in self.phases:
            shares |= dict.fromkeys(phase.ladders, math.exp(-phase.gap) / len(phase.ladders))
        total = sum(shares.values())
        return tuple(shares[ladder] / total for ladder in self.ladders)


def ladder_evidence(run: Draws) -> LadderEvidence:
    """Return the evidence in the draws of a run of ladders.

    Log Z comes from Bennett's ratio between neighbours (mcmc/ladder/bennett.py), added up from the common
    level on.
    """
    levels = ladder_draws(run)
    of_levels = tuple(
        float(rhat(levels.measure[..., level].astype(float))) for level in range(levels.n_levels)
    )
    common = common_level(of_levels)
    ratios = [_ratios(levels, ladder, common or 0) for ladder in range(len(levels.ladders))]
    log_z, of_halves = tuple(one.total for one in ratios), error_by_halves(levels, common or 0)
    return LadderEvidence(
        kind=levels.kind,
        held=levels.held,
        ladders=levels.ladders,
        measured=levels.measured,
        rhat=of_levels,
        rejection=tuple(levels.rejection.mean(axis=0).tolist()),
        common=common,
        log_z=log_z,
        errors=tuple(max(one.standard_error, of_halves) for one in ratios),
        families=levels.families,
        trips=tuple(levels.trips.tolist()),
        phases=phases_of(run, np.array(log_z)),
    )


def _ratios(levels: LadderDraws, ladder: int, common: int, draws: slice = slice(None)) -> LogRatios:
    return bennett(levels.forward[ladder, draws, common:], levels.reverse[ladder, draws, common:])


def error_by_halves(levels: LadderDraws, common: int) -> float:
    """Return the standard error of log Z that its difference between the halves of ladders implies.

    It is the root mean square over ladders of half the difference. For a ladder that has hardly a draw in
    common to two neighbouring levels in one half, the difference is at least 2 nats, because it is not known.
    """
    middle, halved = levels.forward.shape[1] // 2, []
    for ladder in range(len(levels.ladders)):
        halves = [_ratios(levels, ladder, common, part) for part in (slice(middle), slice(middle, None))]
        is_known = all(math.isfinite(half.standard_error) for half in halves)
        halved.append(max(abs(halves[0].total - halves[1].total) / 2, 0.0 if is_known else _UNKNOWN))
    return math.sqrt(sum(one**2 for one in halved) / len(halved))


def common_level(of_levels: tuple[float, ...]) -> int | None:
    """Return the number of the level that log Z is counted from, given R-hat of all levels, or None.

    It is the hottest level where ladders agree. From a level in the colder half, log Z would say nothing of
    the levels where they have parted.
    """
    hot_half = range(len(of_levels) // 2)
    return next((level for level in hot_half if of_levels[level] <= AGREES), None)


def phases_of(run: Draws, log_z: Array) -> tuple[Phase, ...]:
    """Return the groups of ladders that differ in log likelihood; one group if they do not."""
    log_likelihood, numbers = run.stat("log_likelihood"), list(run.chain_numbers)
    noise = np.log(noise_sigmas(run)).mean(axis=2) if run.spec.model.noise is not None else None
    groups = [mode.chains for mode in modes(log_likelihood, numbers)] or [tuple(numbers)]
    found = []
    for ladders in groups:
        rows = [numbers.index(ladder) for ladder in ladders]
        z = log_z[rows]
        of_phase = float(z.max() + math.log(np.exp(z - z.max()).mean()))
        sigma = math.nan if noise is None else float(np.exp(noise[:, rows].mean()))
        found.append((ladders, float(log_likelihood[rows].mean()), sigma, of_phase))
    most = max(one[-1] for one in found)
    return tuple(Phase(*one, gap=most - one[-1]) for one in sorted(found, key=lambda one: -one[-1]))


# With fewer draws, levels may only seem to disagree or not to exchange. Neighbours that exchange in one of
# fifty iterations would have eight exchanges in these.
_LEAST_DRAWS = 400


def lasting_obstacle(levels: LadderDraws) -> str:
    """Return why more iterations with the same levels would not make ladders converge; "" if they may.

    Levels do not change any more once draws are kept. If neighbours hardly exchange, or if ladders disagree
    at the hot end where each of them is steady, that will stay so.
    """
    n_draws = levels.measure.shape[1]
    if n_draws < _LEAST_DRAWS:
        return ""
    exchanges = n_draws * (1 - levels.rejection)
    ladder, pair = map(int, np.unravel_index(np.argmin(exchanges), exchanges.shape))
    if exchanges[ladder, pair] < 1:
        return (
            f"{levels.name_of(pair)} and {levels.name_of(pair + 1)} exchange less than once in"
            f" {n_draws} iterations of ladder {levels.ladders[ladder]}"
        )
    hot_half = levels.measure[..., : levels.n_levels // 2].astype(float)
    of_levels = [float(rhat(hot_half[..., level])) for level in range(hot_half.shape[2])]
    least = int(np.argmin(of_levels))
    if not of_levels[least] > RHAT_IN_REACH or not are_steady(hot_half[..., least]):
        return ""
    return (
        f"the ladders are steady but disagree at all levels of the hotter half (R-hat at least"
        f" {of_levels[least]:.2f})"
    )
