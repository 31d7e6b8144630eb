"""The verb that predicts the targets of new cases: predict."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.store.storage.places import as_typed
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    chosen_draws,
    draws_for_predictions,
    output_path,
)
from rayfbnn.verbs.tables import check_table_path, input_files, write_table

if TYPE_CHECKING:
    from rayfbnn.answers.predict import Prediction

_log = logging.getLogger(__name__)


def predict(
    path: str | Path | Sequence[str | Path],
    *,
    data: Source,
    out: str | Path | None = None,
    contributions: bool = False,
    skip: int = 0,
) -> Prediction:
    """Predict the targets of new cases from the draws of one store, or of several of the same posterior.

    For each case there are the mean, median and quantiles of its targets, or their probabilities. Labels and
    counts also have the error rate that the predictions themselves expect. If the file has the targets too,
    there are errors and log probabilities. A warning on standard error says if the chains are too few, or
    disagree too much, for these predictions.

    A run that has kept no draw yet is predicted from the states of its latest earlier phase, which are not
    draws from the posterior. A warning says so, and the table and the summary have `early_phase`, the number
    of the phase. This is only possible for a single store.

    Parameters
    ----------
    path
        The store, or several stores to pool.
    data
        The cases to predict: a CSV or Parquet file with the columns of the inputs. From Python also a
        DataFrame (of pandas, Polars or Arrow), an array of the inputs, or a pair (X, y).
    out
        File for the table of predictions, .csv or .parquet, one row for each case; replaced if it exists.
    contributions
        Add to the table what each hidden layer, the inputs and the biases contribute to the outputs of the
        networks, as mean and standard deviation over draws. Their columns, such as y_from_h0_mean, are in
        units of the data file for real targets, and on the scale of log odds or logarithms for others.
    skip
        Number of draws to leave out at the start of each chain.

    Returns
    -------
    Prediction
        The table, a summary of the errors with their standard errors, and the verdict of `diagnose` on
        predictions, for these cases and from some of the draws. An earlier phase has no verdict.
    """
    from rayfbnn.answers.judging.of_predictions import verdict_on_predictions
    from rayfbnn.answers.predict import first_infinity, predict_from_draws

    paths = [path] if isinstance(path, str | Path) else path
    stores = [Store.open(path_of_one) for path_of_one in paths]
    if not stores:
        raise ConfigError("path: no store given; give one or several")
    if out is not None:
        check_table_path(output_path(out), [path for store in stores for path in input_files(store, data)])
    inputs, targets = read_cases(data, stores[0].spec, stores[0].data)
    of_store = draws_for_predictions if len(stores) == 1 else chosen_draws
    runs = [of_store(store, skip) for store in stores]
    prediction = predict_from_draws(runs, inputs, targets, contributions=contributions)
    prediction = replace(prediction, verdict=verdict_on_predictions(runs, inputs))
    if prediction.verdict is not None and not prediction.verdict.ok:
        _log.warning(
            "%s; what to do: rayfbnn diagnose %s --for predictions",
            prediction.verdict.warning,
            as_typed(runs[0].path),
        )
    if out is not None:
        if place := first_infinity(prediction.table):
            _log.warning("%s: row %d: %s is infinite", out, place[0] + 1, place[1])
        write_table(prediction.table, Path(out))
    return prediction
