"""Tables from memory: DataFrames, arrays, and pairs of inputs and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rayfbnn.data.forms.row_labels import check_paired, without_labels
from rayfbnn.data.raw_table import Table, TableForm, column_name, listed
from rayfbnn.data.table_files import read_table
from rayfbnn.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Source: TypeAlias = Any
"""A file of cases, a DataFrame (of pandas, Polars or Arrow), an array, or a pair (X, y) of them."""

SOURCE = "data"  # the name in messages of a table that is not from a file


def is_path(data: Source) -> bool:
    """Return True if `data` is the path of a file."""
    return isinstance(data, str | Path)


def as_table(
    data: Source,
    *,
    input_names: Sequence[Sequence[str]],
    target_names: Sequence[str],
    censored: str | None,
    form: TableForm,
) -> Table:
    """Return the table that `data` is or names; raise DataError if it is neither a table nor a file.

    input_names   lists of names for the columns of an array; the first list of the right length is used, and
                  x1, x2, ... if no lists are given
    target_names  names of the columns of y, in a pair (X, y)
    censored      name of a further column of y that marks censored times
    form          how the table is written
    """
    if is_path(data):
        return read_table(Path(data), form)
    if isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"{SOURCE}: a tuple must be a pair (X, y), got {len(data)} elements")
        inputs, labels = _frame(data[0], input_names, "X")
        names = [list(target_names)] + ([[*target_names, censored]] if censored else [])
        y, target_labels = without_labels(data[1])
        targets, _ = _frame(_as_columns(y), names, "y")
        if len(inputs) != len(targets):
            raise DataError(f"{SOURCE}: X has {len(inputs)} rows and y has {len(targets)}")
        check_paired(labels, target_labels, "X", "y")
        import pandas as pd

        return Table(pd.concat([inputs, targets], axis=1), SOURCE, form=form)
    return Table(_frame(data, input_names, SOURCE)[0], SOURCE, form=form)


def _as_columns(targets: Source) -> Source:
    """Return targets with an axis of columns; a Series loses its name, unless it holds categories."""
    if not hasattr(targets, "columns") and not isinstance(targets, Mapping):
        if str(getattr(targets, "dtype", "")) == "category":
            return targets.to_frame()  # keeps the order of the labels
        values = np.asarray(targets)
        return values.reshape(-1, 1) if values.ndim == 1 else values
    return targets


def _frame(
    data: Source, names: Sequence[Sequence[str]], what: str
) -> tuple[pd.DataFrame, pd.Index[Any] | None]:
    """Return a DataFrame with column names as text and rows numbered from 0, and the labels of its rows."""
    import pandas as pd

    frame, labels = without_labels(data)
    if not isinstance(frame, pd.DataFrame):
        return _frame_of_array(data, names, what), None
    frame.columns = pd.Index(list(map(column_name, frame.columns)))
    is_y = what == "y"
    if is_y and not any(set(wanted) <= set(frame.columns) for wanted in names):
        for wanted in names:
            if len(wanted) == len(frame.columns):
                frame.columns = pd.Index(list(wanted))
    return frame, labels


def _frame_of_array(data: Source, names: Sequence[Sequence[str]], what: str) -> pd.DataFrame:
    import pandas as pd

    try:
        values = np.asarray(data)
    except ValueError as exc:  # rows of different lengths
        raise DataError(f"{what}: is not an array: {exc}") from exc
    if values.ndim != 2:
        raise DataError(
            f"{what}: must be a file, a DataFrame or an array of shape (cases, columns), got"
            + (f" shape {values.shape}" if values.ndim else f" {type(data).__name__}")
        )
    n_columns = values.shape[1]
    for wanted in names:
        if len(wanted) == n_columns:
            return pd.DataFrame(values, columns=list(wanted))
    if names:
        right = " or ".join(f"{len(wanted)} ({listed(wanted)})" for wanted in names)
        raise DataError(f"{what}: must have {right} columns, got {n_columns}; or give a DataFrame with names")
    return pd.DataFrame(values, columns=[f"x{number + 1}" for number in range(n_columns)])
