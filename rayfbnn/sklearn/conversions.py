"""Conversions between scikit-learn and this package: cases become DataFrames, errors get other types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, validate_data

from rayfbnn.arrays import Array
from rayfbnn.data.raw_table import check_paired, column_name, without_labels
from rayfbnn.errors import RayFBNNError
from rayfbnn.spec.messages import WEIGHTS_REFUSED

if TYPE_CHECKING:
    import pandas as pd


def inputs_table(estimator: Any, X: Any, *, is_training: bool, requires_y: bool = False) -> pd.DataFrame:
    """Return the inputs as a table after scikit-learn's checks, which raise ValueError.

    In training the estimator gets n_features_in_ and, if all columns have names, feature_names_in_. Later X
    is compared with them. A DataFrame with columns of text, truth values or categories stays unchanged, and
    rayfbnn encodes it. Anything else becomes columns of numbers, named x1, x2, ... unless they have names.

    requires_y  whether scikit-learn raises its error about a missing y
    """
    import pandas as pd

    X, _ = (X, None) if isinstance(X, Mapping) else without_labels(X)
    y = None if requires_y else "no_validation"
    frame = _frame_with_text(X)
    if frame is not None:
        validate_data(estimator, X, y, reset=is_training, skip_check_array=True)
        return frame
    values = validate_data(
        estimator,
        X,
        y,
        reset=is_training,
        dtype=np.float64,
        ensure_all_finite="allow-nan" if estimator.missing == "indicator" else True,
        ensure_min_samples=2 if is_training else 1,
    )
    numbered = [f"x{number + 1}" for number in range(values.shape[1])]
    return pd.DataFrame(values, columns=list(getattr(estimator, "feature_names_in_", numbered)))


def paired_targets(X: Any, y: Any) -> Any:
    """Return y without row labels; raise ValueError if they differ from those of X, or the lengths differ."""
    targets, labels = without_labels(y)
    check_consistent_length(X, targets)
    with as_value_errors():
        check_paired(without_labels(X)[1], labels, "X", "y")
    return targets


def _frame_with_text(X: Any) -> pd.DataFrame | None:
    """Return X with its names as text if it is a DataFrame with columns that are not numeric, or None."""
    import pandas as pd

    if not isinstance(X, pd.DataFrame):
        return None
    are_numbers = [
        pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype) for dtype in X.dtypes
    ]
    if all(are_numbers) or len(X) == 0:
        return None
    frame = X.copy(deep=False)
    frame.columns = pd.Index(list(map(column_name, frame.columns)))
    return frame


def target_names(y: Any, n_targets: int, taken: Sequence[str]) -> list[str]:
    """Return a name for each target: the names in y, or else y or y1, y2, ...

    Names that are already taken get an underscore.
    """
    names = [f"y{number + 1}" for number in range(n_targets)] if n_targets > 1 else ["y"]
    named = list(getattr(y, "columns", [])) or [getattr(y, "name", None)]
    if len(named) == n_targets and all(isinstance(name, str) and name.strip() for name in named):
        names = list(map(column_name, named))
    unique: list[str] = []
    for name in names:
        while name in taken or name in unique:
            name += "_"
        unique.append(name)
    return unique


def training_table(inputs: pd.DataFrame, targets: dict[str, Array]) -> pd.DataFrame:
    """Return one table of inputs and targets, each target (n_cases,)."""
    import pandas as pd

    return pd.concat([inputs, pd.DataFrame(targets)], axis=1)


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Turn errors about invalid input into ValueError, which scikit-learn expects."""
    try:
        yield
    except RayFBNNError as exc:
        if exc.exit_code != 2:
            raise
        raise ValueError(str(exc)) from exc


def refuse_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ValueError with the reason for `sample_weight`, and TypeError for unknown parameters."""
    if parameters.get("sample_weight") is not None:
        raise ValueError(f"sample_weight: {WEIGHTS_REFUSED}")
    unknown = [name for name in parameters if name != "sample_weight"]
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument '{unknown[0]}'")
