"""Compares a table of new cases with the training cases: what a prediction would refuse or extrapolate."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset, Source
from rayfbnn.data.cells import Cells
from rayfbnn.data.encode import as_trained, counts_text, unknown_levels
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.data.labels import places_of
from rayfbnn.data.raw_table import listed
from rayfbnn.data.special_columns import missing_rows
from rayfbnn.data.training import table_of_new_cases
from rayfbnn.errors import DataError
from rayfbnn.spec import RunSpec

_FAR = 1.0  # widths of the training range outside of it


def describe_new_cases(spec: RunSpec, training: Dataset, data: Source) -> list[str]:
    """Return lines about new cases: first whether they can be predicted, then a line for each column.

    spec  the configuration, resolved against the training cases

    Raises DataError if the table cannot be read at all.
    """
    table = table_of_new_cases(data, spec)
    encoding = spec.encoding or Encoding.from_numbers(spec.input_names)
    absent = [column.name for column in encoding.inputs if column.name not in table.names]
    refused = [f"columns are missing: {listed(absent)}"] if absent else []
    remarks: list[str] = []
    for column in encoding.inputs:
        if column.name in absent:
            continue
        try:
            _compare(Cells.from_table(table, column.name), column, spec, training, refused, remarks)
        except DataError as exc:
            refused.append(str(exc).removeprefix(f"{table.source}: "))
    targets = [name for name in spec.data.targets if name in table.names]
    compared = f"{table.n_rows:,} cases, {'with' if targets else 'without'} targets"
    verdict = "cannot be predicted as they are" if refused else "can all be predicted"
    lines = [f"New cases: {table.source}, {compared}; they {verdict}"]
    return lines + [f"  refused: {text}" for text in refused] + [f"  remark: {text}" for text in remarks]


def _compare(
    cells: Cells,
    column: InputColumn,
    spec: RunSpec,
    training: Dataset,
    refused: list[str],
    remarks: list[str],
) -> None:
    """Add what is to be said about a column to the two lists."""
    cells = as_trained(cells, column, training)
    is_missing = missing_rows(cells, column)
    if is_missing.any():
        text = f"column {column.name}: missing in {is_missing.sum()} of {len(is_missing)} rows"
        if column.n_missing:
            remarks.append(f"{text}, and in {column.n_missing} of {training.n_cases} training cases")
        else:
            refused.append(f"{text}, and in no training case")
    if column.kind in ("levels", "ordered"):
        counts = unknown_levels(cells, places_of(cells, column.levels))
        text = (
            f"column {column.name}: {counts.total()} of {len(is_missing)} rows have levels that no training"
        )
        text += f" case has: {counts_text(counts)}"
        if counts and column.kind == "levels" and spec.data.unknown == "ignore":
            remarks.append(f"{text}; they are ignored")
        elif counts:
            advice = '; data.unknown = "ignore" predicts them' if column.kind == "levels" else ""
            refused.append(text + advice)
        return
    cells.check_numbers(allowed=cells.is_missing)
    if column.kind == "number":
        values = training.inputs[:, training.input_names.index(column.name)]
        remarks += _far_outside(column.name, cells.numbers, values)


def _far_outside(name: str, new: Array, training: Array) -> list[str]:
    """Return a line about numbers outside the training range; none if all are near or inside."""
    low, high = float(training.min()), float(training.max())
    margin = _FAR * (high - low)
    is_far = (new < low - margin) | (new > high + margin)
    if not is_far.any():
        return []
    distance = np.where(is_far, np.maximum(low - new, new - high), -1.0)
    row = int(np.argmax(distance))
    return [
        f"column {name}: {is_far.sum()} of {len(new)} rows are far outside the training range, {low:g} to"
        f" {high:g}; row {row + 1} has {new[row]:g}"
    ]
