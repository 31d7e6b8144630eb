"""The page's tables of signals and of ends say what the code has and what tests see."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rayfbnn.run.signals import GRACE_SECONDS, STOPPING
from tests.ends.table import ENDS, HEADER, PAGE, row, rows_of_page


def test_the_page_has_every_signal_and_who_sends_it() -> None:
    text = PAGE.read_text()
    for number, sender in STOPPING.items():
        assert f"| {signal.Signals(number).name} | {sender} |" in text
    assert f"at most {GRACE_SECONDS:g} seconds after the first signal" in text


def test_every_row_of_the_page_is_an_end_that_is_tested() -> None:
    rows = rows_of_page()
    assert {len(cells) for cells in rows} == {len(HEADER)}
    assert [cells[0] for cells in rows] == [end for end in ENDS if end in {cells[0] for cells in rows}]


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("expected", rows_of_page(), ids=lambda cells: cells[0])
def test_ends_are_as_the_page_says(tmp_path: Path, expected: list[str]) -> None:
    assert row(expected[0], tmp_path) == expected
