"""The exposure of counts: a column whose logarithm is added to the network's outputs."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.encoding import InputColumn
from rayfbnn.data.raw_table import Table, listed, near_name, short
from rayfbnn.errors import DataError


def learn_exposure(table: Table, name: str | None) -> tuple[InputColumn, ...]:
    """Return the encoding of the column of exposures, which is checked; () without a name."""
    if name is None:
        return ()
    log_exposures(table, name)
    return (InputColumn(name, "exposure"),)


def log_exposures(table: Table, name: str) -> Array:
    """Return the logarithm of each row's exposure, (n_rows,) float64.

    Raises DataError if the table has no such column, or for the first cell that is not a number above 0.
    """
    if name not in table.names:
        raise DataError(
            f"{table.source}: no column named {name}{near_name(name, table.names)}, the exposure"
            f" (data.exposure); give each case its exposure; the columns are: {listed(table.names)}"
        )
    cells = Cells.from_table(table, name)
    exposures = cells.numbers
    wrong = np.flatnonzero(~(exposures > 0))
    if len(wrong):
        row = int(wrong[0])
        value = f"{exposures[row]:g}" if cells.is_number[row] else repr(short(str(cells.values.iloc[row])))
        raise DataError(
            f"{cells.place(row)}: an exposure must be a number above 0, got {value}; correct it, or leave out"
            " rows that were not observed"
        )
    return np.log(exposures)
