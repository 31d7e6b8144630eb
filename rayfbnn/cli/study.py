"""The commands on studies: many seeds and configurations as one object."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayfbnn.cli.descriptions import STUDY
from rayfbnn.cli.jobs import start_again
from rayfbnn.cli.parameters import AsJson, LogFormat, Set, SpecFile, utf8
from rayfbnn.cli.program import NOT_CONVERGED, app
from rayfbnn.cli.program import command as command_of
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.output.lines import terminal_height
from rayfbnn.output.printing import Redrawn, answer, tell

if TYPE_CHECKING:
    from rayfbnn.study import Study
    from rayfbnn.study.study_status import StudyStatus

_MOST_DIGITS = 20  # of a seed

_study_app = typer.Typer(
    no_args_is_help=True,
    help="Run many seeds of a configuration, or of a grid of configurations, as one study with a verdict.",
)
app.add_typer(_study_app, name="study")
command = partial(command_of, group=_study_app, files=STUDY)

Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of the study, or its address.")]
Folders = Annotated[
    list[Path],
    typer.Argument(metavar="STUDY...", help="The study; several with other seeds are merged."),
]
Seeds = Annotated[str, typer.Option(metavar="NUMBER|LIST")]
Cases = Annotated[str, typer.Option(metavar="FILE|LIST", parser=utf8)]
OptionalCases = Annotated[str | None, typer.Option(metavar="FILE|LIST", parser=utf8)]


@partial(command, docstrings=("create", "Rule"))
def create(
    path: Annotated[Path, typer.Argument(metavar="STUDY")],
    spec: SpecFile,
    seeds: Seeds,
    data: Path | None = None,
    set: Set = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", parser=utf8, help="Can be given several times."),
    ] = None,
    superchains: Annotated[bool, typer.Option("--superchains")] = False,
    max_rhat: float = 1.01,
    max_mcse: float = 0.05,
    least_draws: int = 100,
    looks: int = 4,
    cases: int = 10,
) -> None:
    from rayfbnn.study import Rule, Study

    study = Study.create(
        path,
        spec,
        seeds=_seeds(seeds),
        data=data,
        vary=vary or (),
        set=set or (),
        superchains=superchains,
        rule=Rule(max_rhat, max_mcse, least_draws, looks, cases),
    )
    n_members = len(study.configurations) * len(study.seeds())
    tell(f"{study.place}: {n_members} members; run them with: rayfbnn study run {study.typed}")


@command
def run(
    path: Folder,
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
    log_format: LogFormat = "text",
    as_json: AsJson = False,
) -> None:
    """The exit code is 0 if all members agree, 3 if they do not and no look is left, 75 for another start."""
    from rayfbnn.study import Study
    from rayfbnn.study.study_status import study_text

    with start_again("study run"):
        status = Study.open(path).run(
            workers=workers,
            address=address,
            max_failures=max_failures,
            progress=progress,
            log_format=log_format,  # type: ignore[arg-type]  # checked there
        )
    tell(json.dumps(asdict(status) | {"ok": status.ok}) if as_json else study_text(status), as_is=as_json)
    if not status.ok:
        raise typer.Exit(NOT_CONVERGED)


@command
def add(path: Folder, seeds: Seeds) -> None:
    from rayfbnn.study import Study

    study = Study.open(path)
    added = ", ".join(at_most_ten(study.add(_seeds(seeds))))
    tell(f"{study.typed}: added the seeds {added}; continue with: rayfbnn study run {study.typed}")


@command
def status(
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
    from rayfbnn.study import Study
    from rayfbnn.study.study_status import study_text
    from rayfbnn.study.watching import watch_text

    if not every > 0:
        raise ConfigError(f"every: must be a number of seconds above 0, got {every:g}")
    screen = Redrawn()
    while True:
        current = Study.open(path).status()
        is_over = current.ok is not None or not watch
        if as_json:
            is_read = answer(_status_json(current), as_is=True)
        elif watch and not is_over:
            is_read = screen.answer(_watched(current))
        else:
            is_read = screen.answer(
                f"{watch_text(current)}\n{study_text(current)}" if watch else study_text(current)
            )
        if is_over or not is_read:
            return
        time.sleep(every)


def _status_json(current: StudyStatus) -> str:
    more = {"ok": current.ok, "drivers": current.drivers(), "drivers_perhaps": current.drivers(None)}
    return json.dumps(asdict(current) | more)


def _watched(current: StudyStatus) -> str:
    """Return the table as far as the terminal has room for it, or a line where there is no terminal."""
    from rayfbnn.study.watching import progress_line, watch_text

    if (height := terminal_height()) is None:
        return progress_line(current)
    per_configuration = (height - 2) // len(current.configurations) - 3
    return watch_text(current, most_rows=per_configuration)


@command
def diagnose(paths: Folders, configuration: int = 0, as_json: AsJson = False) -> None:
    """The exit code is 3 if the rule does not allow the study to stop."""
    from rayfbnn.study import Study
    from rayfbnn.study.study_status import look_text

    first, *others = [Study.open(path) for path in paths]
    look = first.diagnose(configuration, others=others)
    answer(json.dumps(look.to_document()) if as_json else look_text(look), as_is=as_json)
    if not look.ok:
        raise typer.Exit(NOT_CONVERGED)


@command
def predict(
    paths: Folders,
    data: Cases,
    configuration: Annotated[int | None, typer.Option()] = None,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """If training files are varied and no configuration is named, each configuration predicts separately.
    `--data` is then a file for each training file, in their order, such as new_{0..9}.csv or a.csv,b.csv, or
    one for all.
    """
    from rayfbnn.describe.verb_results import prediction_text
    from rayfbnn.study import Study

    first, *others = [Study.open(path) for path in paths]
    if configuration is None and first.n_training_files > 1:
        each = first.predict_each(_cases(first, data), others=others, out=out)
        text = each.to_json() if as_json else str(each)
    else:
        prediction = first.predict(Path(data), configuration=configuration, others=others, out=out)
        text = prediction.to_json() if as_json else prediction_text(prediction)
    answer(text, as_is=as_json) if out is None else tell(text, as_is=as_json)


@command
def report(path: Folder, out: Path = Path("study.html"), data: OptionalCases = None) -> None:
    from rayfbnn.study import Study
    from rayfbnn.study.ranking import ranks_text

    study = Study.open(path)
    cases = None if data is None else _cases(study, data)
    written = study.report(out, data=cases)
    if cases is not None:
        tell(ranks_text(study.rank(cases)))
    tell(f"written: {written}", as_is=True)


def _cases(study: Study, text: str) -> Path | list[Path]:
    """Return the file of cases, or the list of files if the study has several training files."""
    from rayfbnn.study.grid import listed

    if study.n_training_files == 1:
        return Path(text)
    return [Path(one.strip("\"'")) for one in listed(text)]


def _seeds(text: str) -> int | list[int]:
    """Return the number of seeds, or the list of seeds; ConfigError if the text is neither."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts):
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ConfigError(f'seeds: must be a number such as 20, or seeds such as 1,2,5, got "{shown}"')
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers
