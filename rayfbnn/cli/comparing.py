"""The command that holds approximate posteriors against the exact one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import AsJson, Decisive, Set, ShowProgress, SpecFile, Workers
from rayfbnn.cli.program import NOT_CONVERGED, command
from rayfbnn.output.printing import tell


@command
def compare(
    spec: SpecFile,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The folder for stores, table and picture; created if it does not exist."
        ),
    ],
    data: Annotated[Path, typer.Option(help="The test cases with their targets: a CSV or Parquet file.")],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="The methods to compare, separated by commas, in the order of the table's rows: hmc, sghmc,"
            " laplace, bbb, vep, map, with their settings in the section methods of the configuration.",
        ),
    ] = "hmc",
    exact: Annotated[
        Path | None,
        typer.Option(
            metavar="STORE",
            help="The store whose draws count as exact, in place of that of hmc: of a run, or of `reject`.",
        ),
    ] = None,
    set: Set = None,
    decisive: Decisive = "all",
    annealing_runs: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Number of runs of annealed importance sampling, each from the prior to the posterior, that"
            " estimate the log evidence of the model for the row of the reference, as `evidence` does. 0"
            " makes none.",
        ),
    ] = 0,
    workers: Workers = None,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Fit a model by several methods, and compare their predictions with those of the exact posterior.

    Each method has its store, METHOD.zarr, in the folder. A store that is there already is resumed, or used
    as it is if it is complete. The folder also gets the table as compare.csv, and the picture compare.png.

    Test scores say how good predictions are, distances how close a method is to the posterior; they may rank
    methods differently. No distance means anything below that between halves of the reference, which is the
    last row of the table.

    The exit code is 3 unless the reference passes `diagnose`.
    """
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
    tell(comparison.to_json() if as_json else comparison.to_text())
    if not comparison.ok:
        raise typer.Exit(NOT_CONVERGED)
