"""The commands that take results from the draws of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import (
    AsJson,
    Chains,
    DataFile,
    DecisiveWithFit,
    RunStore,
    RunStores,
    Set,
    chain_numbers,
    utf8,
)
from rayfbnn.cli.program import NOT_CONVERGED, command
from rayfbnn.describe import verb_results
from rayfbnn.errors import ConfigError
from rayfbnn.output.printing import answer, tell


@command
def predict(
    path: RunStores,
    data: DataFile,
    set: Set = None,
    out: Path | None = None,
    contributions: Annotated[bool, typer.Option("--contributions", help="It needs --out.")] = False,
    draws: int | None = None,
    max_mcse: float = 0.0,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    as_json: AsJson = False,
) -> None:
    """The command prints averages over the cases."""
    from rayfbnn import api

    if contributions and out is None:
        raise ConfigError("contributions: needs a file for the table of predictions; give one with --out")
    prediction = api.predict(
        path,
        data=data,
        set=set or (),
        out=out,
        contributions=contributions,
        draws=draws,
        max_mcse=max_mcse,
        skip=skip,
        last=last,
        chains=chain_numbers(chains),
        workers=workers,
        address=address,
        device=device,
    )
    text = prediction.to_json() if as_json else verb_results.prediction_text(prediction)
    if out is None:
        answer(text, as_is=as_json)
    else:
        tell(text if as_json else f"{text}\na row for each case: {out}", as_is=as_json)


@command
def diagnose(
    path: RunStore,
    data: Path | None = None,
    decisive: DecisiveWithFit = "all",
    fit: bool = True,
    cases: int = 10,
    max_rhat: float = 1.01,
    min_ess: float = 400.0,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
    as_json: AsJson = False,
) -> None:
    """The exit code is 3 unless everything has converged; with --for predictions, unless they can be used.

    With --for fit it is 3 unless no misfit was found.
    """
    from rayfbnn import api

    diagnosis = api.diagnose(
        path,
        data=data,
        decisive=decisive,  # type: ignore[arg-type]  # checked there
        fit=fit,
        cases=cases,
        max_rhat=max_rhat,
        min_ess=min_ess,
        skip=skip,
        last=last,
        chains=chain_numbers(chains),
    )
    answer(diagnosis.to_json() if as_json else verb_results.diagnosis_text(diagnosis), as_is=as_json)
    if not diagnosis.ok:
        raise typer.Exit(NOT_CONVERGED)


@command
def loo(
    path: RunStores,
    out: Path | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
    workers: int | None = None,
    address: str | None = None,
    as_json: AsJson = False,
) -> None:
    """For one store the command prints ArviZ's summary, for several their comparison, the best first."""
    from rayfbnn import api

    paths = path[0] if len(path) == 1 else path
    result = api.loo(
        paths, out=out, skip=skip, last=last, chains=chain_numbers(chains), workers=workers, address=address
    )
    text = verb_results.loo_json(result) if as_json else verb_results.loo_text(result)
    if out is None:
        answer(text, as_is=as_json)
    else:
        tell(text if as_json else f"{text}\na row for each case: {out}", as_is=as_json)


@command
def plot(
    path: RunStore,
    out: Path = Path("plots"),
    data: Path | None = None,
    input_name: Annotated[str | None, typer.Option(parser=utf8)] = None,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
) -> None:
    from rayfbnn import api

    for picture in api.plot(
        path, out=out, data=data, input_name=input_name, skip=skip, last=last, chains=chain_numbers(chains)
    ):
        tell(str(picture), as_is=True)


@command
def report(
    path: RunStores,
    out: Annotated[Path, typer.Option()],
    data: Path | None = None,
    draws: int | None = None,
    max_mcse: float = 0.0,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
    progress: bool = True,
) -> None:
    from rayfbnn import api

    written = api.report(
        path,
        out=out,
        data=data,
        draws=draws,
        max_mcse=max_mcse,
        skip=skip,
        last=last,
        chains=chain_numbers(chains),
        progress=progress,
    )
    tell(str(written), as_is=True)


@command
def export(
    path: RunStore,
    out: Annotated[Path, typer.Option()],
    draws: int | None = None,
    max_mcse: float | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Chains = None,
    variables: Annotated[str, typer.Option(metavar="NAME,...", parser=utf8)] = "",
    groups: Annotated[str, typer.Option(metavar="NAME,...")] = "",
) -> None:
    from rayfbnn import api

    written = api.export(
        path,
        out=out,
        draws=draws,
        max_mcse=max_mcse,
        skip=skip,
        last=last,
        chains=chain_numbers(chains),
        variables=variables,
        groups=groups,
    )
    tell(f"{written}: {written.stat().st_size / 1e6:.3g} MB", as_is=True)
