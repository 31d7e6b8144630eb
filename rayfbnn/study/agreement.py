"""Whether the chains of a study agree: nested R-hat, and drift that all chains share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.judging.chain_average import move_apart, quantile_of_t
from rayfbnn.arrays import Array
from rayfbnn.reduce.effective import both_scores

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
    for one in _rank_scores(values) if scores is None else scores:
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


def _rank_scores(values: Array) -> Iterator[Array]:
    """Yield `both_scores`; none for a quantity that never changes, and for values that are not finite."""
    if np.isfinite(values).all() and np.ptp(values) > 0:
        yield from both_scores(values)


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
