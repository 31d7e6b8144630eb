"""The verbs that write pictures and pages of HTML on runs: plot and report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.data import Source, is_path
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.output.printing import say
from rayfbnn.output.whole_file import whole_file, whole_files
from rayfbnn.store.storage.places import Place, near, place_of
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    cases_with_targets,
    check_folder,
    check_output,
    check_some_draws,
    chosen_draws,
    draws_for_predictions,
    draws_weighed,
    input_files,
    output_path,
)
from rayfbnn.verbs.checking import diagnose
from rayfbnn.verbs.predicting import predict

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.fit_diagnosis import FitDiagnosis
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.arrays import Array
    from rayfbnn.draws.view import Draws
    from rayfbnn.reporting.reported_run import ReportedCases


def report(
    path: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    data: Source | None = None,
    draws: int | None = None,
    max_mcse: float = 0.0,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
    progress: bool = True,
) -> Path:
    """Write a report on a run, or on several side by side: one page of HTML that needs no network.

    It has the data, the model in words, the verdicts with their advice, predictions with their calibration,
    residuals, the relevance and the averaged effects of inputs, traces, and how to repeat and cite the run.
    Verdicts use all draws, everything else about a thousand unless `draws` or `max_mcse` says otherwise.

    Parameters
    ----------
    path
        The store, or several stores to compare, which may be of different posteriors.
    out
        The file to write, which must end in .html; replaced if it exists.
    data
        Held-out cases with their targets, to compare predictions with: a CSV or Parquet file. The
        default is the training cases. From Python also a DataFrame or a pair (X, y).
    draws
        Use so many draws of all chains of a store for predictions and pictures, evenly spaced. The default
        is about 1,000.
    max_mcse
        Use as many draws as keep the Monte Carlo error of the predictive means below this share of the
        predictive standard deviation, such as 0.01. The default of 0 takes about 1,000.
    skip, last, chains
        See `predict`.
    progress
        See `sample`.

    Returns
    -------
    Path
        The file.
    """
    from rayfbnn.reporting.page import check_installed
    from rayfbnn.reporting.report import report_html
    from rayfbnn.reporting.reported_run import read_run

    check_some_draws(draws, max_mcse)
    places = [place_of(one) for one in ([path] if isinstance(path, str | Path) else path)]
    if not places:
        raise ConfigError("path: no store given; give one or several")
    out = output_path(out)
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"out: must end in .html, got {out}")
    if os.path.isdir(out):
        raise ConfigError(f"out: {out} is a folder; give the path of an .html file")
    check_folder(out)
    check_installed()
    stores = [Store.open(place) for place in places]
    check_output(out, inputs=[file for store in stores for file in input_files(store, data)])
    every_case = [_cases(store, data) for store in stores]
    every_run = [draws_for_predictions(store, skip, last, chains) for store in stores]

    def tell(what: str) -> None:
        if progress:
            say(f"report: {what}")

    labels = _labels(places)
    with np.errstate(over="ignore", invalid="ignore"):  # vague priors reach infinity
        runs = [
            read_run(label, run, cases, tell, draws=draws, max_mcse=max_mcse)
            for label, run, cases in zip(labels, every_run, every_case, strict=True)
        ]
        text = report_html(runs, tell)
    with whole_file(out) as page:
        page.write(text.encode())
    return out


def _cases(store: Store, data: Source | None) -> ReportedCases:
    from rayfbnn.reporting.reported_run import ReportedCases

    if data is None:
        return ReportedCases.chosen_from(
            store.data.inputs, store.data.targets, "the training cases", is_held_out=False
        )
    named = str(data) if is_path(data) else "the table"
    return ReportedCases.chosen_from(
        *cases_with_targets(data, store.spec, store.data), named, is_held_out=True
    )


def _labels(places: Sequence[Place]) -> list[str]:
    resolved = [place.resolve() if isinstance(place, Path) else place for place in places]
    counts = Counter(place.name for place in resolved)
    if len(set(resolved)) < len(resolved):
        raise ConfigError("path: the same store is given twice; give each store once")
    return [
        found.name if counts[found.name] == 1 else near(place)
        for found, place in zip(resolved, places, strict=True)
    ]


def plot(
    path: str | Path,
    *,
    out: str | Path = "plots",
    data: Source | None = None,
    input_name: str | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
) -> list[Path]:
    """Draw pictures of a run as PNG files: traces, convergence, predictions, relevance of inputs, survival.

    Autocorrelations by lag show how many draws a chain takes to forget where it was. If stepsizes vary, as
    they do with jitter, the energy error of trajectories is drawn by stepsize.

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
        Cases with their targets, for a picture of predictions against these targets, and for the errors by
        iteration: of single draws, and of the predictive mean of the draws so far.
    input_name
        Name of the input that the predictive bands run along. The default is the first input.
    skip, last, chains
        See `predict`.

    Returns
    -------
    list of Path
        The files of the pictures.
    """
    from rayfbnn.pictures.along_input import function_lines, predictive_bands

    store, folder = Store.open(path), output_path(out)
    _check_plot_arguments(store, folder, data, input_name)
    run = chosen_draws(store, skip, last, chains)
    if run.kind == "prior":
        with whole_files(folder):
            return [
                function_lines(run, folder / "functions.png", input_name=input_name),
                predictive_bands(run, folder / "bands.png", input_name=input_name),
            ]
    cases = None
    if data is not None:
        inputs, targets = cases_with_targets(data, run.spec, run.data)
        cases = predict(path, data=data, skip=skip, last=last, chains=chains), inputs, targets
    diagnosis = None
    if run.kind != "approximate":
        diagnosis = diagnose(path, skip=skip, last=last, chains=chains)
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

    Pictures of predictions weigh ladders as `predict` does; all others show every ladder alike.

    cases  predictions with their inputs and targets, if any are given
    """
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.errors_by_iteration import errors_by_iteration
    from rayfbnn.pictures import along_input, chains, predicted, sampling
    from rayfbnn.pictures.figures import arrange

    pictures, (weighed,) = [], draws_weighed([run])
    if isinstance(diagnosis, Diagnosis):
        pictures += [
            chains.traces_and_ranks(run, folder / "traces.png"),
            chains.rhat_and_ess(diagnosis, folder / "convergence.png"),
        ]
        if diagnosis.ladders is not None and diagnosis.ladders.evidence is not None:
            of_ladders = sampling.ladder_panels(run, diagnosis.ladders.evidence)
            pictures.append(arrange(folder / "ladder.png", of_ladders, columns=2))
    if run.kind == "mcmc":
        pictures.append(chains.autocorrelation_by_lag(run, folder / "autocorrelation.png"))
    if (by_stepsize := sampling.errors_by_stepsize(run)) is not None:
        pictures.append(sampling.energy_errors(by_stepsize, folder / "energy_errors.png"))
    if run.kind == "approximate":
        pictures.append(arrange(folder / "objective.png", [sampling.objective_panel(run)]))
    pictures.append(along_input.predictive_bands(weighed, folder / "bands.png", input_name=input_name))
    if along_input.relevance_groups(run):
        pictures.append(along_input.relevance_of_inputs(run, folder / "relevance.png"))
    if predicted.has_survival_curves(run):
        pictures.append(predicted.survival_curves(weighed, folder / "survival.png"))
    if cases is not None:
        pictures.append(predicted.predicted_against_actual(weighed, *cases, folder / "predicted.png"))
        errors = errors_by_iteration(run, *cases[1:]) if run.kind == "mcmc" else None
        if errors is not None:
            pictures.append(
                sampling.plot_errors_by_iteration(errors, folder / "errors.png", run.chain_numbers)
            )
    return pictures


def _check_plot_arguments(store: Store, folder: Path, data: Source | None, input_name: str | None) -> None:
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"out: {folder} is a file; give a folder for the pictures")
    check_folder(folder / "bands.png" if os.path.isdir(folder) else folder)
    inputs = input_files(store, data)
    for path in (folder, *folder.glob("*.png")):  # an old picture may be a link
        check_output(path, inputs=inputs)
    if input_name is not None and input_name not in store.data.input_names:
        names = ", ".join(at_most_ten(store.data.input_names))
        raise ConfigError(f"input_name: the store has no input {input_name}; its inputs are {names}")
    if data is not None and store.kind == "prior":
        named = data if is_path(data) else "data"
        raise ConfigError(
            f"data: draws from the prior are not compared with actual targets; leave {named} out"
        )
