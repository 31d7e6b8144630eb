"""Measures of how good predictions are, each over all cases together, with their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import point_column

if TYPE_CHECKING:
    import pandas as pd


MEASURES = ("squared_error", "absolute_error", "log_probability", "error_rate", "expected_error_rate")


def means_over_cases(table: pd.DataFrame) -> dict[str, float]:
    """Return the mean over cases of each column that is a measure, and its standard error as <measure>_se.

    A case with missing targets does not count. There is no standard error for a single case.
    """
    means = {}
    for measure in MEASURES:
        if measure in table:
            n_known = int(table[measure].count())
            means[measure] = float(table[measure].mean())
            if n_known > 1:
                means[f"{measure}_se"] = float(table[measure].std(ddof=1) / math.sqrt(n_known))
    return means


def measures_of_targets(run: Draws, table: pd.DataFrame, targets: Array) -> dict[str, float]:
    """Return the measures that are not means over cases, with their standard errors if these are known.

    Targets that are numbers have the root of the mean squared error of each target's mean, or of its median
    if it has no mean, <target>_rmse; censored times are left out. Survival times have the C-index of their
    medians, c_index; it is absent if no two cases are comparable.

    targets  (n_cases, n_targets) as on file
    """
    model, names = run.spec.data_model, run.data.target_names
    measures: dict[str, tuple[float, float]] = {}
    observed = np.where(targets < 0, np.nan, targets) if model.are_times else targets
    if not (model.has_labels or (model.are_times and np.isnan(observed).all())):
        for name, values in zip(names, observed.T, strict=True):
            differences = table[point_column(table, name)].to_numpy() - values
            measures[f"{name}_rmse"] = root_mean_square(differences)
    if model.are_times:
        found = concordance(targets[:, 0], table[f"{names[0]}_median"].to_numpy())
        if found is not None:
            measures["c_index"] = found.index, found.error
    result = {}
    for name, (value, error) in measures.items():
        result[name] = value
        if not math.isnan(error):
            result[f"{name}_se"] = error
    return result


def root_mean_square(differences: Array) -> tuple[float, float]:
    """Return the root of the mean of squares, and its standard error by the delta method.

    The error is NaN for a single difference, and if all are zero.

    differences  (n_cases,), NaN if unknown
    """
    squares = np.square(differences[~np.isnan(differences)])
    if len(squares) == 0:
        return math.nan, math.nan
    root = math.sqrt(squares.mean())
    if len(squares) == 1 or root == 0:
        return root, math.nan
    return root, float(squares.std(ddof=1) / math.sqrt(len(squares)) / (2 * root))


@dataclass(frozen=True)
class Concordance:
    """Harrell's C-index.

    index    share of the comparable pairs with predicted times in the observed order
    error    its standard error over cases; NaN for two cases
    n_pairs  number of comparable pairs
    """

    index: float
    error: float
    n_pairs: int


def concordance(times: Array, predicted: Array) -> Concordance | None:
    """Return Harrell's C-index of predicted times in O(n log n); None if no two cases are comparable.

    A pair of cases is comparable if the shorter time is that of an event, and the other case is observed for
    longer or censored at the same time. A pair scores 1 if the predicted times are in the same order, 1/2 if
    they are equal, and 0 otherwise. The index C is the mean score of the comparable pairs.
    Harrell, Lee and Mark, Statistics in Medicine 15 (1996), 361-387.

    The standard error is that of a ratio of two U-statistics. If case i has the total score a_i in its c_i
    comparable pairs, the error is 2 sqrt(n / (n - 1) sum_i (a_i - C c_i)^2) / sum_i c_i.

    Parameters
    ----------
    times : (n_cases,)      negative if observation ended before the event, NaN if missing
    predicted : (n_cases,)  such as medians; cases without one (NaN) are left out
    """
    is_known = ~np.isnan(times) & ~np.isnan(predicted)
    times, predicted = times[is_known], predicted[is_known]
    is_event, n = times > 0, len(times)
    # Two events at one time have the same place, and a case that is censored then has the next.
    _, places = np.unique(np.stack([np.abs(times), ~is_event]), axis=1, return_inverse=True)
    scores, pairs = _scores(places.ravel(), np.unique(predicted, return_inverse=True)[1], is_event)
    if not pairs.any():
        return None
    index = float(scores.sum() / pairs.sum())
    squares = float(np.square(scores - index * pairs).sum())
    error = 2 * math.sqrt(n / (n - 1) * squares) / float(pairs.sum()) if n > 2 else math.nan
    return Concordance(index, error, int(pairs.sum()) // 2)


def _scores(places: Array, ranks: Array, is_event: Array) -> tuple[Array, Array]:
    """Return the total score of each case in its comparable pairs, and their number, (n_cases,) each.

    The cases are sorted into groups by the bits of their places, the highest bit first. Two cases part at
    the first bit in which their places differ, and are counted there.

    places    whole numbers from 0 in the order of the observed times
    ranks     whole numbers from 0 in the order of the predicted times
    is_event  whether the time is that of an event
    """
    scores, pairs = np.zeros(len(places)), np.zeros(len(places), dtype=np.int64)
    order = np.argsort(ranks, kind="stable")
    for bit in reversed(range(int(places.max(initial=0)).bit_length())):
        groups, is_later = places[order] >> (bit + 1), (places[order] >> bit) % 2 == 1
        added, n_added, destinations = _parted(groups, ranks[order], is_later, is_event[order])
        scores[order] += added
        pairs[order] += n_added
        order[destinations] = order.copy()
    return scores, pairs


def _parted(groups: Array, ranks: Array, is_later: Array, is_event: Array) -> tuple[Array, Array, Array]:
    """Compare the earlier cases of each group with its later ones, and sort the earlier ones to the front.

    Returns the score of each case, the number of its comparable pairs, and its new place. All arrays are
    (n_cases,), in the order of the groups and then of the ranks.
    """
    is_sooner = ~is_later & is_event  # an earlier case that is censored is not comparable
    later, sooner = _running(is_later), _running(is_sooner)
    is_new_group = np.diff(groups, prepend=-1) != 0
    first, end = _ends(is_new_group)
    first_equal, end_equal = _ends(is_new_group | (np.diff(ranks, prepend=-1) != 0))
    of_sooner = later[end] - (later[first_equal] + later[end_equal]) / 2
    of_later = (sooner[first_equal] + sooner[end_equal]) / 2 - sooner[first]
    n_later, n_sooner = later[end] - later[first], sooner[end] - sooner[first]
    scores = np.where(is_later, of_later, np.where(is_sooner, of_sooner, 0.0))
    pairs = np.where(is_later, n_sooner, np.where(is_sooner, n_later, 0))
    later_before = later[:-1] - later[first]
    destinations = np.where(is_later, end - n_later + later_before, np.arange(len(groups)) - later_before)
    return scores, pairs, destinations


def _running(flags: Array) -> Array:
    """Return the number of true flags before each place, and before the end, (n + 1,)."""
    return np.concatenate([[0], np.cumsum(flags)])


def _ends(is_first: Array) -> tuple[Array, Array]:
    """Return the first place of each item's run and the place after its last, (n,) each."""
    begins = np.flatnonzero(is_first)
    lengths = np.diff(begins, append=len(is_first))
    return np.repeat(begins, lengths), np.repeat(begins + lengths, lengths)
