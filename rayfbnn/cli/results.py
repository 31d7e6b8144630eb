"""The commands that take results from the draws of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import AnyStore, AsJson, Decisive, RunStore, Skip, utf8
from rayfbnn.cli.program import NOT_CONVERGED, command
from rayfbnn.describe import results
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import answer, tell


@command
def predict(
    path: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="The store, or several stores to pool.")
    ],
    data: Annotated[
        Path,
        typer.Option(help="The cases to predict: a CSV or Parquet file with the columns of the inputs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the table of predictions, .csv or .parquet, one row for each case;"
            " replaced if it exists."
        ),
    ] = None,
    contributions: Annotated[
        bool,
        typer.Option(
            "--contributions",
            help="Adds to the table what each hidden layer, the inputs and the biases contribute to the"
            " outputs of the networks, as mean and standard deviation over draws. Their columns, such as"
            " y_from_h0_mean, are in units of the data file for real targets, and on the scale of log odds or"
            " logarithms for others. It needs --out.",
        ),
    ] = False,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Predict the targets of new cases from the draws of one store, or of several of the same posterior.

    For each case there are the mean, median and quantiles of its targets, or their probabilities. Labels and
    counts have the error rate that the predictions themselves expect. Where the file has the targets too,
    there are also errors and log probabilities. Averages over the cases are printed. A line on standard error
    warns if the chains are too few, or disagree too much, for these predictions.

    A run that has kept no draw yet is predicted from states of its latest earlier phase, which are not draws
    from the posterior: a warning says so, and the table has a column early_phase.
    """
    from rayfbnn import api

    if contributions and out is None:
        raise ConfigError("contributions: are columns of the table, which needs a file; give one with --out")
    prediction = api.predict(path, data=data, out=out, contributions=contributions, skip=skip)
    text = prediction.to_json() if as_json else results.prediction_text(prediction)
    if out is None:
        answer(text)
    else:
        tell(text if as_json else f"{text}\na row for each case: {out}")


@command
def diagnose(
    path: RunStore,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Cases at which the network's outputs are looked at in place of the training cases: a CSV or"
            " Parquet file with the columns of the inputs."
        ),
    ] = None,
    decisive: Decisive = "all",
    cases: Annotated[
        int,
        typer.Option(help="Number of cases, evenly spaced, at which the network's outputs are looked at."),
    ] = 10,
    max_rhat: Annotated[float, typer.Option(help="Largest R-hat that is ok, at least 1.")] = 1.01,
    min_ess: Annotated[
        float, typer.Option(help="Smallest effective sample size that is ok, above 0.")
    ] = 400.0,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Say whether the chains of a run agree, and whether its predictions and hyperparameters can be used.

    The quantities are sigmas, log densities and the network's outputs at some training cases, never single
    weights, which may change places without any change of the function. There are two verdicts: on the
    predictions (outputs, log likelihood, noise), and on the hyperparameters. Predictions can be usable
    although chains disagree, if the error of the average over chains is small.

    An approximation is judged by the course of its objective, by the spread of log evidences between starts,
    and by the Pareto k of the importance weights of its draws.

    The exit code is 3 unless everything has converged, or with --for predictions unless these can be used.
    """
    from rayfbnn import api

    diagnosis = api.diagnose(
        path,
        data=data,
        decisive=decisive,  # type: ignore[arg-type]  # checked there
        cases=cases,
        max_rhat=max_rhat,
        min_ess=min_ess,
        skip=skip,
    )
    answer(diagnosis.to_json() if as_json else results.diagnosis_text(diagnosis))
    if not diagnosis.ok:
        raise typer.Exit(NOT_CONVERGED)


@command
def plot(
    path: AnyStore,
    out: Annotated[
        Path, typer.Option(help="The folder for the pictures; created if it does not exist.")
    ] = Path("plots"),
    data: Annotated[
        Path | None,
        typer.Option(
            help="Cases with their targets. Adds a picture of predictions beside what happened, and an"
            " overview."
        ),
    ] = None,
    input_name: Annotated[
        str | None,
        typer.Option(
            parser=utf8,
            help="Name of the input that the predictive bands run along; the first one if not given.",
        ),
    ] = None,
    skip: Skip = 0,
) -> None:
    """Draw pictures of a run as PNG files: traces, convergence, predictions, relevance of inputs, survival.

    For draws from the prior there are functions and bands along one input.
    """
    from rayfbnn import api

    for picture in api.plot(path, out=out, data=data, input_name=input_name, skip=skip):
        tell(str(picture))


@command
def report(
    path: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="The store, or several stores to compare.")
    ],
    out: Annotated[
        Path, typer.Option(help="The file to write, which must end in .html; replaced if it exists.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Held-out cases with their targets, at which predictions are compared with what happened;"
            " the training cases if not given. A CSV or Parquet file."
        ),
    ] = None,
    skip: Skip = 0,
    progress: Annotated[bool, typer.Option(help="Shows on standard error what is computed.")] = True,
) -> None:
    """Write a report on a run, or on several side by side: one page of HTML that needs no network.

    It has the data, the model in words, the verdicts with their advice, predictions with their calibration,
    residuals, the relevance and the averaged effects of inputs, traces, and how to repeat and cite the run.
    """
    from rayfbnn import api

    tell(str(api.report(path, out=out, data=data, skip=skip, progress=progress)))


@command
def export(
    path: RunStore,
    out: Annotated[
        Path, typer.Option(help="The file to write, which must end in .npz; replaced if it exists.")
    ],
    draws: Annotated[
        int | None,
        typer.Option(
            help="Number of draws to take of all chains together; as many as max_mcse needs if not given."
        ),
    ] = None,
    max_mcse: Annotated[
        float,
        typer.Option(
            help="Largest Monte Carlo standard error of a predictive mean, in predictive standard deviations;"
            " 0 takes all draws."
        ),
    ] = 0.05,
    skip: Skip = 0,
) -> None:
    """Write draws of a run to a .npz file from which NumPy alone can predict.

    docs/serving.md has the page of code that predicts from it. As few draws are taken as keep the Monte Carlo
    error small, evenly spaced in every chain.
    """
    from rayfbnn import api

    written = api.export(path, out=out, draws=draws, max_mcse=max_mcse, skip=skip)
    tell(f"{written}: {written.stat().st_size / 1e6:.3g} MB")
