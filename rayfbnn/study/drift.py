"""Drift: whether all chains of a study move alike, which their agreement cannot show.

Chains that start at one place and move the same way agree at every moment. Neither R-hat nor the spread of
the members' means then tells how far they have to go. But chains are independent, and therefore replicates
of every comparison of earlier draws with later ones. docs/studies.md states the rates of error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.answers.judging.on_the_way import move_apart, quantile_of_t
from rayfbnn.arrays import Array
from rayfbnn.study.nested import Scores

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


def find_drift(values: Array, scores: Scores) -> Drift:
    """Compare early draws with late ones, with all chains as replicates.

    If the mean of a share f of early draws differs by d from that of the second half, it has moved the mean
    over all draws by f d, provided that the second half is stationary. Geweke (1992), "Evaluating the
    accuracy of sampling-based approaches to the calculation of posterior moments", makes this comparison in
    one chain, with an estimated autocorrelation. Here the spread over chains gives its error, and the test is
    Student's t.

    Parameters
    ----------
    values : (n_members, n_chains, n_draws)    at least `LEAST_DRAWS` draws
    scores : two arrays of that shape          `nested.rank_scores` of the values
    """
    n_draws = values.shape[2]
    by_chain = [np.asarray(one, dtype=np.float64).reshape(-1, n_draws) for one in (values, *scores)]
    with np.errstate(all="ignore"):  # t is infinite if the means of all chains differ by the same number
        return Drift(
            shift=max(_shift(one) for one in by_chain),
            late=max(_late(one) for one in by_chain),
            growth=max(_growth(one) for one in by_chain[1:]),
        )


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
