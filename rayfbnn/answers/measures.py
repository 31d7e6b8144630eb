"""Measures of how good predictions are, each over all cases together, with their standard errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.concordance import concordance
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
