"""Data files as arrays: read, checked, standardised and hashed."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import DataError
from rayfbnn.model.likelihood.data_model import DataModel

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.spec import RunSpec

_NEEDED = "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training cases as they are on file, and how the network sees them: (value - center) / scale.

    inputs  (n_cases, n_inputs)  float64, unstandardised     input_center, input_scale    (n_inputs,)
    targets (n_cases, n_targets) float64, unstandardised     target_center, target_scale  (n_targets,)
    center is 0 and scale is 1 where a column is not standardised. A missing target is NaN.
    """

    inputs: Array
    targets: Array
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    input_center: Array
    input_scale: Array
    target_center: Array
    target_scale: Array

    @property
    def n_cases(self) -> int:
        """Number of training cases."""
        return int(self.inputs.shape[0])

    @property
    def n_inputs(self) -> int:
        """Number of inputs of a case."""
        return int(self.inputs.shape[1])

    @property
    def n_targets(self) -> int:
        """Number of targets of a case."""
        return int(self.targets.shape[1])

    @cached_property
    def standardized_inputs(self) -> Array:
        """(n_cases, n_inputs) float64, what the network is given."""
        return (self.inputs - self.input_center) / self.input_scale

    @cached_property
    def standardized_targets(self) -> Array:
        """(n_cases, n_targets) float64, what the data model is given."""
        return (self.targets - self.target_center) / self.target_scale

    @cached_property
    def hash(self) -> str:
        """SHA-256 of what the cases are: names, shape and values in order, not of the file they came from."""
        names = {"inputs": self.input_names, "targets": self.target_names, "cases": self.n_cases}
        digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode())
        for values in (self.inputs, self.targets):
            values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN of many; + 0.0: -0 becomes 0
            digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
        return digest.hexdigest()


def read_dataset(spec: RunSpec) -> Dataset:
    """The training cases a run asks for, checked; DataError names file, row and column."""
    return read_training_file(spec.train_path, spec)


def read_training_file(path: str | Path, spec: RunSpec) -> Dataset:
    """The training cases in `path`, read as `spec` says."""
    table = _read_table(Path(path))
    inputs = _columns(table, spec.data.inputs, Path(path))
    targets = _columns(table, spec.data.targets, Path(path), may_be_missing=True)
    if len(inputs) == 0:
        raise DataError(f"{path}: no rows below the header; at least one training case is needed")
    _check_range_of_targets(targets, spec.data.targets, Path(path), spec.data_model)
    for name, column in zip(spec.data.targets, targets.T, strict=True):
        if np.isnan(column).all():
            raise DataError(f"{path}: column {name}: every cell is empty; at least one target is needed")
    return make_dataset(
        inputs,
        targets,
        input_names=spec.data.inputs,
        target_names=spec.data.targets,
        standardize=spec.data.standardize,
        dtype=spec.dtype,
        source=str(path),
    )


def read_cases(path: str | Path, dataset: Dataset, data_model: DataModel) -> tuple[Array, Array | None]:
    """Cases to predict, as on file: inputs (n_cases, n_inputs) and, if the file has them, targets.

    The columns are found by the names of the training data; targets are None when the file has no target
    column at all, and NaN where a cell is empty.
    """
    path = Path(path)
    table = _read_table(path)
    inputs = _columns(table, dataset.input_names, path)
    if len(inputs) == 0:
        raise DataError(f"{path}: no rows below the header; at least one case is needed")
    if not any(name in table.columns for name in dataset.target_names):
        return inputs, None
    targets = _columns(table, dataset.target_names, path, may_be_missing=True)
    _check_range_of_targets(targets, dataset.target_names, path, data_model)
    return inputs, targets


def make_dataset(
    inputs: Array,
    targets: Array,
    *,
    input_names: Sequence[str],
    target_names: Sequence[str],
    standardize: Sequence[str] = (),
    dtype: str = "float64",
    source: str = "data",
) -> Dataset:
    """A Dataset of arrays (n_cases, n_inputs) and (n_cases, n_targets).

    "inputs" or "targets" in `standardize` centres these columns on their mean and divides them by their
    standard deviation (with n, not n - 1, below the root) over the training cases, those with the target
    missing (NaN) left out.
    """
    inputs, targets = (np.array(values, dtype=np.float64, order="C") for values in (inputs, targets))
    input_center, input_scale = _standardization(inputs, input_names, "inputs" in standardize, source)
    target_center, target_scale = _standardization(targets, target_names, "targets" in standardize, source)
    dataset = Dataset(
        inputs,
        targets,
        tuple(input_names),
        tuple(target_names),
        input_center,
        input_scale,
        target_center,
        target_scale,
    )
    _check_range(dataset.standardized_inputs, input_names, dtype, source)
    _check_range(dataset.standardized_targets, target_names, dtype, source)
    return dataset


def first_difference(ours: Dataset, other: Dataset) -> str | None:
    """Where two data sets first differ, in words, or None: names, number of cases, then row and column."""
    for what, in_store, in_file in (
        ("inputs", ", ".join(ours.input_names), ", ".join(other.input_names)),
        ("targets", ", ".join(ours.target_names), ", ".join(other.target_names)),
        ("number of rows", str(ours.n_cases), str(other.n_cases)),
    ):
        if in_store != in_file:
            return f"{what}: {in_store} in the store, {in_file} in the file"
    names = ours.input_names + ours.target_names
    a, b = np.hstack([ours.inputs, ours.targets]), np.hstack([other.inputs, other.targets])
    differing = np.argwhere((a != b) & ~(np.isnan(a) & np.isnan(b)))
    if len(differing) == 0:
        return None
    row, column = (int(index) for index in differing[0])
    values = f"{float(a[row, column])!r} in the store, {float(b[row, column])!r} in the file"
    return f"row {row + 1}, column {names[column]}: {values} ({len(differing)} values differ in all)"


def _read_table(path: Path) -> pd.DataFrame:
    """The file as a table; rows of a CSV file may not be longer than the first."""
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {reason}; {_NEEDED}")
    try:
        table = _read_parquet(path) if path.suffix in (".parquet", ".pq") else _read_csv(path)
    except DataError:
        raise
    # ValueError covers pandas' parser errors, Unicode errors and Arrow's; EOFError a cut .gz file.
    except (ValueError, OSError, EOFError, Warning) as exc:
        raise DataError(f"{path}: cannot be read: {' '.join(str(exc).split())}; {_NEEDED}") from exc
    table.columns = [str(name).strip() for name in table.columns]
    return table


def _read_csv(path: Path) -> pd.DataFrame:
    """Every cell as text: numbers are read by float(), which rounds correctly in every version of pandas."""
    import zlib

    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # given for rows that are too long
            rows: pd.DataFrame = pd.read_csv(
                path,
                header=None,
                dtype=str,
                encoding="utf-8-sig",
                keep_default_na=False,  # "NA" and "" stay text, so that a message can quote them
                skipinitialspace=True,
                index_col=False,
                compression="gzip" if _is_gzip(path) else None,
            )
    except zlib.error as exc:
        raise DataError(f"{path}: cannot be read: damaged gzip file: {exc}; {_NEEDED}") from exc
    table = rows.iloc[1:]
    table.columns = pd.Index(rows.iloc[0].fillna("").tolist())
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    table: pd.DataFrame = pd.read_parquet(path)
    return table


def _columns(table: pd.DataFrame, names: Sequence[str], path: Path, *, may_be_missing: bool = False) -> Array:
    """The named columns as float64 (n_cases, len(names)), every value finite; or NaN in empty cells."""
    columns = [_column(table, name, path, may_be_missing=may_be_missing) for name in names]
    return np.stack(columns, axis=1).reshape(len(table), len(names))


def _column(table: pd.DataFrame, name: str, path: Path, *, may_be_missing: bool) -> Array:
    if name not in table.columns:
        near = difflib.get_close_matches(name, list(table.columns), n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        more = ", ..." if len(table.columns) > 20 else ""
        listed = ", ".join(_short(column) for column in table.columns[:20]) + more
        raise DataError(f"{path}: no column named {name}{hint}; the file has: {listed}")
    if list(table.columns).count(name) > 1:
        raise DataError(f"{path}: column {name}: the header names it {list(table.columns).count(name)} times")
    column = table[name]
    if column.dtype.kind in "iuf" and not column.hasnans:
        values = column.to_numpy(dtype=np.float64)
    else:
        values = np.array([_number(value) for value in column], dtype=np.float64)
    is_wrong = ~np.isfinite(values)
    if may_be_missing and is_wrong.any():
        is_wrong &= ~_is_empty(column, path)
    wrong = np.flatnonzero(is_wrong)
    if len(wrong):
        row = int(wrong[0])
        value = column.iloc[row]
        raise DataError(
            f"{path}: row {row + 1}, column {name}: not a finite number, got {_short(str(value))!r}"
            f" ({len(wrong)} of {len(values)} rows; row 1 is the first below the header)"
        )
    return values


def _is_empty(column: pd.Series[Any], path: Path) -> Array:
    """Which cells hold nothing; a cell that is not there, the row being too short, is no empty one."""
    if path.suffix in (".parquet", ".pq"):
        return column.isna().to_numpy()
    is_blank = np.array([isinstance(value, str) and not value.strip() for value in column], dtype=bool)
    if is_blank.any():
        is_blank &= _is_whole(path, len(column))
    return is_blank


def _is_whole(path: Path, n_rows: int) -> Array:
    """Which rows of a CSV file have as many cells as the header; pandas fills the others up unseen."""
    import csv
    import gzip

    with gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as raw:
        lines = io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="")
        rows = csv.reader(lines, skipinitialspace=True)
        # As pandas does, without lines that have nothing but blanks.
        try:
            n_cells = [len(row) for row in rows if len(row) > 1 or "".join(row).strip()]
        except csv.Error as exc:  # a cell longer than it reads
            raise DataError(f"{path}: cannot be read: {exc}; leave out the column of that cell") from exc
    return np.array(n_cells[1 : n_rows + 1]) == n_cells[0]


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _short(text: str) -> str:
    """At most 80 characters of it, for a message."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(value: object) -> float:
    """The value as a float, NaN for anything that is not a number written out in full."""
    if isinstance(value, (bool, np.bool_)):
        return math.nan
    if not isinstance(value, (int, float, str, np.integer, np.floating)):
        return math.nan
    if isinstance(value, str) and "_" in value:  # float("1_000") is 1000
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _check_range_of_targets(targets: Array, names: Sequence[str], path: Path, data_model: DataModel) -> None:
    """Raise DataError for the first target that the data model does not allow."""
    allowed = data_model.target_range(targets)
    if allowed is None:
        return
    is_right = allowed.is_possible | np.isnan(targets)
    if not is_right.all():
        row, column = (int(index) for index in np.argwhere(~is_right)[0])
        value = float(targets[row, column])
        raise DataError(
            f"{path}: row {row + 1}, column {names[column]}: a {data_model.kind} target must be"
            f" {allowed.expected}, got {value:g}"
        )


def _standardization(values: Array, names: Sequence[str], wanted: bool, source: str) -> tuple[Array, Array]:
    """Center and scale of each column, 0 and 1 unless `wanted`."""
    if not wanted:
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isnan(values).any():
            center, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        else:
            center, scale = values.mean(axis=0), values.std(axis=0)
    for column, name in enumerate(names):
        low, high = np.nanmin(values[:, column]), np.nanmax(values[:, column])
        if low == high:
            raise DataError(
                f"{source}: column {name}: every row is {low:g}, so it cannot be standardised;"
                " leave the column out, or do not standardise"
            )
        if not (0 < scale[column] < math.inf):
            raise DataError(
                f"{source}: column {name}: too large or too small to standardise"
                f" (from {low:g} to {high:g}); change its unit"
            )
    return center, scale


def _check_range(standardized: Array, names: Sequence[str], dtype: str, source: str) -> None:
    """Refuse values whose square the network's arithmetic cannot hold: every energy would be infinite."""
    limit = math.sqrt(float(np.finfo(dtype).max))
    if (np.abs(standardized) > limit).any():
        row, column = (int(index) for index in np.argwhere(np.abs(standardized) > limit)[0])
        raise DataError(
            f"{source}: row {row + 1}, column {names[column]}: {standardized[row, column]:g} is above"
            f" {limit:.1g}, too large for {dtype} arithmetic; change its unit or standardise"
        )
