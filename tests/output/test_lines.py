"""Lines are broken at spaces alone, and tables keep their words whole in any width."""

from __future__ import annotations

import io

import pytest

from rayfbnn.output.lines import folded, line_width, shortened, table_text, width_up_to
from rayfbnn.output.printing import answer, say, tell

SENTENCE = "the standard error of the average over 8 chains is 0.6% of the predictive standard deviation"


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_lines_of_a_pipe_have_any_width() -> None:
    assert line_width(io.StringIO()) is None and width_up_to(100) == 100
    assert folded(SENTENCE * 3, None) == SENTENCE * 3


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("3", 20), ("", None), ("0", None), ("x", None)])
def test_columns_of_the_environment_are_the_width(
    columns: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert line_width(io.StringIO()) == width


def test_long_lines_are_broken_at_spaces_and_indented() -> None:
    lines = folded(f"first\n  {SENTENCE}\nlast", 40).split("\n")
    assert lines[0] == "first" and lines[-1] == "last"
    assert lines[1].startswith("  the standard") and all(line.startswith("    ") for line in lines[2:-1])
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines[1:-1]).split()) == SENTENCE


def test_a_word_is_never_broken() -> None:
    path = "/a/very/long/path/" + "x" * 60 + "/well-known-file.csv"
    assert folded(f"no such file: {path} (in any folder)", 40).split("\n") == [
        "no such file:",
        f"  {path}",
        "  (in any folder)",
    ]


def test_lines_that_fit_or_move_the_cursor_are_unchanged() -> None:
    drawn = "\x1b[1m" + SENTENCE + "\x1b[0m"
    for text in ("short   line", drawn, "a\n\nb\n"):
        assert folded(text, 40) == text


def test_long_names_are_shortened_in_the_middle() -> None:
    assert shortened("a" * 40) == "a" * 40
    assert (shortened("abcdefghij", 5), shortened("abcdefghij", 6)) == ("ab…ij", "abc…ij")


HEADER = ["", "mean", "effective"]
ROWS = [["short", "1.25", "800"], ["a rather long name of a row", "-1", "12"]]


def test_a_table_that_fits_is_aligned() -> None:
    assert table_text(HEADER, ROWS).split("\n") == [
        "                             mean  effective",
        "short                        1.25        800",
        "a rather long name of a row    -1         12",
    ]


def test_long_names_have_lines_of_their_own() -> None:
    assert table_text(HEADER, ROWS, width=25).split("\n") == [
        "          mean  effective",
        "short     1.25        800",
        "a rather long name of a row",
        "            -1         12",
    ]


def test_columns_that_do_not_fit_are_another_table() -> None:
    assert table_text(HEADER, ROWS, width=16).split("\n") == [
        "            mean",
        "short       1.25",
        "a rather long name of a row",
        "              -1",
        "",
        "       effective",
        "short        800",
        "a rather long name of a row",
        "              12",
    ]


def test_prints_are_folded_unless_they_are_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for show in (answer, tell):
        show(SENTENCE)
        assert len(capsys.readouterr().out.split("\n")) > 2
        show(SENTENCE, as_is=True)
        assert capsys.readouterr().out == f"{SENTENCE}\n"
    say(SENTENCE)
    assert len(capsys.readouterr().err.split("\n")) > 2
