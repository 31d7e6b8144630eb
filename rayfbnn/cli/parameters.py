"""The parameters that several commands share; descriptions.py has their help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.errors import ConfigError


def utf8(text: str) -> str:
    """Return an argument of the shell decoded as UTF-8, even if the locale is ASCII."""
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates stand for bytes that the locale cannot decode
        return os.fsencode(text).decode(errors="surrogateescape")
    return text


def chain_numbers(text: str | None) -> list[int] | None:
    """Return the numbers in a list such as "0,2"; ConfigError for anything else."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(
            f'chains: must be numbers with commas between them, such as 0,2, got "{text}"'
        ) from None


SpecFile = Annotated[Path, typer.Argument(metavar="RUN.TOML")]
SpecOrStore = Annotated[Path, typer.Argument(metavar="RUN.TOML|STORE")]
RunStore = Annotated[Path, typer.Argument(metavar="STORE")]
RunStores = Annotated[list[Path], typer.Argument(metavar="STORE...")]
DataFile = Annotated[Path, typer.Option()]
Set = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VAL", parser=utf8, help="Can be given several times."),
]
LogFormat = Annotated[str, typer.Option(metavar="text|json")]
Decisive = Annotated[str, typer.Option("--for", metavar="predictions|all")]
DecisiveWithFit = Annotated[str, typer.Option("--for", metavar="predictions|fit|all")]
Method = Annotated[str | None, typer.Option(metavar="METHOD")]
Chains = Annotated[str | None, typer.Option(metavar="NUMBER,...")]
Until = Annotated[str | None, typer.Option(metavar="ok")]
MaxTime = Annotated[str | None, typer.Option(metavar="TIME")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
]
