"""The files of tables that verbs write, with a row for each case."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file, without_formulas
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import check_folder, check_output


def input_files(store: Store, data: Source | None = None) -> list[Path]:
    """Return the files that a verb must not overwrite: the file of the training cases, and `data`."""
    train = store.spec.train_path
    return ([] if train is None else [train]) + ([Path(data)] if isinstance(data, str | Path) else [])


def check_table_path(path: Path, inputs: list[Path]) -> None:
    """Raise ConfigError unless a table can be written to a path, which must not be one of the inputs."""
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"out: must end in .csv or .parquet, got {path}")
    if os.path.isdir(path):
        raise ConfigError(f"out: {path} is a folder; give the path of a .csv or .parquet file")
    check_folder(path)
    check_output(path, inputs=inputs)


def write_table(table: Any, path: Path) -> None:
    """Write a table as CSV or Parquet, as the end of the path says."""
    with whole_file(path) as file:
        if path.suffix == ".csv":
            without_formulas(table).to_csv(file, index=False)
        else:
            table.to_parquet(file, index=False)
