"""Remarks of `show` on columns that may not be meant as they were read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.data import read_training
from rayfbnn.describe.data import remarks
from rayfbnn.spec import RunSpec


def found(table: pd.DataFrame, kind: str = "survival", **data: str) -> list[str]:
    spec = RunSpec.from_dict({"data": {"targets": ["time"], **data}, "model": {"kind": kind}})
    return remarks(*read_training(spec, table))


TABLE = pd.DataFrame({"age": np.arange(20.0), "time": 1 + np.arange(20.0), "Died": [0, 1] * 10})


def test_a_column_that_may_mark_censored_times_is_remarked_on() -> None:
    (remark,) = found(TABLE)
    assert 'data.censored = "Died"' in remark and 'data.event = "Died"' in remark
    assert found(TABLE, event="Died") == found(TABLE, censored="Died") == []


@pytest.mark.parametrize(
    "table",
    [
        TABLE.assign(Died=np.arange(20) % 3),
        TABLE.rename(columns={"Died": "smoker"}),
        TABLE.assign(time=[-1.0, *TABLE["time"][1:]]),
    ],
    ids=["more values", "another name", "signed times"],
)
def test_other_columns_and_times_with_signs_are_not(table: pd.DataFrame) -> None:
    assert found(table) == []


def test_nor_are_inputs_of_other_models() -> None:
    assert found(TABLE, "real") == []


def test_a_column_without_a_name_is_called_that() -> None:
    spec = {"data": {"targets": ["y"]}, "model": {"kind": "real"}}
    table = pd.DataFrame({"": np.arange(9), "x": np.sin(np.arange(9.0)), "y": np.cos(np.arange(9.0))})
    assert "a column without a name" in rayfbnn.show(spec, data=table)
