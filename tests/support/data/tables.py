"""A small table with every kind of column, and a configuration for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rayfbnn.spec import RunSpec
from tests.support.small import small

N_CASES = 12


def mixed_table() -> pd.DataFrame:
    """Twelve cases with numbers, text, truth values, ordered sizes, missing numbers and a constant."""
    n = np.arange(N_CASES)
    return pd.DataFrame(
        {
            "id": n + 100,
            "age": 20.0 + 3 * (n % 5),
            "color": np.array(["red", "blue", "green"])[n % 3],
            "smoker": n % 2 == 0,
            "size": np.array(["S", "M", "L"])[n % 3],
            "unit": "kg",
            "bmi": np.where(n % 4 == 0, np.nan, 20.0 + n),
            "y": np.sin(n),
        }
    )


def table_spec(**data: Any) -> RunSpec:
    """The small configuration with other keys of [data]; its file is not there."""
    return RunSpec.from_dict(table_keys(**data))


def table_keys(**data: Any) -> dict[str, Any]:
    """The keys of `table_spec`. Its inputs are those of mixed_table, but for `data`."""
    keys = small(data__train=None, data__inputs=None, data__exclude=["id"])
    return {**keys, "data": {**keys["data"], **data}}


def model_spec(model: str | dict[str, Any], **data: Any) -> RunSpec:
    """The small configuration with another model (or kind of model) and other keys of [data]."""
    keys = table_keys(**{"exclude": None, "standardize": ["inputs"], **data})
    keys["model"] = {"kind": model} if isinstance(model, str) else model
    return RunSpec.from_dict(keys | {"phase": [{"iterations": 2, "operations": [{"op": "heatbath"}]}]})


FULL = {"ordered": {"size": ["S", "M", "L"]}, "missing": "indicator"}
