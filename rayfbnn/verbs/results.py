"""The verbs that take results from the draws of a store: predict, diagnose, check and plot."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfbnn.data import Source, is_path, read_cases
from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file, whole_files, without_formulas
from rayfbnn.store.storage.places import as_typed
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    check_counts,
    check_decisive,
    check_folder,
    check_output,
    chosen_draws,
    draws_for_predictions,
    output_path,
)

if TYPE_CHECKING:
    from rayfbnn.answers.check import CheckResult
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.fit_diagnosis import FitDiagnosis
    from rayfbnn.answers.judging.verdicts import Decisive
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.arrays import Array
    from rayfbnn.draws.view import Draws

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
        _check_table_path(output_path(out), [path for store in stores for path in _input_files(store, data)])
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
        _write_table(prediction.table, Path(out))
    return prediction


def diagnose(
    path: str | Path,
    *,
    data: Source | None = None,
    decisive: Decisive = "all",
    cases: int = 10,
    max_rhat: float = 1.01,
    min_ess: float = 400.0,
    skip: int = 0,
) -> Diagnosis | FitDiagnosis:
    """Say whether the chains of a run agree, and whether its predictions and hyperparameters can be used.

    The quantities are sigmas, log densities and the network's outputs at some cases. Single weights are not
    among them, because units may change places without any change of the function. There are two verdicts: on
    the predictions (outputs, log likelihood, noise), and on the hyperparameters. Predictions can be usable
    although chains disagree, if the error of the average over chains is small.

    An approximation is judged by the course of its objective, by the spread of log evidences between starts,
    and by the Pareto k of the importance weights of its draws.

    Parameters
    ----------
    path
        The store of the run.
    data
        Cases at which the network's outputs are compared, instead of the training cases: a CSV or Parquet
        file with the columns of the inputs. From Python also a DataFrame or an array.
    decisive
        See `sample`.
    cases
        Number of cases, evenly spaced, at which the network's outputs are compared.
    max_rhat
        Largest R-hat that is ok, at least 1.
    min_ess
        Smallest effective sample size that is ok, above 0.
    skip
        See `predict`.

    Returns
    -------
    Diagnosis
        The table of quantities, the verdicts with advice, and `ok`, with the reasons if it is False. For an
        approximation a FitDiagnosis, with a table of starts.
    """
    from rayfbnn.answers.diagnostics import diagnose_draws
    from rayfbnn.answers.fit_diagnosis import diagnose_fit
    from rayfbnn.answers.judging.advice import heat_warning
    from rayfbnn.draws.choosing import without_first
    from rayfbnn.draws.view import committed

    check_counts(least=1, cases=cases)
    if not 1 <= max_rhat < math.inf:
        raise ConfigError(f"max_rhat: must be a number of at least 1, such as 1.01, got {max_rhat}")
    if not 0 < min_ess < math.inf:
        raise ConfigError(f"min_ess: must be a number above 0, such as 400, got {min_ess}")
    check_decisive(decisive)
    check_counts(least=0, skip=skip)
    run = without_first(committed(Store.open(path)), skip)
    if run.kind == "approximate":
        return diagnose_fit(run)
    if warning := heat_warning(run.store):
        _log.warning("%s", warning)
    inputs = None if data is None else read_cases(data, run.spec, run.data)[0]
    return diagnose_draws(
        run, cases=cases, max_rhat=max_rhat, min_ess=min_ess, inputs=inputs, decisive=decisive
    )


def check(
    path: str | Path,
    exact: str | Path,
    *,
    false_alarm_rate: float = 1e-3,
    cases: int = 10,
    skip: int = 0,
) -> CheckResult:
    """Test whether the draws of a run can be from the same distribution as exact draws of its posterior.

    Parameters
    ----------
    path
        The store of the run.
    exact
        A store that `reject` made from the same configuration and data.
    false_alarm_rate
        Probability, over all quantities together, of reporting a difference that does not exist.
    cases
        Number of training cases, evenly spaced, at which the network's outputs are compared.
    skip
        See `predict`.

    Returns
    -------
    CheckResult
        The table of tests, and `ok`, with the quantities that differ if it is False.
    """
    from rayfbnn.answers.check import check_draws
    from rayfbnn.draws.view import committed

    if not 0 < false_alarm_rate < 1:
        raise ConfigError(f"false_alarm_rate: must be between 0 and 1, got {false_alarm_rate}")
    check_counts(least=1, cases=cases)
    store, of_exact = Store.open(path), Store.open(exact)
    return check_draws(
        chosen_draws(store, skip), committed(of_exact), false_alarm_rate=false_alarm_rate, cases=cases
    )


def plot(
    path: str | Path,
    *,
    out: str | Path = "plots",
    data: Source | None = None,
    input_name: str | None = None,
    skip: int = 0,
) -> list[Path]:
    """Draw pictures of a run as PNG files: traces, convergence, predictions, relevance of inputs, survival.

    Predictive bands run along one input. Sigmas of inputs are drawn if inputs have their own sigmas, and
    survival curves for survival targets. For an approximation the objective by step replaces traces and
    convergence. For draws from the prior there are functions and bands along one input.

    Parameters
    ----------
    path
        The store.
    out
        The folder for the pictures; created if it does not exist.
    data
        Cases with their targets, for a picture of predictions against these targets, and an overview.
    input_name
        Name of the input that the predictive bands run along. The default is the first input.
    skip
        See `predict`.

    Returns
    -------
    list of Path
        The files of the pictures.
    """
    from rayfbnn.pictures import along_input

    store, folder = Store.open(path), output_path(out)
    _check_plot_arguments(store, folder, data, input_name)
    run = chosen_draws(store, skip)
    if run.kind == "prior":
        with whole_files(folder):
            return [
                along_input.function_lines(run, folder / "functions.png", input_name=input_name),
                along_input.predictive_bands([run], folder / "bands.png", input_name=input_name),
            ]
    cases = None
    if data is not None:
        inputs, targets = read_cases(data, run.spec, run.data)
        if targets is None:
            named = data if is_path(data) else "the table"
            raise ConfigError(
                f"data: {named} has no targets to compare with predictions; add them, or leave it out"
            )
        cases = predict(path, data=data, skip=skip), inputs, targets
    diagnosis = None if run.kind == "approximate" else diagnose(path, skip=skip)
    with whole_files(folder):
        return _pictures(run, folder, diagnosis, cases, input_name)


def _pictures(
    run: Draws,
    folder: Path,
    diagnosis: Diagnosis | FitDiagnosis | None,
    cases: tuple[Prediction, Array, Array] | None,
    input_name: str | None,
) -> list[Path]:
    """Draw the pictures of a run or of an approximation, and return their files.

    cases  predictions with their inputs and targets, if any are given
    """
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.pictures import along_input, chains, objective, predicted, relevance, survival

    pictures = []
    if isinstance(diagnosis, Diagnosis):
        pictures = [
            chains.traces_and_ranks(run, folder / "traces.png"),
            chains.rhat_and_ess(diagnosis, folder / "convergence.png"),
        ]
    if run.kind == "approximate":
        pictures = [objective.objective_by_step(run, folder / "objective.png")]
    pictures += [
        along_input.predictive_bands([run], folder / "bands.png", input_name=input_name),
    ]
    if relevance.has_relevance(run):
        pictures.append(relevance.relevance_of_inputs(run, folder / "relevance.png"))
    if survival.has_survival_curves(run):
        pictures.append(survival.survival_curves(run, folder / "survival.png"))
    if cases is not None:
        pictures.append(predicted.predicted_against_actual(run, *cases, folder / "predicted.png"))
        if isinstance(diagnosis, Diagnosis):
            pictures.append(predicted.overview(run, diagnosis, *cases, folder / "overview.png"))
    return pictures


def _check_plot_arguments(store: Store, folder: Path, data: Source | None, input_name: str | None) -> None:
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"out: {folder} is a file; give a folder for the pictures")
    check_folder(folder / "bands.png" if os.path.isdir(folder) else folder)
    inputs = _input_files(store, data)
    for path in (folder, *folder.glob("*.png")):  # an old picture may be a link
        check_output(path, inputs=inputs)
    if input_name is not None and input_name not in store.data.input_names:
        names = ", ".join(store.data.input_names)
        raise ConfigError(f"input_name: the store has no input {input_name}; its inputs are {names}")
    if data is not None and store.kind == "prior":
        named = data if is_path(data) else "data"
        raise ConfigError(
            f"data: draws from the prior are not compared with actual targets; leave {named} out"
        )


def _input_files(store: Store, data: Source | None) -> list[Path]:
    """Return the files that a verb must not overwrite: the file of the training cases, and `data`."""
    train = store.spec.train_path
    return ([] if train is None else [train]) + ([Path(data)] if isinstance(data, str | Path) else [])


def _check_table_path(path: Path, inputs: list[Path]) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"out: must end in .csv or .parquet, got {path}")
    if os.path.isdir(path):
        raise ConfigError(f"out: {path} is a folder; give the path of a .csv or .parquet file")
    check_folder(path)
    check_output(path, inputs=inputs)


def _write_table(table: Any, path: Path) -> None:
    with whole_file(path) as file:
        if path.suffix == ".csv":
            without_formulas(table).to_csv(file, index=False)
        else:
            table.to_parquet(file, index=False)
