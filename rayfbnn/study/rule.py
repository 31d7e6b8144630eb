"""The rule that decides when a study stops, and whether chains agree: functions of the draws alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.judging.chain_average import move_apart, quantile_of_t
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.numerals import compared
from rayfbnn.reduce.effective import both_scores
from rayfbnn.reduce.importance import tail_shape
from rayfbnn.store.documents import Document
from rayfbnn.study.sealed import SomeSeeds

_MOST_LOOKS = 1000
_MOST_NAMED = 3  # members that are named for a quantity outside the limits
_HEAVY = 0.5  # Pareto k of a tail; from here on the variance is infinite, and the mean has no standard error
_DIGITS = 6  # of a number on record, because machines may round the last bits of a function differently


@dataclass(frozen=True)
class Rule:
    """The limits that every quantity must keep for a study to stop.

    Attributes
    ----------
    max_rhat
        Largest nested R-hat, above 1. From the first half of the draws to the second, the variance of the
        chains' means may grow by at most max_rhat**2 - 1, as a share of the variance.
    max_mcse
        Largest error of a quantity's mean over all members, in units of its standard deviation. It combines
        the Monte Carlo standard error, estimated from the differences between members, and the error from a
        drift that all members share.
    least_draws
        Smallest number of draws of each chain; a drift cannot be seen in fewer than four.
    looks
        Number of looks, evenly spaced over the configured iterations of the last phase.
    cases
        Number of training cases, evenly spaced, with outputs that are looked at.
    """

    max_rhat: float = 1.01
    max_mcse: float = 0.05
    least_draws: int = 100
    looks: int = 4
    cases: int = 10

    def __post_init__(self) -> None:
        if not 1 < self.max_rhat < math.inf:
            raise ConfigError(f"max_rhat: must be a number above 1, such as 1.01, got {self.max_rhat}")
        if not 0 < self.max_mcse < math.inf:
            raise ConfigError(f"max_mcse: must be a number above 0, such as 0.05, got {self.max_mcse}")
        for name in ("least_draws", "looks", "cases"):
            value = getattr(self, name)
            if value % 1 != 0 or value < 1:
                raise ConfigError(f"{name}: must be a whole number of at least 1, got {value}")
        if self.looks > _MOST_LOOKS:
            raise ConfigError(f"looks: must be at most {_MOST_LOOKS}, got {self.looks}")


class Judged(Document):
    """A quantity as the rule sees it. A number that is not known is None.

    Attributes
    ----------
    mean, sd
        Mean and standard deviation over all draws of all members. None for a quantity with tails so heavy
        that its mean has no standard error; its median is judged instead.
    rhat
        Nested R-hat; None for a quantity that never changes.
    mcse
        Monte Carlo standard error of the mean, estimated from the differences between members, in units of
        the standard deviation. With heavy tails that of the median, in units of half the width of the central
        68 %.
    drift
        Error of the mean from a drift that all members share, in units of the standard deviation; 0 if
        chance explains it, None for fewer than four draws.
    late
        Change from the third quarter of the draws to the last; units, 0 and None as for `drift`.
    growth
        Increase of the variance of the chains' means from the first half of the draws to the second, as a
        share of the variance; 0 and None as for `drift`.
    stuck
        Seeds of the members with a chain that never changes.
    ok
        Whether everything keeps the limits.
    apart
        Seeds of the members with the means (or medians) farthest from the median of the members' means, if
        `ok` is False.
    """

    mean: float | None
    sd: float | None
    rhat: float | None
    mcse: float | None
    drift: float | None
    late: float | None
    growth: float | None
    stuck: SomeSeeds
    ok: bool
    apart: SomeSeeds = ()

    @property
    def center(self) -> str:
        """What `mcse` is the error of: "median" with heavy tails, or "mean"."""
        return "median" if self.mean is None and self.rhat is not None else "mean"


def judge(values: Array, seeds: tuple[int, ...], rule: Rule) -> Judged:
    """Judge one quantity.

    values  (n_members, n_chains, n_draws); members in the order of `seeds`
    """
    is_heavy = tail_shape(values.ravel()) >= _HEAVY
    if is_heavy:
        means = np.median(values, axis=(1, 2))
        width = float(np.subtract(*np.quantile(values, [0.84, 0.16]))) / 2
    else:
        means, width = values.mean(axis=(1, 2)), float(values.std())
    error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    found = agreement(values)
    is_stuck = (np.ptp(values, axis=2) == 0).any(axis=1) & (values.shape[2] >= LEAST_DRAWS)
    judged = Judged(
        mean=None if is_heavy else _known(values.mean()),
        sd=None if is_heavy else _known(width),
        rhat=_known(found.rhat),
        mcse=_known(error / width if width > 0 else math.nan),
        drift=_known(found.drift.shift),
        late=_known(found.drift.late),
        growth=_known(found.drift.growth),
        stuck=tuple(sorted(seeds[member] for member in np.flatnonzero(is_stuck))),
        ok=False,
    )
    if not _shortfalls(judged, rule):
        return judged.model_copy(update={"ok": True})
    order = np.argsort(-np.abs(means - np.median(means)), kind="stable")
    apart = tuple(sorted(seeds[member] for member in order[:_MOST_NAMED]))
    return judged.model_copy(update={"apart": apart})


def _known(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def reasons(judged: dict[str, Judged], n_draws: int, failed: dict[int, str], rule: Rule) -> tuple[str, ...]:
    """Return a sentence for each reason that a study may not stop."""
    sentences = [f"seed {seed} failed: {reason}" for seed, reason in failed.items()]
    least_draws = max(rule.least_draws, LEAST_DRAWS)
    if n_draws < least_draws:
        sentences.append(f"{n_draws} draws of each chain are fewer than {least_draws}")
    for name, one in judged.items():
        sentences += [f"{name}{words}" for words in _shortfalls(one, rule)]
    return tuple(sentences)


def _shortfalls(one: Judged, rule: Rule) -> list[str]:
    """Return a text for each limit that a quantity misses; the text follows the quantity's name."""
    if one.rhat is None and one.sd == 0:
        return [" never changes"]
    words = [*_disagreement(one, rule), *_drift_reasons(one, rule)]
    if one.stuck:
        words.append(f" never changes in a chain of each of these seeds: {_listed(one.stuck)}")
    return words


def _disagreement(one: Judged, rule: Rule) -> Iterator[str]:
    """Yield a text on the differences between members, if they are above the limits."""
    farthest = f"seeds farthest from the middle: {_listed(one.apart)}"
    if one.rhat is None or one.rhat > rule.max_rhat:
        rhat = "is not finite" if one.rhat is None else _above(one.rhat, rule.max_rhat, "")
        yield f": nested R-hat {rhat}; {farthest}"
    elif one.mcse is None or one.mcse > rule.max_mcse:
        unit = " of half its central 68 %" if one.center == "median" else " sd"
        error = "is not known" if one.mcse is None else _above(one.mcse, rule.max_mcse, unit)
        why = " (its tails are too heavy for a mean)" if one.center == "median" else ""
        yield f": the error of its {one.center}{why} {error}; {farthest}"


def _drift_reasons(one: Judged, rule: Rule) -> Iterator[str]:
    """Yield texts on the movements that all members share, if they are above the limits."""
    mcse, drift, late, growth = (number or 0.0 for number in (one.mcse, one.drift, one.late, one.growth))
    if late > 0:
        yield (
            f": its mean or spread still changes in all members alike, by {late:g} sd from the third quarter"
            " of the draws to the last"
        )
    elif drift > 0 and math.hypot(mcse, drift) > rule.max_mcse:
        yield (
            ": early draws differ from late ones in all members alike, which puts its mean or spread off by"
            f" {drift:g} sd; with the error of {mcse:g} sd, added in squares, that"
            f" {_above(math.hypot(mcse, drift), rule.max_mcse, ' sd')}"
        )
    if growth > 0 and math.sqrt(1 + growth) > rule.max_rhat:
        (grown,), most = compared([growth], rule.max_rhat**2 - 1, "g", ".2g")
        yield (
            ": its chains still move apart: the variance of their means grows by"
            f" {grown} of the whole from the first half of the draws to the second, above {most}"
        )


def _above(value: float, limit: float, unit: str) -> str:
    (text,), most = compared([value], limit, ".6g")
    return f"{text}{unit} is above {most}"


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(at_most_ten(seeds))


LEAST_DRAWS = 4  # of a chain; with fewer, the second half cannot be divided
_EARLY = (0.1, 0.25, 0.5)  # shares of the draws that are compared with the second half
_FALSE_ALARMS = 0.002  # probability that a quantity without any drift appears to have one
_CERTAINTY = 1 - _FALSE_ALARMS / 2 / (3 * (len(_EARLY) + 1) + 2)  # of each of the 14 tests


@dataclass(frozen=True)
class Drift:
    """The drift of a quantity. Each number is 0 if chance explains the difference.

    shift   error of the mean over all draws from early draws that differ from later ones, in standard
            deviations; or that of the mean of its normal scores, in bulk or tails, if it is larger
    late    change from the third quarter of the draws to the last, in standard deviations; or that of its
            normal scores, if it is larger
    growth  increase of the variance of the chains' means from the first half of the draws to the second,
            as a share of the variance of all draws; computed from normal scores
    """

    shift: float
    late: float
    growth: float


@dataclass(frozen=True)
class Agreement:
    """The agreement of the members of a study on a quantity.

    rhat   the rank-normalised nested R-hat, the larger of bulk and tail; NaN for one superchain, for a
           quantity that never changes, and for values that are not finite. A single draw of each chain is
           enough
    drift  NaN in the last two cases, and for fewer than `LEAST_DRAWS` draws
    """

    rhat: float
    drift: Drift


def agreement(values: Array, scores: Iterable[Array] | None = None) -> Agreement:
    """Compare superchains with each other, and early draws with late ones.

    A quantity with two values, equally far from its median, has no tails to compare. The bulk alone counts.

    If the mean of a share f of early draws differs by d from that of the second half, it has moved the mean
    over all draws by f d, provided that the second half is stationary. Geweke (1992), "Evaluating the
    accuracy of sampling-based approaches to the calculation of posterior moments", makes this comparison in
    one chain, with an estimated autocorrelation. Here the spread over chains gives its error, and the test is
    Student's t.

    Parameters
    ----------
    values : (n_superchains, n_chains, n_draws)    the members of a study are superchains
    scores : arrays of that shape                  normal scores of the values, computed one after another
                                                   unless given
    """
    rhat, drifts = math.nan, []
    if scores is None:
        is_varied = np.isfinite(values).all() and np.ptp(values) > 0
        scores = both_scores(values) if is_varied else ()
    for one in scores:
        rhat = float(np.fmax(rhat, plain_nested_rhat(one)))
        if values.shape[2] >= LEAST_DRAWS:
            drifts.append(_drift(one))
        del one  # before the next scores are computed
    if not drifts:
        return Agreement(rhat, Drift(math.nan, math.nan, math.nan))
    every = [_drift(values), *drifts]
    return Agreement(
        rhat,
        Drift(
            shift=max(one.shift for one in every),
            late=max(one.late for one in every),
            growth=max(one.growth for one in drifts),
        ),
    )


def plain_nested_rhat(values: Array) -> float:
    """Return the nested R-hat of values (n_superchains, n_chains, n_draws) as they are.

    It is sqrt(1 + B / W) of Margossian et al. (2024), "Nested R-hat: assessing the convergence of Markov
    chain Monte Carlo when running many short chains", equations 6 to 8: B is the variance of the means of
    the superchains, and W the mean over superchains of the variance of the chains' means plus the mean
    variance in a chain. Chains are not split, because both halves of a chain would be in one superchain,
    and a drift would make W larger. The result is NaN for one superchain.
    """
    if len(values) < 2:
        return math.nan
    means = values.mean(axis=2)
    between = means.mean(axis=1).var(ddof=1)
    within = np.zeros(len(values))
    if values.shape[1] > 1:
        within += means.var(axis=1, ddof=1)
    if values.shape[2] > 1:
        within += values.var(axis=2, ddof=1).mean(axis=1)
    with np.errstate(all="ignore"):  # constant chains that differ: B / 0 is the answer
        return float(np.sqrt(1 + between / within.mean()))


def _drift(values: Array) -> Drift:
    """Return the drift of values or of their normal scores, with all chains as replicates."""
    chains = values.reshape(-1, values.shape[2])
    with np.errstate(all="ignore"):  # t is infinite if the means of all chains differ by the same number
        return Drift(_shift(chains), _late(chains), _growth(chains))


def _shift(chains: Array) -> float:
    """Return how far early draws have moved the mean over all draws, for the share that moved it most."""
    n_draws = chains.shape[1]
    late = chains[:, n_draws // 2 :].mean(axis=1)
    counts = [max(1, int(share * n_draws)) for share in _EARLY]
    shifts = [count / n_draws * _change(chains[:, :count].mean(axis=1), late) for count in counts]
    return _in_late_sd(max(shifts), chains)


def _late(chains: Array) -> float:
    """Return by how much the last quarter differs from the third."""
    third, last = np.array_split(chains[:, chains.shape[1] // 2 :], 2, axis=1)
    return _in_late_sd(_change(third.mean(axis=1), last.mean(axis=1)), chains)


def _in_late_sd(change: float, chains: Array) -> float:
    """Return a change in standard deviations of the second half, because early drift does not enlarge it."""
    sd = chains[:, chains.shape[1] // 2 :].std() or chains.std()
    return float(change / sd) if change > 0 else 0.0


def _change(early: Array, late: Array) -> float:
    """Return the absolute mean change of the chains' means (n_chains,), or 0 if chance explains it."""
    changes = late - early
    error = changes.std(ddof=1) / math.sqrt(len(changes))
    change = np.abs(changes.mean())
    return float(change if change > quantile_of_t(_CERTAINTY, len(changes) - 1) * error else 0.0)


def _growth(chains: Array) -> float:
    """Return by how much the variance of the chains' means grows from the first half to the second."""
    half = chains.shape[1] // 2
    first, second = (part.mean(axis=1) for part in (chains[:, :half], chains[:, -half:]))
    if not move_apart(first[:, None], second[:, None], 1 - _CERTAINTY):
        return 0.0
    return float((second.var() - first.var()) / chains.var())
