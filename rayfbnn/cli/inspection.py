"""The commands that describe a configuration, a store or this machine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayfbnn.cli.parameters import AsJson, RunStore, Set, SpecOrStore
from rayfbnn.cli.program import command
from rayfbnn.describe import verb_results
from rayfbnn.errors import CheckFailed
from rayfbnn.output.printing import answer

if TYPE_CHECKING:
    from rayfbnn.selftest.selftest import Finding


@command
def show(
    what: SpecOrStore,
    data: Path | None = None,
    set: Set = None,
) -> None:
    from rayfbnn import api

    answer(api.show(what, data=data, set=set or ()))


@command
def verify(
    path: RunStore,
    repair: Annotated[bool, typer.Option("--repair")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """The exit code is 1 if a file cannot be read, or is damaged and is not repaired."""
    from rayfbnn import api

    report = api.verify(path, repair=repair, dry_run=dry_run)
    if as_json:
        answer(json.dumps(asdict(report), default=str), as_is=True)
    else:
        answer(verb_results.verification_text(report, repair=repair, dry_run=dry_run))
    if report.read_errors or (report.problems and (dry_run or not repair)):
        raise typer.Exit(1)


@command
def bench(
    spec: Annotated[Path | None, typer.Argument(metavar="[RUN.TOML]")] = None,
    data: Path | None = None,
    set: Set = None,
    device: str | None = None,
    chains: int | None = None,
    quick: Annotated[bool, typer.Option("--quick")] = False,
    progress: bool = True,
    as_json: AsJson = False,
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # as in workers; NumPy reads them at its first import
    from rayfbnn import api

    result = api.bench(
        spec, data=data, set=set or (), device=device, chains=chains, quick=quick, progress=progress
    )
    answer(result.to_json() if as_json else verb_results.bench_text(result), as_is=as_json)


@command
def selftest(device: str = "cpu", seed: int = 1, chains: int = 10_000) -> None:
    """The exit code is 1 if a test fails."""
    from rayfbnn.selftest.selftest import selftest as run_selftest

    answer(verb_results.finding_header())
    findings = run_selftest(device=device, seed=seed, chains=chains, report=_print_finding)
    failed = [f"{finding.test} of {finding.subject}" for finding in findings if not finding.ok]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(findings)} tests failed on {device}: {'; '.join(failed)}")
    seconds = sum(finding.seconds for finding in findings)
    answer(f"ok: all {len(findings)} tests passed on {device}, seed {seed}, in {seconds:.0f} seconds")


def _print_finding(finding: Finding) -> None:
    answer(verb_results.finding_text(finding))
