"""The command that compares approximate posteriors with the exact one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import AsJson, DataFile, Decisive, Set, SpecFile
from rayfbnn.cli.program import NOT_CONVERGED, command
from rayfbnn.output.printing import tell


@command
def compare(
    spec: SpecFile,
    out: Annotated[Path, typer.Argument(metavar="FOLDER")],
    data: DataFile,
    methods: Annotated[str, typer.Option(metavar="NAME,...")] = "hmc",
    exact: Annotated[Path | None, typer.Option(metavar="STORE")] = None,
    set: Set = None,
    decisive: Decisive = "all",
    annealing_runs: Annotated[int, typer.Option(metavar="N")] = 0,
    workers: int | None = None,
    progress: bool = True,
    as_json: AsJson = False,
) -> None:
    """The exit code is 3 unless the reference passes `diagnose`."""
    from rayfbnn import api

    comparison = api.compare(
        spec,
        out,
        data=data,
        methods=methods,
        exact=exact,
        set=set or (),
        decisive=decisive,  # type: ignore[arg-type]  # checked there
        annealing_runs=annealing_runs,
        workers=workers,
        progress=progress,
    )
    tell(comparison.to_json() if as_json else comparison.to_text(), as_is=as_json)
    if not comparison.ok:
        raise typer.Exit(NOT_CONVERGED)
