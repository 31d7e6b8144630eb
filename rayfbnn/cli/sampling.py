"""The commands that run Markov chains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import (
    Address,
    AsJson,
    Decisive,
    LogFormat,
    MaxFailures,
    MaxTime,
    Method,
    NewStore,
    RunStore,
    Set,
    ShowProgress,
    SpecFile,
    Train,
    Until,
    Workers,
)
from rayfbnn.cli.program import NOT_CONVERGED, command, print_run


@command
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
    log_format: LogFormat = "text",
    method: Method = None,
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
        log_format=log_format,  # type: ignore[arg-type]
        method=method,
    )
    print_run(summary, as_json)
    if summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)


@command
def resume(
    path: RunStore,
    iterations: Annotated[
        int | None,
        typer.Option(
            help="Length of the last phase in all; more than planned makes the run longer, less takes back"
            " what is not sampled yet."
        ),
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
            help="Training cases to compare with those in the store: a CSV or Parquet file. Any difference is"
            " refused."
        ),
    ] = None,
    until: Until = None,
    max_time: MaxTime = None,
    decisive: Decisive = "predictions",
    workers: Workers = None,
    address: Address = None,
    max_failures: MaxFailures = 3,
    progress: ShowProgress = True,
    log_format: LogFormat = "text",
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
        log_format=log_format,  # type: ignore[arg-type]
    )
    print_run(summary, as_json)
    if summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)
