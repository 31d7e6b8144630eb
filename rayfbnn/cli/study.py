"""The commands on studies: many seeds, and many configurations, as one object."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.jobs import start_again
from rayfbnn.cli.parameters import Address, AsJson, LogFormat, Set, ShowProgress, SpecFile, Train, utf8
from rayfbnn.cli.program import NOT_CONVERGED, app, command_of
from rayfbnn.output.printing import answer, tell

_MOST_DIGITS = 20  # of a seed

study_app = typer.Typer(
    no_args_is_help=True,
    help="Run many seeds of a configuration, or of a grid of configurations, as one study with a verdict.",
)
app.add_typer(study_app, name="study")
command = command_of(study_app)

Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of the study, or its address.")]
Folders = Annotated[
    list[Path],
    typer.Argument(metavar="STUDY...", help="The study; several with other seeds are merged."),
]
Number = Annotated[
    int, typer.Option(help="Number of the configuration of a grid, counted from 0; `status` lists them.")
]
Seeds = Annotated[
    str, typer.Option(metavar="NUMBER|LIST", help="How many seeds, such as 20; or the seeds, such as 1,2,5.")
]


@command
def create(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY", help="The folder of the study; nothing may exist there yet.")
    ],
    spec: SpecFile,
    seeds: Seeds,
    data: Train = None,
    set: Set = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY.PATH=A,B,C",
            parser=utf8,
            help="The values of a key, one configuration each. Given several times, every combination is a"
            " configuration.",
        ),
    ] = None,
    superchains: Annotated[
        bool,
        typer.Option("--superchains", help="Lets all chains of a member start from one draw from the prior."),
    ] = False,
    max_rhat: Annotated[float, typer.Option(help="Largest nested R-hat that is ok, above 1.")] = 1.01,
    max_mcse: Annotated[
        float,
        typer.Option(
            help="Largest error of a mean that is ok, in standard deviations, with that by a shared drift."
        ),
    ] = 0.05,
    least_draws: Annotated[int, typer.Option(help="Smallest number of draws of each chain.")] = 100,
    looks: Annotated[int, typer.Option(help="Number of looks at which the study may stop.")] = 4,
    cases: Annotated[
        int, typer.Option(help="Number of training cases, evenly spaced, at which outputs are looked at.")
    ] = 10,
) -> None:
    """Make a study of a configuration with several seeds, or of every combination of a grid; sample nothing.

    The last phase of the configuration has the iterations of all looks together. The study has its own copy
    of the configuration and of the training cases.
    """
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
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of processes on this machine that take members; one for each core if not given."
            " 0 runs members in this process, one after another."
        ),
    ] = None,
    address: Address = None,
    max_failures: Annotated[
        int, typer.Option(help="How many drivers may die and be replaced before the study is given up.")
    ] = 3,
    progress: ShowProgress = True,
    log_format: LogFormat = "text",
    as_json: AsJson = False,
) -> None:
    """Run every member to the next look, decide, and go on until every configuration is complete.

    It may be stopped or killed and started again, and several of these commands may be at one study at once,
    on one machine or many. Exit code 0 means that all members agree, 3 that they do not and no look is left,
    75 "start me again".
    """
    from rayfbnn.study import Study
    from rayfbnn.study.status import study_text

    with start_again("study run"):
        status = Study.open(path).run(
            workers=workers,
            address=address,
            max_failures=max_failures,
            progress=progress,
            log_format=log_format,  # type: ignore[arg-type]  # checked there
        )
    tell(json.dumps(asdict(status) | {"ok": status.ok}) if as_json else study_text(status))
    if not status.ok:
        raise typer.Exit(NOT_CONVERGED)


@command
def add(path: Folder, seeds: Seeds) -> None:
    """Add members with new seeds to every configuration; `run` then takes another look.

    Seeds can be added at any time, also after the last look. None is ever taken away.
    """
    from rayfbnn.study import Study

    study = Study.open(path)
    added = ", ".join(map(str, study.add(_seeds(seeds))))
    tell(f"{study.typed}: added the seeds {added}; go on with: rayfbnn study run {study.typed}")


@command
def status(path: Folder, as_json: AsJson = False) -> None:
    """Say how far every configuration and member is, and what each look decided."""
    from rayfbnn.study import Study
    from rayfbnn.study.status import study_text

    current = Study.open(path).status()
    more = {"ok": current.ok, "drivers": current.drivers(), "drivers_perhaps": current.drivers(None)}
    answer(json.dumps(asdict(current) | more) if as_json else study_text(current))


@command
def diagnose(paths: Folders, configuration: Number = 0, as_json: AsJson = False) -> None:
    """Judge what is committed now by the rule of the study, and put nothing on record.

    Several studies of the same configurations and cases are merged. The exit code is 3 if the rule does not
    allow to stop.
    """
    from rayfbnn.study import Study
    from rayfbnn.study.status import look_text

    first, *others = [Study.open(path) for path in paths]
    look = first.diagnose(configuration, others=others)
    answer(json.dumps(look.to_document()) if as_json else look_text(look))
    if not look.ok:
        raise typer.Exit(NOT_CONVERGED)


@command
def predict(
    paths: Folders,
    data: Annotated[Path, typer.Option(help="The cases to predict: a CSV or Parquet file.")],
    configuration: Number = 0,
    out: Annotated[
        Path | None, typer.Option(help="A CSV file for the predictions, one row for each case.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the targets of new cases from all committed draws of a configuration's members."""
    from rayfbnn.describe.results import prediction_text
    from rayfbnn.study import Study

    first, *others = [Study.open(path) for path in paths]
    prediction = first.predict(data, configuration=configuration, others=others, out=out)
    text = prediction.to_json() if as_json else prediction_text(prediction)
    answer(text) if out is None else tell(text)


@command
def report(
    path: Folder,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("study.html"),
    data: Annotated[
        Path | None,
        typer.Option(help="Cases with targets: configurations are ranked by how probable they find them."),
    ] = None,
) -> None:
    """Write one page of HTML on the study: verdict, looks, members, and with --data the ranking."""
    from rayfbnn.study import Study
    from rayfbnn.study.ranking import ranks_text

    study = Study.open(path)
    written = study.report(out, data=data)
    if data is not None:
        tell(ranks_text(study.rank(data)))
    tell(f"written: {written}")


def _seeds(text: str) -> int | list[int]:
    """Return a number of seeds, or the seeds that are listed; ConfigError if it is neither."""
    from rayfbnn.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts):
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ConfigError(f'seeds: must be a number such as 20, or seeds such as 1,2,5, got "{shown}"')
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers
