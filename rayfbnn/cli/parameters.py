"""The parameters that several commands share, with their help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def utf8(text: str) -> str:
    """Return an argument of the shell as the UTF-8 that it is, where the locale is ASCII."""
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that the locale lacks are in it as surrogates
        return os.fsencode(text).decode(errors="surrogateescape")
    return text


SpecFile = Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The configuration, a TOML file.")]
NewStore = Annotated[
    Path, typer.Argument(metavar="STORE", help="The store to create; nothing may exist there yet.")
]
RunStore = Annotated[Path, typer.Argument(metavar="STORE", help="The store of the run.")]
AnyStore = Annotated[Path, typer.Argument(metavar="STORE", help="The store.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        parser=utf8,
        help='Replaces values of the configuration by "key.path=value". Can be given several times.',
    ),
]
Train = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The training cases, in place of the file that data.train names. A CSV or Parquet file.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of worker processes on this machine; one for each core, or for each GPU, if not given."
        " 0 samples in this process, without Ray."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help='Address of a Ray cluster to use instead, such as "auto" or "host:port".'
        " The store must then be on storage that all its nodes share."
    ),
]
MaxFailures = Annotated[
    int,
    typer.Option(
        help="How many workers may die at the same block, one after another, before the run is given up."
        " Those whose node died are not counted."
    ),
]
ShowProgress = Annotated[bool, typer.Option(help="Shows the progress on standard error.")]
LogFormat = Annotated[
    str,
    typer.Option(
        metavar="text|json",
        help='"json" adds a line of JSON for each block to STORE.log.jsonl, beside the store (in the current'
        " folder for a store in a bucket).",
    ),
]
Decisive = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="predictions|all",
        help='The verdict that makes `ok`: "predictions" if these can be used, or "all" if everything has'
        " converged.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="The method, whose settings are in the section methods of the configuration. hmc and sghmc are"
        " runs with phases of their own; bbb, laplace, vep and map are approximations, whose chains are"
        " starts. Left out, the run has the phases of the configuration.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="ok",
        help='"ok" makes the run longer, round by round, until its verdict is ok or the time is over. The'
        " draws are those of a run that had the final length from the start.",
    ),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time after which a run with `until` ends in any case: seconds, or text such as"
        ' "30m" or "1h30m".',
    ),
]
Skip = Annotated[int, typer.Option(help="Number of draws to leave out at the start of each chain.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Prints one JSON object on standard output, and nothing else.")
]
