"""The commands that run Markov chains."""

from __future__ import annotations

from pathlib import Path

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


@command
def sample(
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
    """With --until ok the exit code is 3 if the run ends before its verdict is ok."""
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
    if until is not None and summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)


@command
def resume(
    path: RunStore,
    iterations: int | None = None,
    spec: Path | None = None,
    data: Path | None = None,
    until: Until = None,
    max_time: MaxTime = None,
    decisive: Decisive = "predictions",
    workers: int | None = None,
    address: str | None = None,
    max_failures: int = 3,
    progress: bool = True,
    log_format: LogFormat = "text",
    as_json: AsJson = False,
) -> None:
    """With --until ok the exit code is 3 if the run ends before its verdict is ok."""
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
    if until is not None and summary.ok is False:
        raise typer.Exit(NOT_CONVERGED)
