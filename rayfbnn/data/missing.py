"""Inputs that are missing: in which rows, and the message about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.data.tables import short
from rayfbnn.errors import DataError


def missing_rows(cells: Cells, column: InputColumn) -> Array:
    """Mark the rows in which an input has no value, (n_rows,)."""
    return cells.is_empty if column.kind in ("levels", "ordered") else cells.is_missing


def check_none_missing(columns: Sequence[Cells], encoding: Encoding, *, is_training: bool) -> None:
    """Raise DataError if an input is missing that the encoding has no indicator for.

    The message counts the rows of every such column, and says how to go on. In training there are no
    indicators yet.
    """
    counts = []
    rows = np.zeros(columns[0].table.n_rows, dtype=bool)
    for cells, column in zip(columns, encoding.inputs, strict=True):
        is_missing = missing_rows(cells, column)
        if not is_missing.any() or (column.n_missing and not is_training):
            continue
        rows |= is_missing
        first = int(np.flatnonzero(is_missing)[0])
        value = short(str(cells.values.iloc[first]))
        n_missing = int(is_missing.sum())
        counts.append(f"column {cells.name} in {n_missing}, the first of them row {first + 1} ({value!r})")
    if not counts:
        return
    if is_training:
        ways = (
            'drop these rows, or set data.missing = "indicator": it puts the median in their place, and adds'
            " an input that says so"
        )
    else:
        ways = "no training case lacked them, so drop these rows or fill them in"
    raise DataError(
        f"{columns[0].table.source}: inputs are missing in {int(rows.sum())} of {len(rows)} rows:"
        f" {'; '.join(counts)}; {ways}"
    )
