"""docs/correctness.md describes the tests as they are: no mutant and no cell is missing or made up."""

from __future__ import annotations

from tests.correctness import mutant_table, page


def test_the_page_is_current() -> None:
    """To mend it: python -m tests.correctness.page (with --run if the cells themselves have changed)."""
    text = page.PAGE.read_text()
    assert page.written(text) == text


def test_there_are_at_least_60_mutants() -> None:
    table = mutant_table.mutants()
    assert len({(entry.file, entry.bug) for entry in table}) >= 60
    assert len({entry.bug for entry in table}) >= 60


def test_every_test_with_a_mutant_is_accounted_for() -> None:
    assert mutant_table.unaccounted() == []


def test_every_equivalent_mutant_has_its_reason() -> None:
    reasons = {key: set(entries) for key, entries in mutant_table.EQUIVALENT.items()}
    assert mutant_table.equivalent_in_tests() == reasons


def test_every_cell_was_in_the_last_run() -> None:
    """To mend it: python -m tests.correctness.page --run"""
    assert " - | - | - | - |" not in page.cells_table()
    assert "**failed**" not in page.cells_table()
