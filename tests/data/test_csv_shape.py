"""CSV files of other shapes are read, or the message has the keys of [data] that read them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.data import read_cases, read_training
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.spec import RunSpec
from tests.support.data.tables import table_keys, table_spec

VALUES = np.round(
    np.array([[2.041, -2.556, -5.216], [0.418, -0.568, -0.237], [-0.453, -0.216, 0.098]] * 4), 3
)
VALUES = np.round(VALUES + np.arange(12)[:, None], 3)
SPEC = {"exclude": None}


def rows(separator: str = ",", *, decimal: str = ".", end: str = "", start: str = "") -> str:
    def cells(row: Any) -> str:
        return separator.join(f"{value:.3f}".replace(".", decimal) for value in row)

    numbered = [(f'"{number}"{separator}' if start else "") for number in range(1, len(VALUES) + 1)]
    return "".join(f"{first}{cells(row)}{end}\n" for first, row in zip(numbered, VALUES, strict=True))


def write(folder: Path, text: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


def refusal(path: Path, **data: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_training(table_spec(**{**SPEC, **data}), path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def advised(message: str) -> dict[str, Any]:
    """The keys of [data] that a message advises."""
    return {
        key: json.loads(value)
        for key, value in re.findall(r'data\.(\w+) = (\[.*?\]|".*?"|\d+)', message)
        if key != "train"
    }


READ = {
    "the usual": "a,b,y\n" + rows(),
    "a byte order mark": "\ufeffa,b,y\n" + rows(),
    "lines of Windows": ("a,b,y\n" + rows()).replace("\n", "\r\n"),
    "blank lines": "\n\na,b,y\n\n" + rows(),
    "commas behind each row": "a,b,y\n" + rows(end=","),
    "commas behind every line": "a,b,y,\n" + rows(end=","),
    "two commas behind each row": "a,b,y\n" + rows(end=",,"),
    "the separator of Excel": "sep=,\na,b,y\n" + rows(),
    "the separator of Excel, with a mark": "\ufeffsep=,\r\na,b,y\n" + rows(),
    "semicolons that Excel declares": "sep=;\na;b;y\n" + rows(";"),
    "row names without a name": '"","a","b","y"\n' + rows(start="names"),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("file", ["a.csv", "a.csv.gz"])
def test_a_file_of_a_usual_shape_is_read(name: str, file: str, tmp_path: Path) -> None:
    spec, data = read_training(table_spec(**SPEC), write(tmp_path, READ[name], file))
    assert data.input_names == ("a", "b")
    np.testing.assert_array_equal(np.hstack([data.inputs, data.targets]), VALUES)
    np.testing.assert_array_equal(read_cases(tmp_path / file, spec)[0], VALUES[:, :2])


# Files, what the message sees, and the keys that it advises.
ADVISED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "row names of R": (
        '"a","b","y"\n' + rows(start="names"),
        "the header has 3 names and each row has 4 cells, as if it began with the name of the row (1, 2, 3)",
        {"header": ["row", "a", "b", "y"], "skip_rows": 1, "exclude": ["row"]},
    ),
    "row names of R, blanks": (
        "a b y\n" + rows(" ", start="names"),
        "separated by blanks",
        {"separator": " ", "header": ["row", "a", "b", "y"], "skip_rows": 1, "exclude": ["row"]},
    ),
    "a comment": ("# exported\n# units: m\na,b,y\n" + rows(), "'# exported'", {"skip_rows": 2}),
    "a title": ("Measurements of March\na,b,y\n" + rows(), "'Measurements of March'", {"skip_rows": 1}),
    "a title with a comma": ("March, 2026\na,b,y\n" + rows(), "'March, 2026'", {"skip_rows": 1}),
    "a title with many commas": ("a, few, words, of, title\na,b,y\n" + rows(), "in line 2", {"skip_rows": 1}),
    "a title as wide as the table": ("Measurements,,\na,b,y\n" + rows(), "in line 2", {"skip_rows": 1}),
    "a title and a blank line": ("Measurements\n\na,b,y\n" + rows(), "in line 3", {"skip_rows": 2}),
    "semicolons": ("a;b;y\n" + rows(";"), "separated by semicolons", {"separator": ";"}),
    "semicolons and decimal commas": (
        "a;b;y\n" + rows(";", decimal=","),
        "separated by semicolons, not by commas",
        {"separator": ";", "decimal": ","},
    ),
    "semicolons and a comma in a name": (
        "a, gemessen;b;y\n" + rows(";", decimal=","),
        "separated by semicolons, not by commas",
        {"separator": ";", "decimal": ","},
    ),
    "semicolons and a title": (
        "Messungen\na;b;y\n" + rows(";", decimal=","),
        "separated by semicolons",
        {"separator": ";", "skip_rows": 1, "decimal": ","},
    ),
    "tabs": ("a\tb\ty\n" + rows("\t"), "separated by tabs", {"separator": "\t"}),
    "vertical bars": ("a|b|y\n" + rows("|"), "separated by vertical bars", {"separator": "|"}),
    "blanks": ("a b y\n" + rows(" "), "separated by blanks", {"separator": " "}),
    "many blanks": ("  a    b  y\n" + rows("   "), "separated by blanks", {"separator": " "}),
    "tabs without a header": (
        rows("\t"),
        "looks like a case",
        {"separator": "\t", "header": ["x1", "x2", "x3"]},
    ),
    "row names of R, semicolons": (
        '"a";"b";"y"\n' + rows(";", decimal=",", start="names"),
        "separated by semicolons",
        {"separator": ";", "decimal": ","}
        | {"header": ["row", "a", "b", "y"], "skip_rows": 1, "exclude": ["row"]},
    ),
    "no header": (rows(), "looks like a case", {"header": ["x1", "x2", "y"]}),
}


@pytest.mark.parametrize("name", ADVISED)
def test_the_keys_that_a_message_advises_read_the_file(name: str, tmp_path: Path) -> None:
    text, seen, keys = ADVISED[name]
    path = write(tmp_path, text)
    message = refusal(path)
    assert seen in message
    assert advised(message) == keys
    if "x3" in keys.get("header", ()):
        keys = {**keys, "targets": ["x3"]}
    spec, data = read_training(table_spec(**{**SPEC, **keys}), path)
    np.testing.assert_array_equal(np.hstack([data.inputs, data.targets]), VALUES)
    np.testing.assert_array_equal(read_cases(path, spec)[0], VALUES[:, :2])
    assert RunSpec.from_json(spec.to_json()).data == spec.data


def test_a_file_without_a_header_may_get_its_columns_from_numbers(tmp_path: Path) -> None:
    spec, data = read_training(table_spec(**SPEC, header=False, targets=["x3"]), write(tmp_path, rows()))
    assert data.input_names == ("x1", "x2")
    new = write(tmp_path, "".join(f"{a},{b}\n" for a, b in VALUES[:, :2].tolist()), "new.csv")
    np.testing.assert_array_equal(read_cases(new, spec)[0], VALUES[:, :2])


def test_new_cases_without_a_header_may_lack_the_targets_or_have_a_header(tmp_path: Path) -> None:
    spec, _ = read_training(table_spec(**SPEC, header=["y", "a", "b"]), write(tmp_path, rows()))
    without = "".join(f"{a},{b}\n" for a, b in VALUES[:, 1:].tolist())
    for text in (without, "a,b\n" + without, rows(), "y,a,b\n" + rows()):
        np.testing.assert_array_equal(read_cases(write(tmp_path, text), spec)[0], VALUES[:, 1:])
    with pytest.raises(DataError, match=r"data.header names 3 columns \(y, a, b\), but the first row has 4"):
        read_cases(write(tmp_path, "1,2,3,4\n"), spec)


def test_new_cases_without_the_title_are_told_so(tmp_path: Path) -> None:
    text = "a,b,y\n" + rows()
    spec, _ = read_training(table_spec(**SPEC, skip_rows=1), write(tmp_path, "Title\n" + text))
    with pytest.raises(DataError, match=r"skips it: set data.skip_rows = 0 \(docs"):
        read_cases(write(tmp_path, text), spec)
    inputs, _ = read_cases(tmp_path / "a.csv", spec.for_new_cases(["data.skip_rows=0"]))
    np.testing.assert_array_equal(inputs, VALUES[:, :2])


def test_lines_are_counted_from_the_first_of_the_file(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "sep=;\nTitle\n\na;b;y\n" + rows(";")))
    assert "line 2 is 'Title', and the names seem to be in line 4; set data.skip_rows = 3" in message
    data = read_training(table_spec(**SPEC, skip_rows=3, separator=";"), tmp_path / "a.csv")[1]
    np.testing.assert_array_equal(data.inputs, VALUES[:, :2])


def test_labels_do_not_hide_that_the_header_is_missing(tmp_path: Path) -> None:
    text = "".join(f"5.{n},3.{n},{'setosa' if n % 2 else 'virginica'}\n" for n in range(9))
    assert advised(refusal(write(tmp_path, text), targets=["species"])) == {"header": ["x1", "x2", "species"]}


def test_numbers_may_be_names(tmp_path: Path) -> None:
    text = "400,410,y\n" + rows()
    assert read_training(table_spec(**SPEC), write(tmp_path, text))[1].input_names == ("400", "410")
    assert "looks like a case" not in refusal(write(tmp_path, "a,b,z\n" + rows()))


def test_a_row_that_is_too_long_is_named(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "a,b,y\n" + rows() + "1,2,3,4\n" + rows()))
    assert "line 14 has 4 cells, but there should be 3" in message and "quotation marks" in message


def test_numbers_with_decimal_commas_between_commas_are_seen(tmp_path: Path) -> None:
    assert "as if numbers had decimal commas" in refusal(write(tmp_path, "a,b,y\n" + rows(decimal=",")))


SHORT = {"commas": ("", ",", {}), "a title": ("title\n", ",", {"skip_rows": 1}), "semicolons": ("", ";", {})}


@pytest.mark.parametrize("name", SHORT)
def test_an_empty_cell_at_the_end_is_told_from_a_short_row(name: str, tmp_path: Path) -> None:
    start, separator, keys = SHORT[name]
    keys = {**keys, "separator": separator}
    text = start + ("a,b,y\n" + rows() + "1,2,\n").replace(",", separator)
    _, data = read_training(table_spec(**SPEC, **keys), write(tmp_path, text))
    assert np.isnan(data.targets[-1, 0]) and len(data.targets) == len(VALUES) + 1
    message = refusal(write(tmp_path, text + f"1{separator}2\n"), **keys)
    assert "row 14, column y: not a finite number" in message


def test_quoted_cells_keep_their_separators(tmp_path: Path) -> None:
    text = "a;b;y\n" + "".join(f'"p;q{n % 2}";{n};{n * n}\n' for n in range(8))
    _, data = read_training(table_spec(**SPEC, separator=";"), write(tmp_path, text))
    assert data.input_names == ("a=p;q0", "a=p;q1", "b")


@pytest.mark.parametrize(
    "data", [{"separator": "::"}, {"header": True}, {"header": []}, {"skip_rows": -1}, {"decimal": "'"}]
)
def test_wrong_keys_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"data.{next(iter(data))}"):
        RunSpec.from_dict(table_keys(**data))
