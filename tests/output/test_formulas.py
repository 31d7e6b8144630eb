"""Nothing in a table of predictions is a formula for a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from rayfbnn import api
from rayfbnn.output.whole_file import without_formulas
from tests.support.small import small

FORMULAS = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "-1+1"]
PLAIN = ["-1", "+2.5", "-inf", "mean", "a=b", "", "'x"]


@pytest.mark.parametrize("text", [*FORMULAS, *PLAIN])
def test_only_text_that_is_a_formula_gets_an_apostrophe(text: str) -> None:
    table = without_formulas(pd.DataFrame({text: [text, "a", None], "n": [-1.5, 2.0, 0.0]}))
    safe = f"'{text}" if text in FORMULAS else text
    assert list(table.columns) == [safe, "n"]
    assert list(table[safe][:2]) == [safe, "a"] and pd.isna(table[safe][2])
    assert list(table["n"]) == [-1.5, 2.0, 0.0]


def test_predictions_of_a_file_with_formulas_for_names_and_labels_have_none(tmp_path: Path) -> None:
    rows = [("x1", "x2", "=cmd|' /C calc'!A0")]
    rows += [(str(i % 4), str(i % 3), ("=2+3", "b", "@c")[i % 3]) for i in range(12)]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    spec = small(model={"kind": "class", "classes": 3}, data__targets=[rows[0][2]])
    spec["data"]["train"] = str(tmp_path / "train.csv")
    spec["phase"] = spec["phase"][2:]
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    api.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv", out=tmp_path / "new.csv")
    with (tmp_path / "new.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert any("=2+3" in cell for cell in cells)
    assert any("calc" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
