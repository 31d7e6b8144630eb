"""Learns from the training cases which columns are inputs, and their levels, labels, and encoding."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import MARKS, Cells, marks_key
from rayfbnn.data.dataset import scaled_inputs
from rayfbnn.data.dress import level_text, order_of_levels, place_finder, plain_number
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.data.keys import DataSpec, TableSpec, is_pattern
from rayfbnn.data.raw_table import ColumnError, Problems, Table, listed, short, toml_value
from rayfbnn.data.special_columns import check_none_missing, log_exposures
from rayfbnn.errors import DataError, at_most_ten

_WORDS = re.compile(r"[^\W\d_]|[<>=≤≥%$€£+]")
_MAX_LABELS = 100  # more, with more than one for every two cases, are taken for numbers or free text


def learn_labels(table: Table, spec: TableSpec, problems: Problems) -> dict[str, tuple[str, ...]]:
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


def _learn(cells: Cells, spec: TableSpec) -> tuple[str, ...] | None:
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


def _check_marks(cells: Cells, labels: Sequence[str], spec: TableSpec) -> None:
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
    place_of = place_finder(levels)
    numbers = np.full(len(cells.values), np.nan)
    for row in np.flatnonzero(~cells.is_empty).tolist():
        place = place_of(cells.levels[row])
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


def _check_number_of_labels(cells: Cells, labels: Sequence[str], spec: TableSpec) -> None:
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


_LONGEST_PATTERN = 1000  # characters


@dataclass(frozen=True)
class Selection:
    """The input columns.

    names        all input columns, in order
    named        the columns that the configuration names in full, not by a pattern or by default
    categorical  the columns of data.categorical
    ordered      the columns of data.ordered, with their levels in order
    """

    names: tuple[str, ...]
    named: frozenset[str]
    categorical: frozenset[str]
    ordered: Mapping[str, Sequence[str]]

    def are_levels(self, cells: Cells) -> bool:
        """Return True for a column of levels, because of its cells or of the configuration."""
        return cells.name in self.categorical or cells.name in self.ordered or cells.kind == "levels"


def select_inputs(table: Table, data: DataSpec) -> Selection:
    """Return the input columns; raise DataError for a name or pattern that matches no column.

    By default these are all columns except the targets and the exposure. A column without a name is never an
    input.
    """
    reserved = {*data.targets, data.censored, data.event, data.exposure}
    candidates = [name for name in table.names if name not in reserved and name]
    if not candidates:
        raise DataError(f"{table.source}: has no column but the targets; at least one input is needed")
    chosen: dict[str, None] = {}
    named = set()
    for wanted in ("*",) if data.inputs is None else data.inputs:
        if wanted in table.names:
            named.add(wanted)
            chosen[wanted] = None
        else:
            chosen |= dict.fromkeys(_matching(table, wanted, candidates, key="inputs"))
    excluded = _all_matching(table, data.exclude or (), key="exclude")
    names = tuple(name for name in chosen if name not in excluded)
    if not names:
        raise DataError(
            f"{table.source}: no column is left as an input; the columns are: {listed(table.names)}"
        )
    categorical = _all_matching(table, data.categorical or (), key="categorical")
    for key, columns in (("categorical", data.categorical), ("ordered", data.ordered)):
        for name in columns or ():
            if name in table.names and name not in names:
                raise DataError(f"{table.source}: data.{key} names {name}, which is not an input")
    for name in data.ordered or ():
        table.column(name)
    return Selection(names, frozenset(named), frozenset(categorical), data.ordered or {})


def _all_matching(table: Table, patterns: Sequence[str], *, key: str) -> set[str]:
    return {name for pattern in patterns for name in _matching(table, pattern, table.names, key=key)}


def _matching(table: Table, pattern: str, names: Sequence[str], *, key: str) -> list[str]:
    """Return the names that match a pattern, in order; raise DataError if none does."""
    if pattern in table.names:
        return [pattern]
    if not is_pattern(pattern):
        table.column(pattern)  # raises the error that names the nearest column
    is_usable = len(pattern) <= _LONGEST_PATTERN
    matching = [name for name in names if is_usable and fnmatchcase(name, pattern)]
    if not matching:
        raise DataError(
            f"{table.source}: data.{key}: no column matches {short(pattern)!r};"
            f" the columns are: {listed(table.names)}"
        )
    return matching


# A column of text with more levels than this, and more than one for every two cases, is free text or an
# identifier.
_MANY_LEVELS = 10
_MAX_LEVELS = 100
_MANY_READINGS = 16  # with this number of columns, equal limits are no coincidence


def learn_encoding(table: Table, spec: TableSpec) -> Encoding:
    """Return the encoding of the training table's columns as inputs and labels.

    Raises DataError for columns that cannot be inputs, or that have missing values without data.missing.
    """
    if table.n_rows == 0:
        raise DataError(f"{table.source}: no rows below the header; at least one training case is needed")
    reserved = {*spec.data.targets, spec.data.censored, spec.data.event}
    selection = select_inputs(table, spec.data)
    for name in (*spec.data.targets, spec.data.censored, spec.data.event):
        if name is not None:
            table.column(name)
    problems = Problems(table, spec.data, selection.names)
    varying, constant, inputs = [], {}, []
    for name in selection.names:
        with problems.gathered(exclude=[name]):
            cells = Cells.from_table(table, name)
            if (value := _constant_value(cells, spec, selection)) is not None:
                constant[name] = value
                continue
            inputs.append(_learn_column(cells, selection))
            varying.append(cells)
    if not inputs and not problems:
        lines = (f"column {name}: the value is {value} in every row" for name, value in constant.items())
        listed = "; ".join(at_most_ten(lines))
        raise DataError(f"{table.source}: no input varies: {listed}")
    have_one_unit = _have_one_unit(varying, selection)
    with problems.gathered():
        if (name := spec.data.exposure) is not None:
            log_exposures(table, name)  # a check
            inputs.append(InputColumn(name, "exposure"))
            varying.append(Cells.from_table(table, name))
    labels = learn_labels(table, spec, problems)
    if spec.data.missing is None and inputs:
        with problems.gathered():
            check_none_missing(list(zip(varying, inputs, strict=True)), is_training=True)
    _check_targets(table, spec, labels, problems)
    problems.check()
    encoding = Encoding(
        columns=tuple(name for name in table.names if name not in reserved),
        inputs=tuple(inputs),
        constant=constant,
        labels=labels,
        n_cases=table.n_rows,
        have_one_unit=have_one_unit,
    )
    for place, name in enumerate(encoding.input_names):
        if name in encoding.input_names[:place]:
            raise DataError(
                f'{table.source}: two inputs would be named "{name}"; rename one of their columns'
            )
    return encoding


def _check_targets(table: Table, spec: TableSpec, labels: Collection[str], problems: Problems) -> None:
    for name in spec.data.targets:
        if name in labels or spec.model_keys.data_model.has_labels:
            continue
        with problems.gathered():
            cells = Cells.from_table(table, name)
            numbers = cells.check_numbers(allowed=cells.is_empty, is_input=False)[~cells.is_empty]
            is_constant = len(numbers) > 1 and (numbers == numbers[0]).all()
            if is_constant and "targets" in spec.data.standardize:
                raise DataError(
                    f"{table.source}: column {name}: the target is {numbers[0]:g} in every row, so there is"
                    " nothing to learn; data.targets may name another column"
                )


def _constant_value(cells: Cells, spec: TableSpec, selection: Selection) -> str | None:
    """Return the constant value of a column to leave out; None if its rows differ or it is kept.

    A constant number is kept, as a kind of bias, if it is named as an input and is not standardised.
    """
    if cells.kind == "empty":
        return "empty"
    if selection.are_levels(cells):
        texts = set(cells.texts)
        return short(str(texts.pop())) if len(texts) == 1 else None
    if cells.name in selection.named and not scaled_inputs(spec.data.standardize):
        return None
    numbers = cells.numbers
    return f"{numbers[0]:g}" if cells.is_number.all() and (numbers == numbers[0]).all() else None


def _have_one_unit(columns: Sequence[Cells], selection: Selection) -> bool:
    """Return True if the columns look like readings in one unit, such as the pixels of a picture.

    This requires many columns, all of numbers. Most must have more than two values, and at least half must
    have the minimum and the maximum of the table.
    """
    if len(columns) < _MANY_READINGS or any(map(selection.are_levels, columns)):
        return False
    limits, n_varied = [], 0
    for column in columns:
        values = column.numbers[column.is_number]
        low, high = float(values.min()), float(values.max())
        limits.append((low, high))
        n_varied += bool(((values != low) & (values != high)).any())
    of_table = min(low for low, _ in limits), max(high for _, high in limits)
    return 2 * limits.count(of_table) >= len(columns) and 2 * n_varied > len(columns)


def _learn_column(cells: Cells, selection: Selection) -> InputColumn:
    ordered = selection.ordered
    if not selection.are_levels(cells):
        n_missing = int(cells.is_missing.sum())
        cells.check_numbers(allowed=cells.is_missing)
        there = cells.numbers[cells.is_number]
        if n_missing and (there == there[0]).all():
            return InputColumn(cells.name, "missing", (), n_missing)
        median = float(np.median(there)) if n_missing else None
        return InputColumn(cells.name, "number", (), n_missing, median)
    n_missing = int(cells.is_empty.sum())
    if cells.name in ordered or (cells.has_categories and cells.values.cat.ordered):
        levels = ordered.get(cells.name) or tuple(map(level_text, cells.values.cat.categories))
        places = level_numbers(cells, levels, "level")
        median = float(np.nanmedian(places)) if n_missing else None
        return InputColumn(cells.name, "ordered", tuple(levels), n_missing, median)
    levels = levels_of(cells, is_input=True)
    if cells.name not in selection.categorical and not cells.has_categories:
        _check_number_of_levels(cells, len(levels))
    return InputColumn(cells.name, "levels", levels, n_missing)


def _check_number_of_levels(cells: Cells, n_levels: int) -> None:
    n_rows = cells.table.n_rows
    if n_levels > _MAX_LEVELS or (n_levels > _MANY_LEVELS and n_levels > n_rows / 2):
        examples = ", ".join(repr(short(str(text))) for text in list(dict.fromkeys(cells.texts))[:3])
        raise DataError(
            f"{cells.table.source}: column {cells.name}: has {n_levels} different texts in {n_rows} rows"
            f" ({examples}), too many for an input each; leave it out with data.exclude ="
            f" {toml_value([cells.name])}, or name it in data.categorical if each is meant to be a level"
        )
