"""Numbers in dress are refused with what was seen and what to write, and never become levels silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfbnn.data import read_cases, read_training
from rayfbnn.data.dress import undress
from rayfbnn.errors import DataError
from tests.support.data.tables import model_spec, table_spec

N = 40
SPEC = {"exclude": None}


def frame(column: Any, name: str = "w") -> pd.DataFrame:
    cells = np.resize(np.array(list(column), dtype=object), N)
    return pd.DataFrame({name: cells, "x": np.cos(np.arange(N)), "y": np.sin(np.arange(N))})


def refusal(table: Any, **data: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_training(table_spec(**{**SPEC, **data}), table)
    return str(caught.value)


# Columns of numbers in dress: the cells, what the message sees, and what it says to write.
DRESSED: dict[str, tuple[list[str], str, str]] = {
    "percent": (["5.00%", "5.75%", "6.5 %"], "has a percent sign", "5.00"),
    "per mille": (["5‰", "6‰"], "a per mille sign", "(5)"),
    "dollars": (["$500", "$600", "$1000"], "has a currency ($)", "(500)"),
    "negative dollars": (["-$5", "$7", "$-8"], "has a currency ($)", "(-5)"),
    "euros behind": (["5 €", "7,50 €"], "has a currency (€)", "(5)"),
    "units": (["50 kg", "51 kg", "52kg"], "has a unit (kg)", "(50)"),
    "two units": (["50 kg", "900 g"], "has a unit (kg)", "convert all to one unit (g, kg occur)"),
    "powers": (["20 kg/m2", "21 kg/m2"], "has a unit (kg/m2)", "(20)"),
    "thousands and millions": (["1.2k", "3M"], "has a unit (k)", "convert all to one unit"),
    "blanks": (["1 200", "1 201"], "has blanks in the number", "(1200)"),
    "apostrophes": (["1'200", "12'201.5"], "has apostrophes between thousands", "(1200)"),
    "underscores": (["1_200", "1_201"], "has underscores", "(1200)"),
    "points between thousands": (["1.234.567", "2.234.567"], "points between thousands", "(1234567)"),
    "brackets": (["(200)", "(201)"], "has brackets for negative numbers", "(-200)"),
    "brackets among numbers": (["200", "(201)"], "has brackets for negative numbers", "(-201)"),
    "dollars in brackets": (["($200)", "$201"], "has brackets for negative numbers and a currency", "(-200)"),
    "Unicode minus": (["\u22121.0", "\u22121.5"], "has a minus sign that is not a hyphen (U+2212)", "(-1.0)"),
    "minus behind": (["200-", "201-"], "has a minus sign at the end", "(-200)"),
    "comparisons": (["<0.5", "1.5", ">= 9"], "has a sign of comparison (<)", "(0.5)"),
    "stars": (["5*", "6*"], "has a sign at the end (*)", "(5)"),
    "quotation marks": (["'5'", "'6'"], "has quotation marks", "(5)"),
    "thousands": (["1,003", "991"], "has commas between thousands", "remove the commas (1003)"),
    "thousands and decimals": (["1,003.5", "1,991.5"], "has commas between thousands", "(1003.5)"),
    "thousands of dollars": (["$1,003", "$999"], "has commas between", "leave out a currency ($) (1003)"),
    "a comma that may be either": (["2,003", "1,999"], "has a comma", "remove them (2003)"),
    "decimal commas": (["1,5", "2,25"], "has a decimal comma", "decimal point instead of the comma (1.5)"),
    "decimal commas with three digits": (["0,418", "1,003"], "has a decimal comma", "(0.418)"),
    "both": (["1.234,56", "2.234,5"], "points between thousands and a decimal comma", "(1234.56)"),
    "dates": (["2026-01-31", "2026-02-28"], "is a date", "days since"),
    "quarters of years": (["2024Q1", "2023Q4"], "is a date", "days since"),
    "times": (["12:30", "13:45"], "is a time", "minutes"),
    "blood pressures": (["120/80", "130/85"], "is two numbers", "a column of its own"),
    "accounts": (["$ 1,200.00", "$ (3,100.50)"], "has commas between thousands", "a currency ($) (1200.00)"),
    "accounts that begin negative": (["$ (3,100.50)", "$ 2.00"], "has commas between", "(-3100.50)"),
    "exponents": (["0,5E-03", "1,5E-03"], "has a decimal comma", "(0.5E-03)"),
    "feet and inches": (["5'11\"", "6'2\""], "is a number in two units", "in one unit"),
    "some percent": (["0.02", "1%", "3%"], "has a percent sign", "in percent (1% is 0.01)"),
    "other digits": (["\u0661", "\u0662"], "is in digits of another script", "the digits 0 to 9"),
}


@pytest.mark.parametrize("name", DRESSED)
def test_numbers_in_dress_are_refused_with_what_was_seen(name: str, tmp_path: Path) -> None:
    cells, seen, advice = DRESSED[name]
    table = frame(cells)
    table.to_csv(tmp_path / "a.csv", index=False)
    for source in (table, tmp_path / "a.csv"):
        message = refusal(source)
        assert ", column w: not a finite number, got " in message
        assert seen in message and advice in message, message
        assert "data.categorical" in message


@pytest.mark.parametrize("name", DRESSED)
def test_numbers_in_dress_are_levels_where_the_configuration_says_so(name: str) -> None:
    cells = DRESSED[name][0]
    _, data = read_training(table_spec(**SPEC, categorical=["w"]), frame(cells))
    assert sorted(data.input_names[:-1]) == sorted(f"w={cell}" for cell in cells)


LEVELS = {
    "quarters": ["Q1", "Q2", "Q3"],
    "codes": ["5a", "5b", "6a"],
    "ordinals": ["1st", "2nd", "3rd", "4th"],
    "answers": ["1 - no", "2 - perhaps", "3 - yes"],
    "versions": ["1.2.3", "1.2.4"],
    "doses and a placebo": ["10 mg", "20 mg", "placebo"],
    "months": ["Jan", "Feb"],
    "words": ["red", "blue"],
    "hexadecimal": ["0x10", "0x1f"],
}


@pytest.mark.parametrize("name", LEVELS)
def test_codes_with_digits_stay_levels(name: str) -> None:
    _, data = read_training(table_spec(**SPEC), frame(LEVELS[name]))
    assert data.input_names[:-1] == tuple(f"w={level}" for level in sorted(LEVELS[name]))


def test_a_few_other_texts_do_not_make_numbers_in_dress_levels() -> None:
    assert "has a percent sign" in refusal(frame(["5%", "6%", "7%"] * 13 + ["none"]))
    assert "row 40, column w" in refusal(frame(["5", "6", "7"] * 13 + ["7 %"]))


def test_targets_in_dress_are_refused() -> None:
    table = frame([1, 2, 3, 5], "z").assign(y=frame(["$5", "$6", "$7"])["w"])
    message = refusal(table)
    assert "row 1, column y: not a finite number, got '$5'" in message and "data.categorical" not in message


@pytest.mark.parametrize("labels", [["<=50K", ">50K"], ["1 star", "2 stars"], ["10%", "20%"]])
def test_labels_may_look_like_numbers_in_dress(labels: list[str]) -> None:
    table = frame([1, 2, 3, 5]).assign(y=np.resize(labels, N))
    spec, _ = read_training(model_spec("binary"), table)
    assert spec.encoding is not None and spec.encoding.labels == {"y": tuple(labels)}


def test_a_cell_that_is_no_number_gets_advice_for_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text, advice in {
        "w,y\nm,1\n1,2\n2,4\n": "if the line below the header has units, delete it",
        "w,y\n1,1\n2,2\nTotal,4\n": "if this is not a case, delete it",
        "w,y\n1,1\nw,y\n2,2\n": "the row repeats the header",
        "w,y\n1,1\nTRUE,3\n2,2\n": "write truth values in one way, such as 1 and 0",
        "w,v,y\n1,1,2\n2,3,3\n2\n": "the row has fewer cells than the header",
        "w,y\n1,1\n-,3\n2,2\n": 'set data.missing_marks = ["-"]',
    }.items():
        path.write_text(text)
        assert advice in refusal(path, targets=["y"])


PERIODS = (
    """
2024-02|2024/02|2024/2|02/2024|2-2024|2024年2月|2024年|2024年12月31日
Feb 2024|Feb-24|Feb-2024|February 2024|Feb2024|FEB24|Feb'24|Feb. 2024|Feb, 2024|Feb/2024|Feb_2024|Februar 2024
2024-Feb|2024 Feb|2024Feb|2024/Feb|2024-Feb-15|24-Feb|15Feb2024|15-Feb-24|15/Feb/2024|Feb 15, 2024|Feb 15 2024
2-Feb|2 Feb|Feb 2|Feb-2|02Feb|2. Feb|2nd Feb|Feb 2nd|2 February|February 2|Thu 15 Feb 2024|Thursday, Feb 15
5th of May
2024Q1|2024-Q1|2024 Q1|2024/Q1|2024.Q1|2024_Q1|2024:Q1|2024q1|Q1 2024|Q1-2024|Q1/2024|Q12024|Q1'24|Q1 '24
Q1 24|Q1-24
1Q24|1Q2024|1Q 2024|1Q'24|4Q-24|2024 1Q|Q1, 2024|Quarter 1 2024|2024 quarter 1|1st quarter 2024
first quarter of 2024
2024H1|2024-H1|H1 2024|H1-2024|H1'24|1H24|1H 2024|2024 S2|S2 2024|T3 2024|2024-P05
2024-W07|2024W07|2024-W07-3|2024-W7|W07 2024|W7/2024|week 7 2024|Week 7, 2024|2024 week 07|KW 7/2024|wk 7 2024
2024M02|2024-M02|2024m2|M02 2024|M2-2024
FY2024|FY24|FY 2024|FY'24|CY2024|FY2023/24|FY2023-24|FY24 Q1|FY24Q1|Q1 FY24|Q1FY2024|H1 FY2024|2023/24
2023-24|2023-2024
Spring 2024|summer 2024|Winter 2023/24|2024 Autumn|1999-00
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.parametrize("text", PERIODS)
def test_a_period_is_a_date_in_every_usual_form(text: str) -> None:
    for written in (text, text.upper(), text.lower(), f" {text} "):
        assert (one := undress(written)) is not None and one.seen == ("a date",), written


NO_PERIODS = (
    """
Q1|A1|H1|W07|M02|S1|T1|Feb|February|Mon|Monday|May|Mar|Spring|summer|week|week 7|1st|first|1st quarter
Quarter 1|day 1
M2000|T1000|S2000|A2024|X-2024|W1000|P2024|2000A|2024A|2024-A|3000M5|M12000|P12000|H12024x|R2-2024|Q5 2024
Q1 1|H3 2024
Jan Smith|Marble|May Lee|August Wilson|Deck 12A|MARCH1a|1990-1999|2023-25|2024-2023|20-29|1-2-1-2|2024-130|FY
CY1|FY1
1Q|2H|1Q5|H2O|H1N1|B12|C3PO|Q10|5Q24|3H24|M&S 2024|Route 66|Windows 10|Model 3|Area 51|Section 8|Term 1|Half 2
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.parametrize("text", NO_PERIODS)
def test_a_name_or_code_is_no_date(text: str) -> None:
    for written in (text, text.upper(), text.lower()):
        one = undress(written)
        assert one is None or one.seen != ("a date",), written


@pytest.mark.parametrize("text", ["3", "-3.5", "+5", "1e5", "", "-", "x" * 1000, "$", "%", "kg 5", "1,2,3"])
def test_nothing_else_is_a_number_in_dress(text: str) -> None:
    assert undress(text) is None


def test_decimal_commas_are_read_where_the_configuration_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('w,g,y\n"1,5",a,"0,25"\n"-2,041",b,3\n",5",a,"1,5e3"\n')
    spec, data = read_training(table_spec(**SPEC, decimal=","), path)
    assert data.inputs[:, 0].tolist() == [1.5, -2.041, 0.5] and data.targets[:, 0].tolist() == [0.25, 3, 1500]
    assert read_cases(path, spec)[0].tolist() == data.inputs.tolist()
    path.write_text('w,g,y\n"1,5",a,"0,25"\n1.234,b,3\n7,a,1\n')
    assert "row 2, column w: not a finite number" in refusal(path, decimal=",")


MARKED = {
    "words": (["1", "NA", "3", "5"], []),
    "a question mark": (["1", "?", "3", "5"], []),
    "an error of Excel": (["1", "#N/A", "3", "5"], ["#N/A"]),
    "a number": (["1", "-999", "3", "5"], ["-999"]),
    "a number with decimals": (["1", "-999.0", "3", "5"], [-999]),
    "a number in memory": ([1.0, -999.0, 3.0, 5.0], ["-999"]),
}


@pytest.mark.parametrize("name", MARKED)
def test_marks_of_missing_inputs_are_missing(name: str) -> None:
    cells, marks = MARKED[name]
    spec, data = read_training(table_spec(**SPEC, missing="indicator", missing_marks=marks), frame(cells))
    assert data.input_names == ("w", "w is missing", "x")
    assert data.inputs[:4, :2].tolist() == [[1, 0], [3, 1], [3, 0], [5, 0]]
    assert read_cases(frame(cells), spec)[0].tolist() == data.inputs.tolist()


@pytest.mark.parametrize("mark", ["NA", "?", "-", "null", "None", "n/a", "#N/A", "."])
@pytest.mark.parametrize("kind", ["class", "binary"])
def test_marks_of_missing_labels_are_asked_about(mark: str, kind: str) -> None:
    table = frame([1, 2, 3, 5]).assign(y=["no", "yes", "no", mark] * (N // 4))
    with pytest.raises(DataError) as caught:
        read_training(model_spec(kind), table)
    assert f"column y: {mark!r} in 10 of 40 rows may mark missing values" in str(caught.value)
    assert f'data.missing_marks = ["{mark}"]' in str(caught.value)
    resolved, data = read_training(model_spec(kind, missing_marks=[mark]), table)
    assert np.isnan(data.targets[:, 0]).sum() == 10
    assert resolved.encoding is not None and resolved.encoding.labels == {"y": ("no", "yes")}
    unmarked, _ = read_training(model_spec(kind), table.assign(y=["no", "yes"] * (N // 2)))
    with pytest.raises(DataError, match="unknown label.*data.missing_marks"):
        read_cases(table, unmarked)


def test_a_label_that_looks_like_a_mark_stays_if_the_configuration_says_so() -> None:
    table = frame([1, 2, 3, 5]).assign(y=["none", "mild", "severe", "none"] * (N // 4))
    spec, _ = read_training(model_spec("class", missing_marks=[]), table)
    assert spec.encoding is not None and spec.encoding.labels == {"y": ("mild", "none", "severe")}


def test_marks_of_missing_numbers_in_targets_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("w,y\n1,1\n2,NA\n3,2\n4,-\n")
    assert "row 2, column y: not a finite number, got 'NA'" in refusal(path)
    _, data = read_training(table_spec(**SPEC, missing_marks=["NA", "-"]), path)
    assert np.isnan(data.targets[:, 0]).tolist() == [False, True, False, True]


def test_a_level_that_pandas_reads_as_missing_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    frame(["brick", "NA", "wood"]).to_csv(path, index=False)
    spec, data = read_training(table_spec(**SPEC), path)
    assert data.input_names[:3] == ("w=NA", "w=brick", "w=wood")
    assert read_cases(pd.read_csv(path), spec)[0].tolist() == data.inputs.tolist()


def test_a_missing_value_of_pandas_is_found_again_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    frame(["brick", "NA", "wood"]).to_csv(path, index=False)
    spec, data = read_training(table_spec(**SPEC, missing="indicator"), pd.read_csv(path))
    assert data.input_names[:3] == ("w=brick", "w=wood", "w is missing")
    assert read_cases(path, spec)[0].tolist() == data.inputs.tolist()
