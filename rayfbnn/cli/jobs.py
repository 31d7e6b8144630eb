"""The commands for the jobs of a scheduler, which may be stopped and started again at any time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import (
    AsJson,
    Decisive,
    LogFormat,
    MaxTime,
    Method,
    RunStore,
    Set,
    SpecFile,
    Until,
)
from rayfbnn.cli.program import NOT_CONVERGED, command, print_run
from rayfbnn.errors import ConfigError, StoreReadError, StoreRefusedError, WorkerError
from rayfbnn.output.printing import answer, say
from rayfbnn.run.signals import START_AGAIN


@partial(command, docstrings=("sample_or_resume",))
def run(
    spec: SpecFile,
    path: RunStore,
    data: Path | None = None,
    set: Set = None,
    until: Until = None,
    max_time: MaxTime = None,
    decisive: Decisive = "predictions",
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
    log_format: LogFormat = "text",
    method: Method = None,
    as_json: AsJson = False,
) -> None:
    """A job script can start this command as often as the scheduler likes.

    Exit code 75 means "start me again": the run was stopped by a signal, workers died, or storage was full,
    away, or could not be read. 0 means that the run is complete. After 1, 2 and 3 (with --until ok it was not
    ok) the command must not be started again; after 73 another process is working on the run.
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
    if until is not None and summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)


@command
def status(
    path: RunStore,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print the status again and again, until the run is complete.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two lines of --watch.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    from rayfbnn import api
    from rayfbnn.describe.status import status_text

    if not every > 0:
        raise ConfigError(f"every: must be a number of seconds above 0, got {every:g}")
    while True:
        current = api.status(path)
        numbers = {"done": current.done, "seconds_left": current.seconds_left}
        text = json.dumps(asdict(current) | numbers) if as_json else status_text(current)
        if not answer(text, as_is=as_json) or not watch or current.complete:
            return
        time.sleep(every)


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
