"""Reads cases from a file or from memory as arrays, by the encoding that training cases taught."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.dataset import Dataset, check_positive, make_dataset, shuffled
from rayfbnn.data.dress import level_text
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.data.frames import Source, as_table
from rayfbnn.data.keys import TableSpec, is_pattern
from rayfbnn.data.learning import check_known, learn_encoding, level_numbers, places_of
from rayfbnn.data.raw_table import Problems, Table, listed, short
from rayfbnn.data.special_columns import (
    check_events,
    check_none_missing,
    log_exposures,
    missing_rows,
    signed_times,
)
from rayfbnn.errors import ConfigError, DataError, at_most_ten

AnyTableSpec = TypeVar("AnyTableSpec", bound=TableSpec)


def read_training(spec: AnyTableSpec, data: Source = None) -> tuple[AnyTableSpec, Dataset]:
    """Return the configuration, resolved against its training cases, and these cases.

    data  the training cases, instead of the file that data.train names

    The encoding of the columns and the labels are learnt from the cases and are part of the result
    (`RunSpec.encoding`). Raises DataError with file, row and column, or ConfigError for a key that does not
    fit the data.
    """
    table = _training_table(data, spec)
    spec = spec.resolved(learn_encoding(table, spec))
    return spec, _dataset(table, spec)


def read_dataset(spec: TableSpec, data: Source = None) -> Dataset:
    """Return training cases as `read_training` does, but with the encoding of `spec` if it has one."""
    if spec.encoding is None:
        return read_training(spec, data)[1]
    return _dataset(_training_table(data, spec), spec)


def read_cases(data: Source, spec: TableSpec, training: Dataset | None = None) -> tuple[Array, Array | None]:
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


def table_of_new_cases(data: Source, spec: TableSpec) -> Table:
    """Return cases to predict before they are encoded; raise DataError if there are none."""
    encoding = _encoding(spec)
    table = as_table(data, spec.data, [encoding.source_names, encoding.columns])
    if table.n_rows == 0:
        raise DataError(f"{table.source}: no rows below the header; at least one case is needed")
    return table


def _encoding(spec: TableSpec) -> Encoding:
    return spec.encoding or Encoding.from_numbers(spec.input_names)


def _training_table(data: Source, spec: TableSpec) -> Table:
    """Return the table of the training cases; the columns of an array get the names of the inputs."""
    if data is None and spec.train_path is None:
        raise ConfigError("data.train: missing; give the file of training cases, or pass data= to the verb")
    inputs = spec.data.inputs or ()
    if spec.encoding is not None:
        names = [spec.encoding.columns, spec.encoding.source_names]
    elif inputs and not any(map(is_pattern, inputs)):
        names = [(*inputs, *([spec.data.exposure] if spec.data.exposure else []))]
    else:
        names = []
    return as_table(spec.train_path if data is None else data, spec.data, names)


def _dataset(table: Table, spec: TableSpec) -> Dataset:
    encoding = spec.encoding
    assert encoding is not None
    inputs = encode_inputs(table, encoding)
    targets = _targets(table, encoding, spec)
    for name, column in zip(spec.data.targets, targets.T, strict=True):
        if np.isnan(column).all():
            raise DataError(
                f"{table.source}: column {name}: every cell is empty; at least one target is needed"
            )
    check_events(table, targets[:, 0])
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


def _targets(table: Table, encoding: Encoding, spec: TableSpec) -> Array:
    """Return the targets of each row as in the table, (n_rows, n_targets) float64, NaN where one is missing.

    Censored times are negative. Raises DataError for a cell that is neither a number nor a known label, or
    that the data model does not allow.
    """
    names, model, columns = spec.data.targets, spec.data_model, []
    for name in names:
        cells = Cells.from_table(table, name)
        if name in encoding.labels:
            columns.append(level_numbers(cells, encoding.labels[name], "label"))
        elif model.n_labels == 2 and (truths := cells.truths) is not None:
            columns.append(truths)
        else:
            columns.append(cells.check_numbers(allowed=cells.is_empty, is_input=False))
    targets = np.stack(columns, axis=1)
    targets[:, 0] = signed_times(table, targets[:, 0], names[0])
    if (allowed := model.target_range(targets)) is not None:
        wrong = np.argwhere(~(allowed.is_possible | np.isnan(targets)))
        if len(wrong):
            row, column = (int(index) for index in wrong[0])
            raise DataError(
                f"{table.source}: row {row + 1}, column {names[column]}: a {model.kind} target must be"
                f" {allowed.expected}, got {float(targets[row, column]):g}"
            )
    check_positive(table.source, targets, names, spec.data.transform)
    return targets


_MOST_SHOWN = 5
_IGNORE = (
    'to predict these rows too, with 0 for all inputs of the column, set data.unknown = "ignore" (predict:'
    ' --set data.unknown=ignore; estimators: handle_unknown="ignore")'
)
_log = logging.getLogger(__name__)
_READ_AS_MISSING = frozenset({"NA", "N/A", "NaN", "nan", "null", "NULL", "None", "n/a", "<NA>", "#N/A"})


def encode_inputs(
    table: Table, encoding: Encoding, training: Dataset | None = None, *, ignores_unknown: bool = False
) -> Array:
    """Return the inputs of each row, (n_rows, n_inputs) float64.

    training         the training cases; with them, truth values count as 1 and 0 where a number was always 1
                     or 0
    ignores_unknown  whether all inputs of an unknown level are 0 instead of an error; a warning counts them

    Raises DataError for a column that the table lacks, a cell that is not a number, an unknown level, or
    missing values.
    """
    problems = Problems(table)
    pairs: list[tuple[Cells, InputColumn]] = []
    absent = [column.name for column in encoding.inputs if column.name not in table.names]
    if len(absent) > 1:
        with problems.gathered():
            raise DataError(
                f"{table.source}: no columns named {listed(absent)}; the columns are: {listed(table.names)}"
                f"{table.advice(absent[0])}"
            )
    for column in encoding.inputs:
        if len(absent) > 1 and column.name in absent:
            continue
        with problems.gathered():
            if column.kind == "exposure":
                log_exposures(table, column.name)  # its messages say what an exposure is
            cells = as_trained(Cells.from_table(table, column.name), column, training)
            pairs.append((cells, column))
            if column.kind in ("number", "missing"):
                cells.check_numbers(allowed=cells.is_missing)
    if pairs:
        with problems.gathered():
            check_none_missing(pairs, is_training=False)
    placed = [
        (cells, column, places_of(cells, column.levels))
        for cells, column in pairs
        if column.kind in ("levels", "ordered")
    ]
    with problems.gathered():
        _check_unknown([one for one in placed if not ignores_unknown or one[1].kind == "ordered"])
    problems.check()
    if ignores_unknown:
        _warn_of_unknown([one for one in placed if one[1].kind == "levels"])
    places = {column.name: numbers for _, column, numbers in placed}
    blocks = [
        block for cells, column in pairs for block in _encode_column(cells, column, places.get(column.name))
    ]
    return np.stack(blocks, axis=1).reshape(table.n_rows, len(encoding.input_names))


def _check_unknown(placed: Sequence[tuple[Cells, InputColumn, Array]]) -> None:
    """Raise DataError for levels that the training cases did not have, in all columns together.

    placed  cells, their column, and the places of their levels
    """
    messages, kinds = [], set()
    for cells, column, places in placed:
        try:
            check_known(cells, places, column.levels, "level")
        except DataError as exc:
            messages.append(str(exc).removeprefix(f"{cells.table.source}: "))
            kinds.add(column.kind)
    if not messages:
        return
    advice = [_IGNORE] if kinds == {"levels"} else []
    if len(messages) == 1:
        raise DataError(f"{placed[0][0].table.source}: {'; '.join(messages + advice)}")
    lines = [
        f"{placed[0][0].table.source}: unknown levels in {len(messages)} columns",
        *at_most_ten(messages),
        *advice,
    ]
    raise DataError("\n  ".join(lines))


def _warn_of_unknown(placed: Sequence[tuple[Cells, InputColumn, Array]]) -> None:
    counted = [
        f"column {cells.name} in {counts.total()} of {len(places)} rows: {counts_text(counts)}"
        for cells, _, places in placed
        if (counts := unknown_levels(cells, places))
    ]
    if counted:
        _log.warning(
            "%s: unknown levels are ignored, and all inputs of their columns are 0: %s",
            placed[0][0].table.source,
            "; ".join(at_most_ten(counted)),
        )


def unknown_levels(cells: Cells, places: Array) -> Counter[str]:
    """Return how many rows have each level that the training cases did not have, given by the place -1."""
    return Counter(level_text(cells.levels[row]) for row in np.flatnonzero(places < 0).tolist())


def counts_text(counts: Counter[str]) -> str:
    """Return the most frequent texts with their numbers of rows, such as "'pink' (2), 'teal' (1)"."""
    shown = ", ".join(f"{short(text)!r} ({count})" for text, count in counts.most_common(_MOST_SHOWN))
    return shown + ", ..." * (len(counts) > _MOST_SHOWN)


def as_trained(cells: Cells, column: InputColumn, training: Dataset | None) -> Cells:
    """Return the cells in the form of the training cases, where the same value may be another type.

    Truth values become 1 and 0 if the training cases have 1 and 0. In a column with levels, a missing value
    of a table in memory is the level NA if there is one, because pandas reads NA as missing; and a text such
    as NA that is no level is a missing value.
    """
    if column.kind == "levels":
        return _with_marks(cells, column)
    if training is None or column.kind != "number" or (truths := cells.truths) is None:
        return cells
    values = training.inputs[:, training.input_names.index(column.name)]
    return replace(cells, numbers=truths) if np.isin(values, (0, 1)).all() else cells


def _with_marks(cells: Cells, column: InputColumn) -> Cells:
    marks = [level for level in column.levels if level in _READ_AS_MISSING]
    if not marks:
        is_mark = np.array([text in _READ_AS_MISSING for text in cells.texts], dtype=bool)
        return replace(cells, is_mark=cells.is_mark | is_mark) if is_mark.any() else cells
    if len(marks) > 1 or column.n_missing or cells.table.csv_path is not None or not cells.is_empty.any():
        return cells
    return replace(cells, values=cells.values.astype(object).where(~cells.is_empty, marks[0]))


def _encode_column(cells: Cells, column: InputColumn, places: Array | None) -> list[Array]:
    """Return the inputs made from one column, (n_rows,) each.

    places  the places of the levels, (n_rows,), if the column has levels
    """
    if column.kind == "exposure":
        return [log_exposures(cells.table, column.name)]
    is_missing = missing_rows(cells, column)
    inputs = []
    if column.kind == "number":
        inputs = [cells.numbers]
    elif places is not None:
        if column.kind == "ordered":
            inputs = [places]
        else:
            inputs = [(places == place).astype(np.float64) for place in range(len(column.levels))]
    if column.n_missing:
        if column.median is not None:
            inputs = [np.where(is_missing, column.median, values) for values in inputs]
        inputs.append(is_missing.astype(np.float64))
    return inputs
