"""The verbs as commands of the shell, with the names and parameters that they have in Python."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayfbnn import __version__
from rayfbnn.describe import results
from rayfbnn.errors import CheckFailed, RayFBNNError

if TYPE_CHECKING:
    from rayfbnn.run.running import RunSummary
    from rayfbnn.selftest.selftest import Finding

INTERRUPTED = 130  # the exit code of a process that SIGINT ended
NOT_CONVERGED = 3

app = typer.Typer(
    name="rayfbnn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # anything but a RayFBNNError is a bug, and shows its plain traceback
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"rayfbnn {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version.")
    ] = False,
) -> None:
    """Sample the posterior of Bayesian neural networks: many chains, resumable to the bit."""


SpecFile = Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The configuration, a TOML file.")]
NewStore = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store to create; nothing may exist there yet.")
]
RunStore = Annotated[Path, typer.Argument(metavar="STORE", help="The store of the run.")]
AnyStore = Annotated[Path, typer.Argument(metavar="STORE", help="The store.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help='Replaces values of the configuration by "key.path=value". Can be given several times.',
    ),
]
Train = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The training cases, in place of the file that data.train names. A CSV or Parquet file.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of worker processes on this machine; one for each core if not given."
        " 0 samples in this process, without Ray."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help='Address of a Ray cluster to use instead, such as "auto" or "host:port".'
        " The store must then be on storage that all its nodes share."
    ),
]
MaxFailures = Annotated[
    int, typer.Option(help="How many workers may die and be replaced before the run is given up.")
]
ShowProgress = Annotated[bool, typer.Option(help="Shows the progress on standard error.")]
Decisive = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="predictions|all",
        help='The verdict that makes `ok`: "predictions" if these can be used, or "all" if everything has'
        " converged.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="ok",
        help='"ok" makes the run longer, round by round, until its verdict is ok or the time is over. The'
        " draws are those of a run that had the final length from the start.",
    ),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time after which a run with `until` ends in any case: seconds, or text such as"
        ' "30m" or "1h30m".',
    ),
]
Skip = Annotated[int, typer.Option(help="Number of draws to leave out at the start of each chain.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Prints one JSON object on standard output, and nothing else.")
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command; its RayFBNNErrors become a message on standard error and an exit code."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except RayFBNNError as exc:
            print(f"rayfbnn {function.__name__}: {exc}", file=sys.stderr)
            raise typer.Exit(exc.exit_code) from None
        except KeyboardInterrupt as exc:
            print(f"rayfbnn {function.__name__}: {exc if str(exc) else 'stopped'}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    return app.command(help=_paragraphs(inspect.getdoc(function) or ""))(command)


def _paragraphs(text: str) -> str:
    """Return a text with one line for each paragraph; typer would keep the line breaks of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


@_command
def sample(
    spec: SpecFile,
    path: NewStore,
    data: Train = None,
    set: Set = None,
    until: Until = None,
    max_time: MaxTime = None,
    decisive: Decisive = "predictions",
    workers: Workers = None,
    address: Address = None,
    max_failures: MaxFailures = 3,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Draw from the posterior that a configuration describes, into a new store.

    Ctrl-C ends the run after the iterations under way and commits them; a second one ends it at once.
    `resume` continues the run either way, and the draws are the same as without the interruption. With
    --until ok the exit code is 3 if the time was over before the verdict was ok.
    """
    from rayfbnn import api

    summary = api.sample(
        spec,
        path,
        data=data,
        set=set or (),
        until=until,  # type: ignore[arg-type]  # checked there, as is decisive
        max_time=max_time,
        decisive=decisive,  # type: ignore[arg-type]
        workers=workers,
        address=address,
        max_failures=max_failures,
        progress=progress,
    )
    _print_run(summary, as_json)
    if summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)


@_command
def resume(
    path: RunStore,
    iterations: Annotated[
        int | None,
        typer.Option(help="Length of the last phase in all; more than planned makes the run longer."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="A configuration to compare with the store's. Any difference but a longer last phase is"
            " refused."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The training file, if it is no longer where it was. Its cases must be those in the store."
        ),
    ] = None,
    until: Until = None,
    max_time: MaxTime = None,
    decisive: Decisive = "predictions",
    workers: Workers = None,
    address: Address = None,
    max_failures: MaxFailures = 3,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped or killed, or make a finished run longer.

    The draws are bit for bit those of a run without the interruption. The store has its own copy of the
    configuration and of the training cases, so neither file is needed any more. With --until ok the exit code
    is 3 if the time was over before the verdict was ok.
    """
    from rayfbnn import api

    summary = api.resume(
        path,
        iterations=iterations,
        spec=spec,
        data=data,
        until=until,  # type: ignore[arg-type]  # checked there, as is decisive
        max_time=max_time,
        decisive=decisive,  # type: ignore[arg-type]
        workers=workers,
        address=address,
        max_failures=max_failures,
        progress=progress,
    )
    _print_run(summary, as_json)
    if summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)


@_command
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
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Predict the targets of new cases from the draws of one store, or of several of the same posterior.

    For each case there are the mean, median and quantiles of its targets, or their probabilities. Where the
    file has the targets too, there are also errors and log probabilities, whose summary is printed. A line on
    standard error warns if the chains are too few, or disagree too much, for these predictions.

    A run that has kept no draw yet is predicted from states of its latest earlier phase, which are not draws
    from the posterior: a warning says so, and the table has a column early_phase.
    """
    from rayfbnn import api

    prediction = api.predict(path, data=data, out=out, skip=skip)
    print(prediction.to_json() if as_json else results.prediction_text(prediction))
    if out is not None and not as_json:
        print(f"a row for each case: {out}")


@_command
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
    print(diagnosis.to_json() if as_json else results.diagnosis_text(diagnosis))
    if not diagnosis.ok:
        raise typer.Exit(NOT_CONVERGED)


@_command
def reject(
    spec: SpecFile,
    path: NewStore,
    draws: Annotated[int, typer.Option(help="Number of draws.")],
    data: Train = None,
    set: Set = None,
    proposals_per_round: Annotated[int, typer.Option(help="Number of proposals made at once.")] = 1000,
    max_proposals: Annotated[
        int, typer.Option(help="Number of proposals after which it gives up.")
    ] = 100_000_000,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Draw exactly and independently from the posterior by rejection, into a new store.

    Networks are drawn from the prior and accepted with probability proportional to their likelihood. This is
    for small problems: the share of proposals that are accepted falls fast with the number of cases. `check`
    compares a run with these draws.
    """
    from rayfbnn import api

    summary = api.reject(
        spec,
        path,
        draws=draws,
        data=data,
        set=set or (),
        proposals_per_round=proposals_per_round,
        max_proposals=max_proposals,
        progress=progress,
    )
    _print_run(summary, as_json)


@_command
def prior(
    spec: SpecFile,
    path: NewStore,
    draws: Annotated[int, typer.Option(help="Number of draws.")],
    data: Train = None,
    set: Set = None,
    as_json: AsJson = False,
) -> None:
    """Draw networks, functions and data sets from the prior, into a new store.

    The training targets are used for nothing but standardisation. `predict` and `plot` read the store like
    any other. The phases of the configuration are not run, so layers may have step and erf units.
    """
    from rayfbnn import api

    _print_run(api.prior(spec, path, draws=draws, data=data, set=set or ()), as_json)


@_command
def evidence(
    spec: SpecFile,
    data: Train = None,
    set: Set = None,
    temperatures: Annotated[
        int, typer.Option(help="Number of steps from the prior to the posterior.")
    ] = 1000,
    power: Annotated[float, typer.Option(help="Inverse temperatures are (j/temperatures)**power.")] = 4.0,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Estimate the log marginal likelihood of the training targets by annealed importance sampling.

    Each chain of the configuration is an independent run from a draw of the prior to the posterior. With more
    temperatures the weights of the runs differ less; with more chains their mean is more accurate.
    """
    from rayfbnn import api

    evidence = api.evidence(
        spec, data=data, set=set or (), temperatures=temperatures, power=power, progress=progress
    )
    print(json.dumps(asdict(evidence)) if as_json else results.evidence_text(evidence))


@_command
def check(
    path: RunStore,
    exact: Annotated[
        Path,
        typer.Argument(
            metavar="EXACT", help="A store that `reject` made from the same configuration and data."
        ),
    ],
    false_alarm_rate: Annotated[
        float,
        typer.Option(
            help="Probability, over all quantities together, that a difference is reported where there is"
            " none."
        ),
    ] = 1e-3,
    cases: Annotated[
        int,
        typer.Option(
            help="Number of training cases, evenly spaced, at which the network's outputs are compared."
        ),
    ] = 10,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Test whether the draws of a run can be from the same distribution as exact draws of its posterior.

    The exit code is 1 if they differ by more than chance allows.
    """
    from rayfbnn import api

    result = api.check(path, exact, false_alarm_rate=false_alarm_rate, cases=cases, skip=skip)
    print(result.to_json() if as_json else results.check_text(result))
    if not result.ok:
        raise CheckFailed("; ".join(result.reasons))


@_command
def show(
    what: Annotated[Path, typer.Argument(metavar="RUN.TOML|STORE", help="A configuration, or a store.")],
    data: Train = None,
    set: Set = None,
) -> None:
    """Describe a configuration or a store in words: network, priors, schedule and its cost, defaults used.

    It lists the inputs with what becomes of each column, and the columns that are left out. The columns of
    the training cases are checked, if these are there. The text also names the kernel, which is the code
    that runs the trajectories on this machine; for a store it is the kernel that the run started with. For a
    store it says how far the run is. The configuration of a store is fixed, so --set is only for a file.
    """
    from rayfbnn import api

    print(api.show(what, data=data, set=set or ()))


@_command
def bench(
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN.TOML]", help="The configuration, a TOML file; standard networks if not given."
        ),
    ] = None,
    data: Train = None,
    set: Set = None,
    device: Annotated[
        str | None,
        typer.Option(help='"cpu" or "gpu"; that of the configuration if not given, or "cpu".'),
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            help="Number of chains that advance together: 16, 4096 on a GPU, or a batch of the configuration"
            " if not given; at most the chains of the configuration."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Leaves out the rounds of tuning, and times each standard network for a tenth of a second"
            " in place of a second.",
        ),
    ] = False,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Time leapfrog steps on this machine, of standard networks or of a configuration's own trajectories.

    The times are microseconds per step of a chain, by array code and by the kernel that is chosen here. For a
    configuration there is also an estimate of what the whole run takes. Where the length of trajectories is
    automatic, the estimate is from the shortest to the longest; a likely time comes from trying the first
    rounds of tuning for 20 seconds in a temporary store.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # as in workers; NumPy reads them when it is first imported
    from rayfbnn import api

    result = api.bench(
        spec, data=data, set=set or (), device=device, chains=chains, quick=quick, progress=progress
    )
    print(result.to_json() if as_json else results.bench_text(result))


@_command
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
    print(f"{written}: {written.stat().st_size / 1e6:.3g} MB")


@_command
def verify(
    path: AnyStore,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Sets damaged blocks aside, and the blocks after them, so that `resume` computes them"
            " again.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file of a store against its checksum and commit record.

    The exit code is 1 if a file is damaged and --repair is not given.
    """
    from rayfbnn import api

    report = api.verify(path, repair=repair)
    if as_json:
        print(json.dumps(asdict(report), default=str))
    else:
        print(results.verification_text(report, repair=repair))
    if report.read_errors or (report.problems and not repair):
        raise typer.Exit(1)


@_command
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
            help="Name of the input that the predictive bands run along; the first one if not given."
        ),
    ] = None,
    skip: Skip = 0,
) -> None:
    """Draw pictures of a run as PNG files: traces, convergence, predictions, relevance of inputs, survival.

    For draws from the prior there are functions and bands along one input.
    """
    from rayfbnn import api

    for picture in api.plot(path, out=out, data=data, input_name=input_name, skip=skip):
        print(picture)


@_command
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

    print(api.report(path, out=out, data=data, skip=skip, progress=progress))


@_command
def demo(
    folder: Annotated[
        Path, typer.Argument(help="The folder for the data, the store, the predictions and the pictures.")
    ] = Path("demo"),
    workers: Workers = None,
    progress: ShowProgress = True,
) -> None:
    """Run the robot arm of Neal (1996), from sampling to predictions and pictures.

    A second call continues where an earlier one stopped, or reports again.
    """
    from rayfbnn.demo import demo as run_demo
    from rayfbnn.demo import demo_text

    print(demo_text(run_demo(folder, workers=workers, progress=progress)))


@_command
def selftest(
    device: Annotated[str, typer.Option(help='"cpu" or "gpu".')] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of the random numbers; another one is another test.")] = 1,
    chains: Annotated[
        int, typer.Option(help="Number of chains in the statistical tests; more chains see smaller faults.")
    ] = 10_000,
) -> None:
    """Test this machine before its results are trusted: gradients, reversal, and exact draws that stay exact.

    The exit code is 1 if a test fails.
    """
    from rayfbnn.selftest.selftest import selftest as run_selftest

    print(results.FINDING_HEADER, flush=True)
    findings = run_selftest(device=device, seed=seed, chains=chains, report=_print_finding)
    failed = [f"{finding.test} of {finding.subject}" for finding in findings if not finding.ok]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(findings)} tests failed on {device}: {'; '.join(failed)}")
    seconds = sum(finding.seconds for finding in findings)
    print(f"ok: all {len(findings)} tests passed on {device}, seed {seed}, in {seconds:.0f} seconds")


def _print_finding(finding: Finding) -> None:
    print(results.finding_text(finding), flush=True)


def _print_run(summary: RunSummary, as_json: bool) -> None:
    print(json.dumps(asdict(summary)) if as_json else results.run_text(summary))


def main() -> None:
    """Run the program `rayfbnn` with the arguments of the shell."""
    app()
