"""The commands of the shell: each calls its verb, and prints the answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rayfbnn
from rayfbnn.cli.program import app, command, main, utf8
from rayfbnn.errors import (
    CheckFailed,
    ConfigError,
    StoreReadError,
    StoreRefusedError,
    WorkerError,
    at_most_ten,
)
from rayfbnn.output.lines import line_width, terminal_height
from rayfbnn.output.printing import Redrawn, answer, say, tell
from rayfbnn.run.signals import INTERRUPTED, START_AGAIN

if TYPE_CHECKING:
    from rayfbnn.run.running import RunSummary
    from rayfbnn.selftest.selftest import Finding
    from rayfbnn.study import Study
    from rayfbnn.study.study_status import StudyStatus

__all__ = ["INTERRUPTED", "NOT_CONVERGED", "START_AGAIN", "app", "main"]

NOT_CONVERGED = 3
_MOST_DIGITS = 20  # of a seed

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
]


def _json(result: Any) -> str:
    return str(result.to_json()) if hasattr(result, "to_json") else json.dumps(asdict(result), default=str)


def _answer(result: Any, as_json: bool, text: Callable[[Any], str] = str) -> None:
    answer(_json(result) if as_json else text(result), as_is=as_json)


def _tell_or_answer(text: str, out: Path | None, as_json: bool) -> None:
    if out is None:
        answer(text, as_is=as_json)
    else:
        tell(text if as_json else f"{text}\na row for each case: {out}", as_is=as_json)


def _print_run(summary: RunSummary, as_json: bool, until: str | None = None) -> None:
    tell(_json(summary) if as_json else str(summary), as_is=as_json)
    if until is not None and summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)


def _exit_unless(ok: bool | None) -> None:
    if not ok:
        raise typer.Exit(NOT_CONVERGED)


@contextmanager
def start_again(name: str) -> Iterator[None]:
    """End with exit code 75 after a signal, and after errors that may not occur again at the next start."""
    try:
        yield
    except StoreRefusedError:
        raise
    except (KeyboardInterrupt, WorkerError, StoreReadError) as exc:
        say(f"rayfbnn {name}: {exc if str(exc) else 'stopped'}; start it again")
        raise typer.Exit(START_AGAIN) from None


# `rayfbnn --help` lists the commands in this order.


@command
def sample(as_json: AsJson = False, **given: Any) -> None:
    """With --until ok the exit code is 3 if the run ends before its verdict is ok."""
    _print_run(rayfbnn.sample(**given), as_json, given["until"])


@command
def resume(as_json: AsJson = False, **given: Any) -> None:
    """With --until ok the exit code is 3 if the run ends before its verdict is ok."""
    _print_run(rayfbnn.resume(**given), as_json, given["until"])


@partial(command, verb="sample_or_resume")
def run(as_json: AsJson = False, **given: Any) -> None:
    """A job script can start this command as often as the scheduler likes.

    Exit code 75 means "start me again": the run was stopped by a signal, workers died, or storage was full,
    away, or could not be read. 0 means that the run is complete. After 1, 2 and 3 (with --until ok it was not
    ok) the command must not be started again; after 73 another process is working on the run.
    """
    with start_again("run"):
        summary = rayfbnn.sample_or_resume(**given)
        _print_run(summary, as_json, given["until"])


@command
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Print the status again and again, until the run is complete.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two lines of --watch.")] = 10.0,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    _check_every(every)
    while True:
        current = rayfbnn.status(**given)
        numbers = {"done": current.done, "seconds_left": current.seconds_left}
        text = json.dumps(asdict(current) | numbers) if as_json else str(current)
        if not answer(text, as_is=as_json) or not watch or current.complete:
            return
        time.sleep(every)


def _check_every(seconds: float) -> None:
    if not seconds > 0:
        raise ConfigError(f"every: must be a number of seconds above 0, got {seconds:g}")


@command
def predict(as_json: AsJson = False, **given: Any) -> None:
    """The command prints averages over the cases."""
    if given["contributions"] and given["out"] is None:
        raise ConfigError("contributions: needs a file for the table of predictions; give one with --out")
    prediction = rayfbnn.predict(**given)
    text = _json(prediction) if as_json else str(prediction)
    _tell_or_answer(text, given["out"], as_json)


@command
def diagnose(
    decisive: Annotated[str, typer.Option("--for", metavar="predictions|fit|all")] = "all",
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """The exit code is 3 unless everything has converged; with --for predictions, unless they can be used.

    With --for fit it is 3 unless no misfit was found.
    """
    diagnosis = rayfbnn.diagnose(decisive=decisive, **given)  # type: ignore[arg-type]  # checked there
    _answer(diagnosis, as_json)
    _exit_unless(diagnosis.ok)


@command
def loo(
    path: Annotated[list[Path], typer.Argument(metavar="STORE...")], as_json: AsJson = False, **given: Any
) -> None:
    """For one store the command prints ArviZ's summary, for several their comparison, the best first."""
    from rayfbnn.answers.loo import elpd_dict

    result: Any = rayfbnn.loo(path[0] if len(path) == 1 else path, **given)
    text = str(result)
    if as_json:
        text = json.dumps(elpd_dict(result)) if len(path) == 1 else _json(result)
    _tell_or_answer(text, given["out"], as_json)


@command
def plot(**given: Any) -> None:
    for picture in rayfbnn.plot(**given):
        tell(str(picture), as_is=True)


@command
def report(**given: Any) -> None:
    tell(str(rayfbnn.report(**given)), as_is=True)


@command
def export(**given: Any) -> None:
    written = rayfbnn.export(**given)
    tell(f"{written}: {written.stat().st_size / 1e6:.3g} MB", as_is=True)


@command
def show(as_json: AsJson = False, **given: Any) -> None:
    _answer(rayfbnn.show(**given), as_json)


@command
def verify(as_json: AsJson = False, **given: Any) -> None:
    """The exit code is 1 if a file cannot be read, or is damaged and is not repaired."""
    report = rayfbnn.verify(**given)
    _answer(report, as_json, partial(_verification, repair=given["repair"], dry_run=given["dry_run"]))
    if report.read_errors or (report.problems and (given["dry_run"] or not given["repair"])):
        raise typer.Exit(1)


def _verification(report: Any, *, repair: bool, dry_run: bool) -> str:
    """Return a line for each problem, the number of problems, and the repairs made or possible."""
    lines = [f"{problem.file}: {problem.what}" for problem in report.problems]
    lines.append(f"{report.files_checked} files checked, {len(report.problems)} problems")
    lines.extend(f"{'would ' if dry_run else ''}{step}" for step in report.repairs)
    if report.damage and dry_run:
        lines.append("nothing was changed; without --dry-run this is done, and resume recomputes the blocks")
    elif report.damage and repair:
        lines.append("damaged blocks were set aside; resume recomputes them")
    elif report.damage:
        lines.append("--repair sets damaged blocks aside, and resume recomputes them")
    if report.read_errors:
        lines.append("files that could not be read are left unchanged; find out why, then verify again")
    return "\n".join(lines)


@command
def bench(
    spec: Annotated[Path | None, typer.Argument(metavar="[RUN.TOML]")] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # as in workers; NumPy reads them at its first import
    _answer(rayfbnn.bench(spec, **given), as_json)


@command
def selftest(device: str = "cpu", **given: Any) -> None:
    """The exit code is 1 if a test fails."""
    from rayfbnn.selftest.selftest import selftest as run_selftest

    answer(_finding_row("test", "of", "found", "allowed", "verdict"))
    findings = run_selftest(device=device, **given, report=_print_finding)
    failed = [f"{finding.test} of {finding.subject}" for finding in findings if not finding.ok]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(findings)} tests failed on {device}: {'; '.join(failed)}")
    seconds = sum(finding.seconds for finding in findings)
    answer(
        f"ok: all {len(findings)} tests passed on {device}, seed {given['seed']}, in {seconds:.0f} seconds"
    )


def _print_finding(finding: Finding) -> None:
    verdict = "ok" if finding.ok else "FAILED"
    answer(_finding_row(finding.test, finding.subject, finding.found, finding.allowed, verdict))


def _finding_row(*cells: str) -> str:
    widths = [14, 35, 11, 11, 0]  # the longest text of each column; the last one needs no padding
    width = line_width()
    if width is not None:  # subjects are often short
        widths[1] = max(18, min(35, width - 52))
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


@command
def reject(as_json: AsJson = False, **given: Any) -> None:
    _print_run(rayfbnn.reject(**given), as_json)


@command
def prior(as_json: AsJson = False, **given: Any) -> None:
    _print_run(rayfbnn.prior(**given), as_json)


@command
def evidence(
    spec: Annotated[Path, typer.Argument(metavar="RUN.TOML|STORE")], as_json: AsJson = False, **given: Any
) -> None:
    _answer(rayfbnn.evidence(spec, **given), as_json)


@command
def check(as_json: AsJson = False, **given: Any) -> None:
    """The exit code is 1 if they differ by more than chance allows."""
    result = rayfbnn.check(**given)
    _answer(result, as_json)
    if not result.ok:
        raise CheckFailed("; ".join(result.reasons))


@command
def compare(
    methods: Annotated[str, typer.Option(metavar="NAME,...")] = "hmc", as_json: AsJson = False, **given: Any
) -> None:
    """The exit code is 3 unless the reference passes `diagnose`."""
    comparison = rayfbnn.compare(methods=methods, **given)
    tell(_json(comparison) if as_json else str(comparison), as_is=as_json)
    _exit_unless(comparison.ok)


@command
def demo(**given: Any) -> None:
    from rayfbnn.demo import demo as run_demo
    from rayfbnn.demo import demo_text

    tell(demo_text(run_demo(**given)))


# The commands on studies.

_study_app = typer.Typer(
    no_args_is_help=True,
    help="Run many seeds of a configuration, or of a grid of configurations, as one study with a verdict.",
)
app.add_typer(_study_app, name="study")
study_command = partial(command, group=_study_app)

Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of the study, or its address.")]
Folders = Annotated[
    list[Path],
    typer.Argument(metavar="STUDY...", help="The study; several with other seeds are merged."),
]
Seeds = Annotated[str, typer.Option(metavar="NUMBER|LIST")]
Cases = Annotated[str, typer.Option(metavar="FILE|LIST", parser=utf8)]
OptionalCases = Annotated[str | None, typer.Option(metavar="FILE|LIST", parser=utf8)]


@partial(study_command, fields_of="Rule")
def study_create(path: Annotated[Path, typer.Argument(metavar="STUDY")], seeds: Seeds, **given: Any) -> None:
    from rayfbnn.study import Rule

    rule = Rule(**{field.name: given.pop(field.name) for field in fields(Rule)})
    study = rayfbnn.Study.create(path, seeds=_seeds(seeds), rule=rule, **given)
    n_members = len(study.configurations) * len(study.seeds())
    tell(f"{study.place}: {n_members} members; run them with: rayfbnn study run {study.typed}")


@study_command
def study_run(path: Folder, as_json: AsJson = False, **given: Any) -> None:
    """The exit code is 0 if all members agree, 3 if they do not and no look is left, 75 for another start."""
    with start_again("study run"):
        status = rayfbnn.Study.open(path).run(**given)
    record = asdict(status) | {"ok": status.ok}
    tell(json.dumps(record, default=vars) if as_json else str(status), as_is=as_json)
    _exit_unless(status.ok)


@study_command
def study_add(path: Folder, seeds: Seeds) -> None:
    study = rayfbnn.Study.open(path)
    added = ", ".join(at_most_ten(study.add(_seeds(seeds))))
    tell(f"{study.typed}: added the seeds {added}; continue with: rayfbnn study run {study.typed}")


@study_command
def study_status(
    path: Folder,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show a row for each member again and again, until it is complete."),
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two times of --watch.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """With --watch, a terminal shows a table that is redrawn; elsewhere a line is added each time, and the
    table comes at the end.
    """
    from rayfbnn.study.study_status import watch_text

    _check_every(every)
    screen = Redrawn()
    while True:
        current = rayfbnn.Study.open(path).status()
        is_over = current.ok is not None or not watch
        if as_json:
            drivers = {"drivers": current.drivers(), "drivers_perhaps": current.drivers(None)}
            record = asdict(current) | {"ok": current.ok} | drivers
            is_read = answer(json.dumps(record, default=vars), as_is=True)
        elif watch and not is_over:
            is_read = screen.answer(_watched(current))
        else:
            is_read = screen.answer(f"{watch_text(current)}\n{current}" if watch else str(current))
        if is_over or not is_read:
            return
        time.sleep(every)


def _watched(current: StudyStatus) -> str:
    """Return the part of the table that fits the terminal, or a line without a terminal."""
    from rayfbnn.study.study_status import progress_line, watch_text

    if (height := terminal_height()) is None:
        return progress_line(current)
    per_configuration = (height - 2) // len(current.configurations) - 3
    return watch_text(current, most_rows=per_configuration)


@study_command
def study_diagnose(paths: Folders, configuration: int = 0, as_json: AsJson = False) -> None:
    """The exit code is 3 if the rule does not allow the study to stop."""
    from rayfbnn.study.study_status import look_text

    first, *others = [rayfbnn.Study.open(path) for path in paths]
    look = first.diagnose(configuration, others=others)
    answer(json.dumps(look.to_document()) if as_json else look_text(look), as_is=as_json)
    _exit_unless(look.ok)


@study_command
def study_predict(paths: Folders, data: Cases, as_json: AsJson = False, **given: Any) -> None:
    """If training files are varied and no configuration is named, each configuration predicts separately.
    `--data` is then a file for each training file, in their order, such as new_{0..9}.csv or a.csv,b.csv, or
    one for all.
    """
    first, *others = [rayfbnn.Study.open(path) for path in paths]
    out = given["out"]
    if given["configuration"] is None and first.n_training_files > 1:
        predicted: Any = first.predict_each(_cases(first, data), others=others, out=out)
    else:
        predicted = first.predict(Path(data), others=others, **given)
    text = _json(predicted) if as_json else str(predicted)
    answer(text, as_is=as_json) if out is None else tell(text, as_is=as_json)


@study_command
def study_report(path: Folder, out: Path = Path("study.html"), data: OptionalCases = None) -> None:
    from rayfbnn.study.training_files import ranking

    study = rayfbnn.Study.open(path)
    cases = None if data is None else _cases(study, data)
    written = study.report(out, data=cases)
    if cases is not None:
        tell(str(ranking(study.rank(cases))))
    tell(f"written: {written}", as_is=True)


def _cases(study: Study, text: str) -> Path | list[Path]:
    from rayfbnn.study.sealed import listed

    if study.n_training_files == 1:
        return Path(text)
    return [Path(one.strip("\"'")) for one in listed(text)]


def _seeds(text: str) -> int | list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts):
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ConfigError(f'seeds: must be a number such as 20, or seeds such as 1,2,5, got "{shown}"')
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers
