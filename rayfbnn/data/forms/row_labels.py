"""Labels of rows, such as the index of pandas: rows are paired by position, and labels are never inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayfbnn.data.raw_table import short
from rayfbnn.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_INDEX_COLUMN = re.compile(r"__index_level_\d+__")  # the name that Arrow gives a pandas index without a name


def without_labels(data: Any) -> tuple[Any, pd.Index[Any] | None]:
    """Return a table as a DataFrame with rows numbered from 0, and the labels that its rows had.

    The labels are None if there were none. Anything that is no table with named columns stays as it is. The
    index of pandas never becomes a column, and rows keep their order.
    """
    import pandas as pd

    labels: pd.Index[Any] | None = None
    if isinstance(data, Mapping):
        data, labels = _frame_of_columns(data)
    elif not isinstance(data, pd.DataFrame) and hasattr(data, "to_pandas") and hasattr(data, "columns"):
        data = data.to_pandas()
        labels = None if isinstance(data.index, pd.RangeIndex) else data.index  # only labels that were stored
    elif isinstance(data, pd.DataFrame | pd.Series):
        labels = data.index
    if not isinstance(data, pd.DataFrame):
        return data, labels
    indices = [name for name in data.columns if _INDEX_COLUMN.fullmatch(str(name))]
    return data.drop(columns=indices).reset_index(drop=True), labels


def check_paired(
    labels: pd.Index[Any] | None, others: pd.Index[Any] | None, name: str, other_name: str
) -> None:
    """Raise DataError if two tables label their rows differently. Rows are paired by position.

    A table without labels fits any other. So does one whose rows are merely numbered from 0, unless the
    other has these numbers in a different order: then one of the two may be in the wrong order.
    """
    import pandas as pd

    if labels is None or others is None or len(labels) != len(others) or labels.equals(others):
        return
    numbers = pd.RangeIndex(len(labels))
    if (labels.equals(numbers) or others.equals(numbers)) and set(labels) != set(others):
        return
    pairs = list(zip(map(str, labels), map(str, others), strict=True))
    row = next((row for row, (label, other) in enumerate(pairs) if label != other), 0)
    raise DataError(
        f"data: the rows of {name} and {other_name} have different labels, first in row {row + 1}:"
        f" {short(pairs[row][0])} and {short(pairs[row][1])}; rows are paired by position, so give"
        f" {other_name} in the order of {name}, or both after reset_index(drop=True)"
    )


def _frame_of_columns(columns: Mapping[Any, Any]) -> tuple[pd.DataFrame, pd.Index[Any] | None]:
    """Return the columns of a dictionary as a table, and the labels of its first column that has any."""
    import pandas as pd

    labels, first, values = None, "", {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            column = pd.Series(dict(column))
        if isinstance(column, pd.Series):
            check_paired(labels, column.index, f"column {short(first)}", f"column {short(str(name))}")
            if labels is None or labels.equals(pd.RangeIndex(len(labels))):
                labels, first = column.index, str(name)
            column = column.array
        values[name] = column
    try:
        return pd.DataFrame(values), labels
    except (ValueError, TypeError) as exc:  # columns of different lengths, or with several axes
        raise DataError(f"data: the columns do not make a table: {exc}") from exc
