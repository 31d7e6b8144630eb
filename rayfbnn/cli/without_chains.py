"""The commands that draw without Markov chains, or that compare a run with such draws."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import AsJson, Chains, RunStore, Set, SpecFile, SpecOrStore, chain_numbers
from rayfbnn.cli.program import command, print_run
from rayfbnn.describe import verb_results
from rayfbnn.errors import CheckFailed
from rayfbnn.output.printing import answer

Draws = Annotated[int, typer.Option()]


@command
def reject(
    spec: SpecFile,
    path: RunStore,
    draws: Draws,
    data: Path | None = None,
    set: Set = None,
    proposals_per_round: int = 1000,
    max_proposals: int = 100_000_000,
    progress: bool = True,
    as_json: AsJson = False,
) -> None:
    from rayfbnn import api

    summary = api.reject(
        spec,
        path,
        draws=draws,
        data=data,
        set=set or (),
        proposals_per_round=proposals_per_round,
        max_proposals=max_proposals,
        progress=progress,
    )
    print_run(summary, as_json)


@command
def prior(
    spec: SpecFile,
    path: RunStore,
    draws: Draws,
    data: Path | None = None,
    set: Set = None,
    as_json: AsJson = False,
) -> None:
    from rayfbnn import api

    print_run(api.prior(spec, path, draws=draws, data=data, set=set or ()), as_json)


@command
def evidence(
    spec: SpecOrStore,
    data: Path | None = None,
    set: Set = None,
    runs: int | None = None,
    temperatures: int = 1000,
    power: float | None = None,
    progress: bool = True,
    as_json: AsJson = False,
) -> None:
    from rayfbnn import api

    evidence = api.evidence(
        spec, data=data, set=set or (), runs=runs, temperatures=temperatures, power=power, progress=progress
    )
    answer(json.dumps(asdict(evidence)) if as_json else verb_results.evidence_text(evidence), as_is=as_json)


@command
def check(
    path: RunStore,
    exact: Annotated[Path, typer.Argument(metavar="EXACT")],
    false_alarm_rate: float = 1e-3,
    cases: int = 10,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
    as_json: AsJson = False,
) -> None:
    """The exit code is 1 if they differ by more than chance allows."""
    from rayfbnn import api

    result = api.check(
        path,
        exact,
        false_alarm_rate=false_alarm_rate,
        cases=cases,
        skip=skip,
        last=last,
        chains=chain_numbers(chains),
    )
    answer(result.to_json() if as_json else verb_results.check_text(result), as_is=as_json)
    if not result.ok:
        raise CheckFailed("; ".join(result.reasons))
