"""Missing inputs: their rows, and the error about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.encoding import InputColumn
from rayfbnn.data.problems import ColumnError
from rayfbnn.data.raw_table import short
from rayfbnn.errors import at_most_ten


def missing_rows(cells: Cells, column: InputColumn) -> Array:
    """Mark the rows without a value of an input, (n_rows,)."""
    return cells.is_empty if column.kind in ("levels", "ordered") else cells.is_missing


def check_none_missing(columns: Sequence[tuple[Cells, InputColumn]], *, is_training: bool) -> None:
    """Raise DataError if an input is missing and the encoding has no indicator for it.

    The message counts the rows of every such column and says what to do. Training cases have no indicators
    yet.
    """
    counts = []
    table = columns[0][0].table
    rows = np.zeros(table.n_rows, dtype=bool)
    for cells, column in columns:
        is_missing = missing_rows(cells, column)
        if not is_missing.any() or (column.n_missing and not is_training):
            continue
        rows |= is_missing
        first = int(np.flatnonzero(is_missing)[0])
        value = short(str(cells.values.iloc[first]))
        n_missing = int(is_missing.sum())
        counts.append(f"column {cells.name} in {n_missing}, first in row {first + 1} ({value!r})")
    if not counts:
        return
    if is_training:
        ways = (
            'drop these rows, or set data.missing = "indicator" to fill in the median and add an input that'
            " marks missing values"
        )
    else:
        ways = "they were never missing in training cases, so drop these rows or fill in the values"
    raise ColumnError(
        f"{table.source}: inputs are missing in {int(rows.sum())} of {len(rows)} rows:"
        f" {'; '.join(at_most_ten(counts))}; {ways}",
        {"missing": "indicator"},
    )
