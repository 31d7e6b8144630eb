"""Training cases as arrays: checked, standardised and hashed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.tables import columns, read_table
from rayfbnn.errors import DataError
from rayfbnn.model.likelihood.data_model import DataModel

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec


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
    """Return the training cases that `spec` asks for, checked; DataError names file, row and column."""
    return read_training_file(spec.train_path, spec)


def read_training_file(path: str | Path, spec: RunSpec) -> Dataset:
    """Return the training cases in the file `path`, read as `spec` says."""
    table = read_table(Path(path))
    inputs = columns(table, spec.data.inputs, Path(path))
    targets = columns(table, spec.data.targets, Path(path), may_be_missing=True)
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
    """Return the cases to predict, as on file: inputs (n_cases, n_inputs) and targets, if the file has them.

    The columns are found by the names of the training data; targets are None when the file has no target
    column at all, and NaN where a cell is empty.
    """
    path = Path(path)
    table = read_table(path)
    inputs = columns(table, dataset.input_names, path)
    if len(inputs) == 0:
        raise DataError(f"{path}: no rows below the header; at least one case is needed")
    if not any(name in table.columns for name in dataset.target_names):
        return inputs, None
    targets = columns(table, dataset.target_names, path, may_be_missing=True)
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
    """Return a Dataset of arrays (n_cases, n_inputs) and (n_cases, n_targets).

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
    """Say where two data sets first differ: names, number of cases, or row and column; None if they agree."""
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
    """Return the center and scale of each column; they are 0 and 1 unless `wanted`."""
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
                f"{source}: column {name}: the value is {low:g} in every row, so it cannot be standardised;"
                " leave the column out, or do not standardise"
            )
        if not (0 < scale[column] < math.inf):
            raise DataError(
                f"{source}: column {name}: values from {low:g} to {high:g} are too large or too small to"
                " standardise; change the unit"
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
