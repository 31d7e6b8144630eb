"""Levels of inputs and labels of targets, learnt from the training cases and converted to numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import MARKS, Cells, marks_key
from rayfbnn.data.dress import Places, level_text, order_of_levels, plain_number
from rayfbnn.data.keys import Configuration
from rayfbnn.data.problems import ColumnError, Problems
from rayfbnn.data.raw_table import Table, listed
from rayfbnn.errors import DataError

_WORDS = re.compile(r"[^\W\d_]|[<>=≤≥%$€£+]")
_MAX_LABELS = 100  # more, with more than one for every two cases, are taken for numbers or free text


def learn_labels(table: Table, spec: Configuration, problems: Problems) -> dict[str, tuple[str, ...]]:
    """Return the labels of each target that is not numbered from 0, ordered by label number.

    If a class model's configuration does not give the number of classes, its labels are the distinct values
    of the column. If it gives C classes, numbers from 1 to C are labels, and numbers from 0 to C - 1 are
    label numbers already. A target with too many or too few labels is added to the problems.
    """
    labels = {}
    for name in spec.data.targets if spec.model_keys.data_model.has_labels else ():
        with problems.gathered():
            if (learnt := _learn(Cells.from_table(table, name), spec)) is not None:
                labels[name] = learnt
    return labels


def _learn(cells: Cells, spec: Configuration) -> tuple[str, ...] | None:
    """Return the labels of a target; None if its numbers are label numbers already."""
    if _are_texts(cells) or (spec.model_keys.n_labels is None and cells.kind == "number"):
        labels = _labels_of(cells)
        _check_marks(cells, labels, spec)
        _check_number_of_labels(cells, labels, spec)
        return labels
    n_classes = spec.model_keys.classes
    if n_classes is not None and _counts_from_one(cells, n_classes):
        return tuple(str(label) for label in range(1, n_classes + 1))
    return None


def _are_texts(cells: Cells) -> bool:
    """Return True for labels that are text. They may look like numbers in dress, such as >50K or 5 stars."""
    if cells.kind != "number" or cells.is_number.any():
        return cells.kind == "levels"
    texts = [text for text in cells.texts if text is not None]
    return bool(texts) and all(_WORDS.search(text) for text in texts)


def _check_marks(cells: Cells, labels: Sequence[str], spec: Configuration) -> None:
    """Raise DataError if a label may mark missing targets, unless the configuration says what does."""
    marks = [label for label in labels if label.lower() in MARKS]
    if not marks or spec.data.missing_marks is not None:
        return
    counts = ", ".join(f"{mark!r} in {cells.texts.count(mark)}" for mark in marks)
    raise ColumnError(
        f"{cells.table.source}: column {cells.name}: {counts} of {cells.table.n_rows} rows may mark missing"
        f" values; if so, set {marks_key(marks)}, which leaves these cases out of the likelihood; if"
        f" {'it is a label' if len(marks) == 1 else 'they are labels'}, set {marks_key([])}",
        {"missing_marks": marks},
    )


def _counts_from_one(cells: Cells, n_classes: int) -> bool:
    """Return True if the numbers in a column are whole, the largest is n_classes, and none is below 1."""
    numbers = cells.numbers[cells.is_number]
    whole = (numbers == np.floor(numbers)).all()
    return bool(len(numbers) and whole and numbers.min() >= 1 and numbers.max() == n_classes)


def _labels_of(cells: Cells) -> tuple[str, ...]:
    """Return the labels of a target; numbers are sorted by value, however they are written."""
    if _are_texts(cells):
        return levels_of(cells)
    cells.check_numbers(allowed=cells.is_empty, is_input=False)
    numbers = {plain_number(text) or text for text in cells.texts if text is not None}
    return tuple(sorted(numbers, key=order_of_levels))


def levels_of(cells: Cells, *, is_input: bool = False) -> tuple[str, ...]:
    """Return the levels of a column: categories in their order, numbers by value, text alphabetically.

    Categories that an input declares are levels even if no cell has them; those of a target are no labels.
    """
    there = {text for text in cells.texts if text is not None}
    if cells.has_categories:
        categories = dict.fromkeys(map(level_text, cells.values.cat.categories))
        _check_unused(cells, [text for text in categories if text not in there], len(there))
        return tuple(categories) if is_input else tuple(text for text in categories if text in there)
    _check_leading_zeros(cells, there)
    if cells.values.dtype.kind != "b" and all(plain_number(text) is not None for text in there):
        return tuple(sorted(there, key=order_of_levels))
    return tuple(sorted(there))


def _check_unused(cells: Cells, unused: Sequence[str], n_used: int) -> None:
    """Raise DataError if most of very many declared categories do not occur."""
    if len(unused) > max(_MAX_LABELS, n_used):
        raise DataError(
            f"{cells.table.source}: column {cells.name}: declares {n_used + len(unused)} categories, of which"
            f" {len(unused)} do not occur, such as {unused[0]!r}; each would be an input: leave them out with"
            " cat.remove_unused_categories()"
        )


def _check_leading_zeros(cells: Cells, levels: set[str]) -> None:
    """Raise DataError if two levels differ only by leading zeros, which may or may not mean something."""
    for level in sorted(levels):
        number = plain_number(level)
        if number != level and number in levels:
            raise DataError(
                f"{cells.table.source}: column {cells.name}: has both {level!r} and {number!r}, which may be"
                " one level in two spellings or two levels; write each level in one way"
            )


def level_numbers(cells: Cells, levels: Sequence[str], what: str) -> Array:
    """Return the place of each cell's level among the levels, (n_rows,) float64, NaN for empty cells.

    what  "level" or "label", the noun used in the DataError for an unknown value
    """
    numbers = places_of(cells, levels)
    check_known(cells, numbers, levels, what)
    return numbers


def places_of(cells: Cells, levels: Sequence[str]) -> Array:
    """Return the places as `level_numbers` does, but -1 for an unknown level."""
    places = Places(levels)
    numbers = np.full(len(cells.values), np.nan)
    for row in np.flatnonzero(~cells.is_empty).tolist():
        place = places.of(cells.level(row))
        numbers[row] = -1 if place is None else place
    return numbers


def check_known(cells: Cells, places: Array, levels: Sequence[str], what: str) -> None:
    """Raise DataError if a place is -1, for an unknown level or label."""
    unknown = np.flatnonzero(places < 0)
    if not len(unknown):
        return
    first = int(unknown[0])
    text = str(cells.values.iloc[first]).strip()
    advice = f"; if {text!r} marks a missing value, set {marks_key([text])}" * (text.lower() in MARKS)
    raise DataError(
        f"{cells.place(first)}: unknown {what}, got {str(cells.values.iloc[first])!r}"
        f" ({len(unknown)} of {len(places)} rows); the {what}s are: {listed(levels)}{advice}"
    )


def _check_number_of_labels(cells: Cells, labels: Sequence[str], spec: Configuration) -> None:
    place, wanted = f"{cells.table.source}: column {cells.name}", spec.model_keys.n_labels
    if len(labels) > max(_MAX_LABELS, 0.5 * cells.table.n_rows):
        raise DataError(
            f"{place}: has {len(labels)} different values, too many for labels; use another model.kind,"
            ' such as "real" for numbers'
        )
    if wanted is not None and len(labels) != wanted:
        raise DataError(
            f"{place}: a {spec.model_keys.kind} target must have {wanted} labels, got {len(labels)}:"
            f" {listed(labels)}"
        )
    if len(labels) < 2:
        raise DataError(f"{place}: every row has the label {listed(labels)}; at least two labels are needed")
