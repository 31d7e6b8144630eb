"""The verbs as commands of the shell: names and parameters as in Python, and no logic."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayfbnn.errors import CheckFailed, RayFBNNError

if TYPE_CHECKING:
    from rayfbnn.reduce.check import CheckResult
    from rayfbnn.reduce.diagnostics import Diagnosis
    from rayfbnn.reduce.predict import Prediction
    from rayfbnn.run.running import RunSummary
    from rayfbnn.selftest.selftest import Finding
    from rayfbnn.timing.runs import BenchResult, Cost

INTERRUPTED = 130  # as a shell reports a process that SIGINT ended
NOT_CONVERGED = 3

app = typer.Typer(
    name="rayfbnn",
    help="Draws from the posterior of Bayesian neural networks: many chains, resumable to the bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # what is not a RayFBNNError is a bug, and shows its plain traceback
)

SpecFile = Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The configuration.")]
NewStore = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store to create; nothing may be there yet.")
]
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="The store.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a key of the configuration; may be given often."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Worker processes (default: one a core); 0 runs in this process, without Ray."),
]
Address = Annotated[str | None, typer.Option(help='A Ray cluster to join, such as "auto" or host:port.')]
MaxFailures = Annotated[int, typer.Option(help="How many workers may die and be replaced.")]
ShowProgress = Annotated[bool, typer.Option(help="Show how far the run is, on standard error.")]
Skip = Annotated[int, typer.Option(help="Draws of each chain to leave out, the first ones.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command whose RayFBNNErrors become a message and an exit code."""

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

    return app.command()(command)


@_command
def sample(
    spec: SpecFile,
    path: NewStore,
    set: Set = None,
    workers: Workers = None,
    address: Address = None,
    max_failures: MaxFailures = 3,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Draw from the posterior that a configuration describes, into a new store."""
    from rayfbnn import api

    summary = api.sample(
        spec,
        path,
        set=set or (),
        workers=workers,
        address=address,
        max_failures=max_failures,
        progress=progress,
    )
    _print_run(summary, as_json)


@_command
def resume(
    path: StorePath,
    iterations: Annotated[
        int | None,
        typer.Option(help="Length of the last phase in all; more than planned makes a run longer."),
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="Refuse to go on if this configuration differs from the store's.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The training file, if it is no longer where it was; its cases are compared."),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    max_failures: MaxFailures = 3,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or killed, to the same bits; or make a finished run longer."""
    from rayfbnn import api

    summary = api.resume(
        path,
        iterations=iterations,
        spec=spec,
        data=data,
        workers=workers,
        address=address,
        max_failures=max_failures,
        progress=progress,
    )
    _print_run(summary, as_json)


@_command
def predict(
    path: Annotated[list[Path], typer.Argument(metavar="STORE...", help="One store, or several to pool.")],
    data: Annotated[Path, typer.Option(help="The cases to predict, CSV or Parquet.")],
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .parquet file for a row of each case; replaced if there.")
    ] = None,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Predict new cases: means, medians, quantiles, probabilities, and errors where targets are known."""
    from rayfbnn import api

    prediction = api.predict(path, data=data, out=out, skip=skip)
    if as_json:
        print(prediction.to_json())
        return
    print(_prediction_text(prediction))
    if out is not None:
        print(f"a row of each case: {out}")


@_command
def diagnose(
    path: StorePath,
    cases: Annotated[int, typer.Option(help="Training cases at which the outputs are looked at.")] = 10,
    max_rhat: Annotated[float, typer.Option(help="R-hat above this is not ok.")] = 1.01,
    min_ess: Annotated[float, typer.Option(help="An effective sample size below this is not ok.")] = 400.0,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Say whether the chains agree; exit 3 when a check falls short."""
    from rayfbnn import api

    diagnosis = api.diagnose(path, cases=cases, max_rhat=max_rhat, min_ess=min_ess, skip=skip)
    print(diagnosis.to_json() if as_json else _diagnosis_text(diagnosis))
    if not diagnosis.ok:
        raise typer.Exit(NOT_CONVERGED)


@_command
def reject(
    spec: SpecFile,
    path: NewStore,
    draws: Annotated[int, typer.Option(help="How many exact draws.")],
    set: Set = None,
    proposals_per_round: Annotated[int, typer.Option(help="Proposals made at once.")] = 1000,
    max_proposals: Annotated[int, typer.Option(help="Give up after so many.")] = 100_000_000,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Exact, independent draws by rejection, for small problems, into a new store."""
    from rayfbnn import api

    summary = api.reject(
        spec,
        path,
        draws=draws,
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
    draws: Annotated[int, typer.Option(help="How many draws.")],
    set: Set = None,
    as_json: AsJson = False,
) -> None:
    """Draw networks, functions and data sets from the prior, into a new store."""
    from rayfbnn import api

    _print_run(api.prior(spec, path, draws=draws, set=set or ()), as_json)


@_command
def evidence(
    spec: SpecFile,
    set: Set = None,
    temperatures: Annotated[int, typer.Option(help="Steps from the prior to the posterior.")] = 1000,
    power: Annotated[
        float, typer.Option(help="Inverse temperatures are (j/temperatures) to this power.")
    ] = 4.0,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Estimate the log marginal likelihood by annealed importance sampling, one run for each chain."""
    from rayfbnn import api

    found = api.evidence(spec, set=set or (), temperatures=temperatures, power=power, progress=progress)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"log marginal likelihood {found.log_marginal_likelihood:.6g} +- {found.standard_error:.2g}")
    print(f"{found.runs} runs, worth {found.effective_runs:.1f} equally weighted ones")


@_command
def check(
    path: StorePath,
    exact: Annotated[Path, typer.Argument(metavar="EXACT", help="A store made by `reject`.")],
    false_alarm_rate: Annotated[float, typer.Option(help="Of a difference where there is none.")] = 1e-3,
    cases: Annotated[int, typer.Option(help="Training cases at which the outputs are compared.")] = 10,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Compare a run with exact draws of the same posterior; exit 1 if they differ more than by chance."""
    from rayfbnn import api

    result = api.check(path, exact, false_alarm_rate=false_alarm_rate, cases=cases, skip=skip)
    print(result.to_json() if as_json else _check_text(result))
    if not result.ok:
        raise CheckFailed("; ".join(result.reasons))


@_command
def show(
    what: Annotated[Path, typer.Argument(metavar="RUN.TOML|STORE", help="A configuration or a store.")],
    set: Set = None,
) -> None:
    """Print what a configuration or a store means: network, priors, schedule and its cost, defaults taken.

    It also names the code that runs the trajectories here, of a store that which it was begun with. The
    configuration of a store is fixed: --set is for a file alone.
    """
    from rayfbnn import api

    print(api.show(what, set=set or ()))


@_command
def bench(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[RUN.TOML]", help="A configuration; standard shapes if absent.")
    ] = None,
    set: Set = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or gpu; the configuration's if not given, or cpu.")
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            help="Advanced together: 16, on a GPU 4096, or a batch of the configuration's;"
            " at most the configuration's chains."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without the rounds of tuning that say which lengths are likely.")
    ] = False,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Time leapfrog steps on this machine, of standard networks or of a configuration's own trajectories.

    Of a configuration it also says how long the whole run takes: from the shortest to the longest
    trajectories where their length is automatic, and what is likely, with the lengths that the first rounds
    of tuning find in 20 seconds.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # as the workers have it; read when NumPy is first imported
    from rayfbnn import api

    result = api.bench(spec, set=set or (), device=device, chains=chains, quick=quick, progress=progress)
    print(result.to_json() if as_json else _bench_text(result))


@_command
def verify(
    path: StorePath,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged blocks aside, so that resume computes them again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file of a store against its checksum and commit record; exit 1 when one is damaged."""
    from rayfbnn import api

    report = api.verify(path, repair=repair)
    if as_json:
        print(json.dumps(asdict(report), default=str))
    else:
        for problem in report.problems:
            print(f"{problem.file}: {problem.what}")
        print(f"{report.files_checked} files checked, {len(report.problems)} problems")
        if repair and report.problems:
            print("what was damaged is set aside; resume computes it again")
        elif report.problems:
            print("--repair sets damaged blocks aside, and resume computes them again")
    if report.problems and not repair:
        raise typer.Exit(1)


@_command
def plot(
    path: StorePath,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("plots"),
    data: Annotated[
        Path | None, typer.Option(help="Cases with targets, to compare with predictions and for an overview.")
    ] = None,
    input_name: Annotated[
        str | None, typer.Option(help="Which input the bands of predictions run along.")
    ] = None,
    skip: Skip = 0,
) -> None:
    """Pictures of a run as PNG files: traces, convergence, predictions, relevance of inputs, survival."""
    from rayfbnn import api

    for picture in api.plot(path, out=out, data=data, input_name=input_name, skip=skip):
        print(picture)


@_command
def demo(
    folder: Annotated[Path, typer.Argument(help="Where it all goes.")] = Path("demo"),
    workers: Workers = None,
    progress: ShowProgress = True,
) -> None:
    """The robot arm of Neal (1996) from nothing to a picture; a second call goes on, or reports again."""
    from rayfbnn.demo import demo as run_demo

    found = run_demo(folder, workers=workers, progress=progress)
    print(_diagnosis_text(found.diagnosis))
    print(f"\nerrors on the test cases (a row of each case: {found.predictions})")
    print(_prediction_text(found.prediction))
    print("\npictures" if found.pictures else "\nno pictures: install rayfbnn[plots] for them")
    for picture in found.pictures:
        print(picture)
    if not found.diagnosis.ok:
        print(
            "\nThe sigmas of the weights move slowly in this problem; the predictions do not wait for them."
            f" For more draws: rayfbnn resume {found.store} --iterations 1000"
        )


@_command
def selftest(
    device: Annotated[str, typer.Option(help="cpu or gpu.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Other random numbers, for another look.")] = 1,
    chains: Annotated[int, typer.Option(help="In the statistical tests; more see smaller faults.")] = 10_000,
) -> None:
    """Test this machine before it is trusted: gradients, reversal, exact draws; exit 1 if one fails."""
    from rayfbnn.selftest.selftest import selftest as run_selftest

    print(f"{'test':<16}{'of':<34}{'found':<12}{'allowed':<14}verdict", flush=True)
    findings = run_selftest(device=device, seed=seed, chains=chains, report=_print_finding)
    failed = [f"{finding.test} of {finding.subject}" for finding in findings if not finding.ok]
    seconds = sum(finding.seconds for finding in findings)
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(findings)} tests failed on {device}: {'; '.join(failed)}")
    print(f"ok: all {len(findings)} tests passed on {device}, seed {seed}, in {seconds:.0f} seconds")


def _print_finding(finding: Finding) -> None:
    columns = f"{finding.test:<16}{finding.subject:<34}{finding.found:<12}{finding.allowed:<14}"
    print(columns + ("ok" if finding.ok else "FAILED"), flush=True)


def _prediction_text(prediction: Prediction) -> str:
    """The summary, each measure with its standard error."""
    summary = prediction.summary
    lines = []
    for name, value in summary.items():
        if not name.endswith("_se"):
            error = f" +- {summary[f'{name}_se']:.2g}" if f"{name}_se" in summary else ""
            lines.append(f"{name:<18}{value:.5g}{error}")
    return "\n".join(lines)


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    """The table of quantities, the thresholds, and the verdict with its reasons."""
    acceptance = "-" if diagnosis.acceptance is None else f"{diagnosis.acceptance:.3f}"
    limits = ", ".join(f"{name} {value:g}" for name, value in diagnosis.thresholds.items())
    return "\n".join(
        [
            diagnosis.quantities.to_string(float_format="{:.4g}".format),
            f"acceptance {acceptance}, divergences {diagnosis.divergences}",
            f"thresholds: {limits}",
            "ok" if diagnosis.ok else "not ok:",
            *(f"  {reason}" for reason in diagnosis.reasons),
        ]
    )


def _check_text(result: CheckResult) -> str:
    return "\n".join(
        [
            result.table.to_string(float_format="{:.4g}".format),
            f"p-values below {result.threshold:.3g} are differences; chance gives any with probability"
            f" {result.false_alarm_rate:g} at most",
            "ok" if result.ok else "not ok",
        ]
    )


def _bench_text(result: BenchResult) -> str:
    """The rows as a table, and the estimate in words."""
    lines = [f"{result.device}, {result.dtype}: microseconds per leapfrog step of a chain"]
    width = max([19, *(len(row.shape) for row in result.rows)]) + 1
    lines.append(f"{'shape':<{width}}{'chains':>8}{'us/step':>12}{'GFLOP/s':>10}  kernel")
    lines += [
        f"{row.shape:<{width}}{row.chains:>8}{row.us_per_step:>12g}{row.gflops:>10g}  {row.kernel}"
        for row in result.rows
    ]
    if (run := result.estimate) is not None:
        ends = (run.least, run.most) if run.least != run.most else (run.least,)
        lines.append(f"the whole run: {_costs_text(ends, run.workers)}")
        if len(ends) > 1:
            lines.append("from the shortest to the longest of automatic trajectories, which a run finds")
            if run.likely is None:
                lines.append("what is likely is not known: tuning was not tried, or for too short a time")
            else:
                lines.append(f"likely: {_costs_text((run.likely,), run.workers)}")
                lines.append("with the lengths that the first rounds of tuning have found, in 20 seconds")
    return "\n".join(lines)


def _costs_text(costs: Sequence[Cost], workers: int) -> str:
    """What a run takes, from the first of the costs to the last."""
    evaluations = " to ".join(f"{cost.gradient_evaluations:,}" for cost in costs)
    core = " to ".join(_duration(cost.core_seconds) for cost in costs)
    together = " to ".join(_duration(cost.seconds) for cost in costs)
    return (
        f"{evaluations} gradient evaluations, about {core} on one core,"
        f" {together} with {workers} worker{'s' if workers > 1 else ''}"
    )


def _duration(seconds: float) -> str:
    """Such as "45 seconds", "12 minutes", "3.4 hours"."""
    if seconds < 120:
        return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.3g} hours"


def _print_run(summary: RunSummary, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(summary)))
        return
    acceptance = "" if summary.acceptance is None else f", {summary.acceptance:.0%} accepted"
    replaced = f", {summary.failures} workers replaced" if summary.failures else ""
    print(
        f"{summary.path}: {summary.chains} chains of {summary.draws} draws{acceptance},"
        f" {summary.divergences} divergences{replaced}"
    )


def main() -> None:
    """The program `rayfbnn`."""
    app()
