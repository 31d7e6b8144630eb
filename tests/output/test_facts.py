"""HTML of results: everything from users is escaped, and numbers are written alike.

Nothing in a table of predictions is a formula for a spreadsheet.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfbnn import api
from rayfbnn.answers.check import compare_quantities
from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.output.facts import (
    Badge,
    Fact,
    Judgement,
    Lines,
    Pairs,
    Paragraph,
    Sentences,
    TableFact,
    cell_text,
    html_of,
    text_of,
)
from rayfbnn.output.whole_file import without_formulas
from rayfbnn.run.evidence import Evidence
from rayfbnn.run.running import RunSummary
from tests.support.small import small
from tests.support.store.standin_store import make_data, make_run, make_spec, normal

HOSTILE = '<b onclick="x">&'
ESCAPED = "&lt;b onclick=&quot;x&quot;&gt;&amp;"


FACTS: list[Fact] = [
    TableFact([HOSTILE, HOSTILE], [[HOSTILE, HOSTILE]], HOSTILE),
    Pairs({HOSTILE: HOSTILE}),
    Sentences([HOSTILE]),
    Paragraph(HOSTILE),
    Paragraph(Badge(HOSTILE, True)),
    Lines(HOSTILE, HOSTILE),
    Judgement(HOSTILE, Badge(HOSTILE, False), [HOSTILE, HOSTILE], [HOSTILE]),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_is_escaped_in_html_and_plain_in_text(fact: Fact) -> None:
    shown = html_of([fact])
    assert ESCAPED in shown and "<b" not in shown and HOSTILE in text_of([fact])
    assert text_of([fact]).count(HOSTILE) == shown.count(ESCAPED) - isinstance(fact, Lines)


def test_facts_are_apart_except_paragraphs_and_silent_ones_leave_no_gap() -> None:
    facts = [Paragraph("a"), Paragraph("b"), Sentences([]), Paragraph(""), TableFact(["", "n"], [["x", 1.5]])]
    assert text_of(facts) == "a\nb\n\n     n\nx  1.5"
    assert html_of(facts[:4]) == "<p>a</p><p>b</p>"


def test_headings_stand_above_their_numbers() -> None:
    text = html_of([TableFact(["a", "b", "c"], [["x", 1.5, "y"], ["z", None, 2]])])
    assert '<th scope="col" class="number">b</th><th scope="col">c</th>' in text
    assert "<tbody></tbody>" in html_of([TableFact(["a"], [])])


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
        (1234567.0, "1,234,567"),
        (0.123456, "0.1235"),
        (14380.4, "14,380"),
        (np.float32(2.5), "2.5"),
        (np.int64(3), "3"),
        (True, "True"),
        ("a", "a"),
    ],
)
def test_cells_as_text(cell: Any, text: str) -> None:
    assert cell_text(cell) == text


def test_results_show_themselves_in_notebooks() -> None:
    run = make_run(make_spec(data__inputs='["<x1>", "x2"]', network__priors__ih0="1:3:3"))
    unseen = make_data(run.spec, 12, seed=41)
    diagnosis = diagnose_draws(run)
    shown = diagnosis._repr_html_()
    assert "sigma_ih0_unit[&lt;x1&gt;]" in shown and "<x1>" not in shown
    assert f'">{diagnosis.predictions.grade}</strong>' in shown
    predicted = predict_from_draws([run], unseen.inputs, unseen.targets)._repr_html_()
    assert "log_probability" in predicted and "y1_mean" in predicted and "and 2 more cases" in predicted
    assert "<p>run.zarr: 4 chains of 10 draws" in RunSummary("run.zarr", 4, 10)._repr_html_()
    tests = compare_quantities([("<x>", (normal(1, (4, 100)), normal(2, (1, 100))))], false_alarm_rate=1e-3)
    assert "&lt;x&gt;" in tests._repr_html_() and ">ok</strong>" in tests._repr_html_()
    assert "-3.5" in Evidence(-3.5, 0.1, 4.0, 5, 10, 4.0, ())._repr_html_()
    assert Verdict("predictions", "usable")._repr_html_().count("good") == 1


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
