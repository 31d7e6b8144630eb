"""The commands that describe a configuration, a store or this machine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayfbnn.cli.parameters import AnyStore, AsJson, Set, ShowProgress, Train
from rayfbnn.cli.program import command
from rayfbnn.describe import results
from rayfbnn.errors import CheckFailed
from rayfbnn.output.printing import answer

if TYPE_CHECKING:
    from rayfbnn.selftest.selftest import Finding


@command
def show(
    what: Annotated[Path, typer.Argument(metavar="RUN.TOML|STORE", help="A configuration, or a store.")],
    data: Train = None,
    set: Set = None,
) -> None:
    """Describe a configuration or a store in words: network, priors, schedule and its cost, defaults used.

    It lists the inputs with what becomes of each column, and the columns that are left out. The columns of
    the training cases are checked, if these are there. The text also names the kernel, which is the code
    that runs the trajectories on this machine; for a store it is the kernel that the run started with. For a
    store it says how far the run is. The configuration of a store is fixed, so --set is only for a file.
    """
    from rayfbnn import api

    answer(api.show(what, data=data, set=set or ()))


@command
def verify(
    path: AnyStore,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Sets damaged blocks aside, and the blocks after them, so that `resume` computes them"
            " again.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Says what a repair would do, and changes nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file of a store against its checksum and commit record.

    The exit code is 1 if a file cannot be read, or is damaged and is not repaired.
    """
    from rayfbnn import api

    report = api.verify(path, repair=repair, dry_run=dry_run)
    if as_json:
        answer(json.dumps(asdict(report), default=str))
    else:
        answer(results.verification_text(report, repair=repair, dry_run=dry_run))
    if report.read_errors or (report.problems and (dry_run or not repair)):
        raise typer.Exit(1)


@command
def bench(
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN.TOML]", help="The configuration, a TOML file; standard networks if not given."
        ),
    ] = None,
    data: Train = None,
    set: Set = None,
    device: Annotated[
        str | None,
        typer.Option(help='"cpu" or "gpu"; that of the configuration if not given, or "cpu".'),
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            help="Number of chains that advance together: 16, 4096 on a GPU, or a batch of the configuration"
            " if not given; at most the chains of the configuration."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Leaves out the rounds of tuning, and times each standard network for a tenth of a second"
            " in place of a second.",
        ),
    ] = False,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Time leapfrog steps on this machine, of standard networks or of a configuration's own trajectories.

    The times are microseconds per step of a chain, by array code and by the kernel that is chosen here. For a
    configuration there is also an estimate of what the whole run takes. Where the length of trajectories is
    automatic, the estimate is from the shortest to the longest; a likely time comes from trying the first
    rounds of tuning for 20 seconds in a temporary store.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # as in workers; NumPy reads them when it is first imported
    from rayfbnn import api

    result = api.bench(
        spec, data=data, set=set or (), device=device, chains=chains, quick=quick, progress=progress
    )
    answer(result.to_json() if as_json else results.bench_text(result))


@command
def selftest(
    device: Annotated[str, typer.Option(help='"cpu" or "gpu".')] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of the random numbers; another one is another test.")] = 1,
    chains: Annotated[
        int, typer.Option(help="Number of chains in the statistical tests; more chains see smaller faults.")
    ] = 10_000,
) -> None:
    """Test this machine before its results are trusted: gradients, reversal, and exact draws that stay exact.

    The exit code is 1 if a test fails.
    """
    from rayfbnn.selftest.selftest import selftest as run_selftest

    answer(results.FINDING_HEADER)
    findings = run_selftest(device=device, seed=seed, chains=chains, report=_print_finding)
    failed = [f"{finding.test} of {finding.subject}" for finding in findings if not finding.ok]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(findings)} tests failed on {device}: {'; '.join(failed)}")
    seconds = sum(finding.seconds for finding in findings)
    answer(f"ok: all {len(findings)} tests passed on {device}, seed {seed}, in {seconds:.0f} seconds")


def _print_finding(finding: Finding) -> None:
    answer(results.finding_text(finding))
