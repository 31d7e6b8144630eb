"""The commands that draw without Markov chains, or compare with such draws."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import AsJson, NewStore, RunStore, Set, ShowProgress, Skip, SpecFile, Train
from rayfbnn.cli.program import command, print_run
from rayfbnn.describe import results
from rayfbnn.errors import CheckFailed
from rayfbnn.output.printing import answer


@command
def reject(
    spec: SpecFile,
    path: NewStore,
    draws: Annotated[int, typer.Option(help="Number of draws.")],
    data: Train = None,
    set: Set = None,
    proposals_per_round: Annotated[int, typer.Option(help="Number of proposals made at once.")] = 1000,
    max_proposals: Annotated[
        int, typer.Option(help="Number of proposals after which it gives up.")
    ] = 100_000_000,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Draw exactly and independently from the posterior by rejection, into a new store.

    Networks are drawn from the prior and accepted with probability proportional to their likelihood. This is
    for small problems: the share of proposals that are accepted falls fast with the number of cases. `check`
    compares a run with these draws.
    """
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
    path: NewStore,
    draws: Annotated[int, typer.Option(help="Number of draws.")],
    data: Train = None,
    set: Set = None,
    as_json: AsJson = False,
) -> None:
    """Draw networks, functions and data sets from the prior, into a new store.

    The training targets are used for nothing but standardisation. `predict` and `plot` read the store like
    any other. The phases of the configuration are not run, so layers may have step and erf units.
    """
    from rayfbnn import api

    print_run(api.prior(spec, path, draws=draws, data=data, set=set or ()), as_json)


@command
def evidence(
    spec: SpecFile,
    data: Train = None,
    set: Set = None,
    temperatures: Annotated[
        int, typer.Option(help="Number of steps from the prior to the posterior.")
    ] = 1000,
    power: Annotated[float, typer.Option(help="Inverse temperatures are (j/temperatures)**power.")] = 4.0,
    progress: ShowProgress = True,
    as_json: AsJson = False,
) -> None:
    """Estimate the log marginal likelihood of the training targets by annealed importance sampling.

    Each chain of the configuration is an independent run from a draw of the prior to the posterior. With more
    temperatures the weights of the runs differ less; with more chains their mean is more accurate.
    """
    from rayfbnn import api

    evidence = api.evidence(
        spec, data=data, set=set or (), temperatures=temperatures, power=power, progress=progress
    )
    answer(json.dumps(asdict(evidence)) if as_json else results.evidence_text(evidence))


@command
def check(
    path: RunStore,
    exact: Annotated[
        Path,
        typer.Argument(
            metavar="EXACT", help="A store that `reject` made from the same configuration and data."
        ),
    ],
    false_alarm_rate: Annotated[
        float,
        typer.Option(
            help="Probability, over all quantities together, that a difference is reported where there is"
            " none."
        ),
    ] = 1e-3,
    cases: Annotated[
        int,
        typer.Option(
            help="Number of training cases, evenly spaced, at which the network's outputs are compared."
        ),
    ] = 10,
    skip: Skip = 0,
    as_json: AsJson = False,
) -> None:
    """Test whether the draws of a run can be from the same distribution as exact draws of its posterior.

    The exit code is 1 if they differ by more than chance allows.
    """
    from rayfbnn import api

    result = api.check(path, exact, false_alarm_rate=false_alarm_rate, cases=cases, skip=skip)
    answer(result.to_json() if as_json else results.check_text(result))
    if not result.ok:
        raise CheckFailed("; ".join(result.reasons))
