"""Reads cases from a file or from memory as arrays, for training and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import Dataset, make_dataset, shuffled
from rayfbnn.data.encode import encode_inputs, encode_targets
from rayfbnn.data.encoding import Encoding
from rayfbnn.data.frames import Source, as_table
from rayfbnn.data.learning import is_pattern, learn_encoding
from rayfbnn.data.raw_table import Table, TableForm
from rayfbnn.data.spec_protocols import TableConfiguration
from rayfbnn.data.special_columns import CensoringColumn, check_events
from rayfbnn.data.transforms import check_positive
from rayfbnn.errors import ConfigError, DataError

AnyConfiguration = TypeVar("AnyConfiguration", bound=TableConfiguration)


def read_training(spec: AnyConfiguration, data: Source = None) -> tuple[AnyConfiguration, Dataset]:
    """Return the configuration, resolved against its training cases, and these cases.

    data  the training cases, instead of the file that data.train names

    The encoding of the columns and the labels are learnt from the cases and are part of the result
    (`RunSpec.encoding`). Raises DataError with file, row and column, or ConfigError for a key that does not
    fit the data.
    """
    if data is None and spec.train_path is None:
        raise ConfigError("data.train: missing; give the file of training cases, or pass data= to the verb")
    table = _training_table(spec.train_path if data is None else data, spec)
    spec = spec.resolved(learn_encoding(table, spec))
    return spec, _dataset(table, spec)


def read_dataset(spec: TableConfiguration) -> Dataset:
    """Return the training cases that a configuration names; raise DataError with file, row and column."""
    return read_training(spec)[1]


def read_training_file(data: Source, spec: TableConfiguration) -> Dataset:
    """Return training cases from `data` with the encoding of `spec`, which is learnt from them if missing."""
    if spec.encoding is None:
        return read_training(spec, data)[1]
    return _dataset(_training_table(data, spec), spec)


def read_cases(
    data: Source, spec: TableConfiguration, training: Dataset | None = None
) -> tuple[Array, Array | None]:
    """Return unstandardised cases to predict: inputs (n_cases, n_inputs) and, if present, targets.

    The columns are found by their names in the training data and encoded in the same way. Targets are None if
    the table has no target column, and NaN where a cell is empty. The columns of an array are the inputs in
    order, or all columns of the training table except the targets.

    training  the training cases, which define the standardisation; DataError is raised for a case that is too
              large for the network's arithmetic once standardised
    """
    encoding = _encoding(spec)
    table = table_of_new_cases(data, spec)
    inputs = encode_inputs(table, encoding, training, ignores_unknown=spec.data.unknown == "ignore")
    targets = None
    if any(name in table.names for name in spec.data.targets):
        targets = _targets(table, encoding, spec)
    if training is not None:
        training.check_range(inputs, targets, dtype=spec.dtype, source=table.source, is_training=False)
    return inputs, targets


def table_of_new_cases(data: Source, spec: TableConfiguration) -> Table:
    """Return cases to predict before they are encoded; raise DataError if there are none."""
    encoding = _encoding(spec)
    table = _table(data, [encoding.source_names, encoding.columns], spec)
    if table.n_rows == 0:
        raise DataError(f"{table.source}: no rows below the header; at least one case is needed")
    return table


def _encoding(spec: TableConfiguration) -> Encoding:
    return spec.encoding or Encoding.from_numbers(spec.input_names)


def _training_table(data: Source, spec: TableConfiguration) -> Table:
    """Return the table of the training cases; the columns of an array get the names of the inputs."""
    inputs = spec.data.inputs or ()
    if spec.encoding is not None:
        names = [spec.encoding.columns, spec.encoding.source_names]
    elif inputs and not any(map(is_pattern, inputs)):
        names = [(*inputs, *([spec.data.exposure] if spec.data.exposure else []))]
    else:
        names = []
    return _table(data, names, spec)


def _table(data: Source, input_names: Sequence[Sequence[str]], spec: TableConfiguration) -> Table:
    censoring = CensoringColumn.from_keys(spec.data)
    return as_table(
        data,
        input_names=input_names,
        target_names=spec.data.targets,
        censored=None if censoring is None else censoring.name,
        form=TableForm.from_keys(spec.data),
    )


def _dataset(table: Table, spec: TableConfiguration) -> Dataset:
    """Return a table of training cases as arrays, using the encoding of `spec`."""
    encoding = spec.encoding
    assert encoding is not None
    inputs = encode_inputs(table, encoding)
    targets = _targets(table, encoding, spec)
    for name, column in zip(spec.data.targets, targets.T, strict=True):
        if np.isnan(column).all():
            raise DataError(
                f"{table.source}: column {name}: every cell is empty; at least one target is needed"
            )
    check_events(table.source, targets[:, 0], CensoringColumn.from_keys(spec.data))
    dataset = make_dataset(
        inputs,
        targets,
        input_names=encoding.input_names,
        target_names=spec.data.targets,
        standardize=spec.data.standardize,
        zero_one_names=encoding.unscaled_names,
        transform=spec.data.transform,
        dtype=spec.dtype,
        source=table.source,
    )
    return shuffled(dataset) if spec.data.shuffle else dataset


def _targets(table: Table, encoding: Encoding, spec: TableConfiguration) -> Array:
    """Return the targets of each row as in the table, (n_rows, n_targets), NaN where one is missing."""
    names = spec.data.targets
    targets = encode_targets(table, encoding, names, CensoringColumn.from_keys(spec.data), spec.data_model)
    check_positive(table.source, targets, names, spec.data.transform)
    return targets
