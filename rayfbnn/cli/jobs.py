"""The commands for jobs of a scheduler, which may be stopped and started again at any time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
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
    RunStore,
    Set,
    ShowProgress,
    SpecFile,
    Train,
    Until,
    Workers,
)
from rayfbnn.cli.program import NOT_CONVERGED, command, print_run
from rayfbnn.errors import ConfigError, StoreReadError, WorkerError
from rayfbnn.output.printing import answer, say
from rayfbnn.run.signals import START_AGAIN


@command
def run(
    spec: SpecFile,
    path: Annotated[
        Path,
        typer.Argument(metavar="STORE", help="The store of the run; it is created if nothing is there."),
    ],
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
    """Bring a run to its end, wherever it stands: sample, resume or extend it, or do nothing if complete.

    The script of a job calls it: it may be started as often as a scheduler likes, and always ends with the
    same draws. Exit code 75 means "start me again": the run was stopped by a signal, workers died, or storage
    was full or could not be read. 0 means that the run is complete. After 1, 2 and 3 (with --until ok the
    time was over) it must not be started again; after 73 another process is at work.
    """
    from rayfbnn import api

    with start_again("run"):
        summary = api.sample_or_resume(
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
def status(
    path: RunStore,
    watch: Annotated[
        bool, typer.Option("--watch", help="Prints the status again and again, until the run is complete.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two lines of --watch.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Say how far a run is, how fast, when it will end, and whether anyone is at work on it.

    Any machine that reads the store can ask, while the run goes on or later. Nothing is locked or changed.
    """
    from rayfbnn import api
    from rayfbnn.describe.status import status_text

    if not every > 0:
        raise ConfigError(f"every: must be a number of seconds above 0, got {every:g}")
    while True:
        current = api.status(path)
        numbers = {"done": current.done, "seconds_left": current.seconds_left}
        text = json.dumps(asdict(current) | numbers) if as_json else status_text(current)
        if not answer(text) or not watch or current.complete:
            return
        time.sleep(every)


@contextmanager
def start_again(name: str) -> Iterator[None]:
    """End with exit code 75 after a signal and after errors that another start may not meet."""
    try:
        yield
    except (KeyboardInterrupt, WorkerError, StoreReadError) as exc:
        say(f"rayfbnn {name}: {exc if str(exc) else 'stopped'}; start it again")
        raise typer.Exit(START_AGAIN) from None
