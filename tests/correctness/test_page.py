"""docs/correctness.md says what the tests are: no mutant and no cell is missing, and none is made up."""

from __future__ import annotations

from tests.correctness import mutant_table, page


def test_the_page_is_current() -> None:
    """If not: python -m tests.correctness.page (with --run where the cells themselves have changed)."""
    text = page.PAGE.read_text()
    assert page.written(text) == text


def test_there_are_at_least_60_mutants() -> None:
    found = mutant_table.mutants()
    assert len({(each.file, each.bug) for each in found}) >= 60
    assert len({each.bug for each in found}) >= 60


def test_every_test_with_a_mutant_is_accounted_for() -> None:
    assert mutant_table.unaccounted() == []


def test_every_equivalent_mutant_has_its_reason() -> None:
    reasons = {key: set(each) for key, each in mutant_table.EQUIVALENT.items()}
    assert mutant_table.equivalent_in_tests() == reasons


def test_every_cell_was_in_the_last_run() -> None:
    """If not: python -m tests.correctness.page --run"""
    assert " - | - | - | - |" not in page.cells_table()
    assert "**failed**" not in page.cells_table()
