"""Remarks on training cases that were read, but perhaps not as they were meant."""

from __future__ import annotations

import unicodedata

import numpy as np

from rayfbnn.data import Dataset
from rayfbnn.data.cells import MARKS, marks_key
from rayfbnn.data.problems import toml_value
from rayfbnn.spec import RunSpec

# Numbers that often mark missing values.
_MARKS_AS_NUMBERS = (-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0)
_EVENTS = ("cens", "event", "status", "died", "dead", "death", "fail", "observed")  # in names of columns
_COUNTERS = frozenset({"unnamed: 0", "index", "id", "row", "rownames", "row_names", "nr", "no", "obs"})


def remarks(spec: RunSpec, data: Dataset) -> list[str]:
    """Return remarks on targets that are constant, and on inputs that may be no inputs, one item each.

    Inputs may be marks of missing values, numbers of rows, or marks of censored times.
    """
    lines = [
        f"the target {name} is {column[seen][0]:g} in every row, so there is nothing else to learn"
        for name, column in zip(data.target_names, data.targets.T, strict=True)
        if (seen := ~np.isnan(column)).sum() > 1 and (column[seen] == column[seen][0]).all()
    ]
    if spec.encoding is None:
        return lines
    columns = {column.name: column.levels for column in spec.encoding.inputs} | spec.encoding.labels
    lines += [
        f"{name} has {first!r} and {second!r}; if they are the same, write them in one way"
        for name, levels in columns.items()
        for first, second in _alike(levels)
    ]
    lines += _remarks_on_censoring(spec, data)
    places = {name: place for place, name in enumerate(data.input_names)}
    for column in spec.encoding.inputs:
        marks = [level for level in column.levels if level.lower() in MARKS]
        if marks and spec.data.missing_marks is None:
            lines.append(f"{', '.join(marks)} is a level of {column.name}; {_if_marks(marks)}")
        if column.kind == "number":
            lines += _remarks_on_numbers(column.name, data.inputs[:, places[column.name]])
    return lines


def _alike(levels: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the pairs of levels that differ only in capitals, blanks, or the form of their letters."""
    first: dict[str, str] = {}
    pairs = []
    for level in levels:
        plain = " ".join(unicodedata.normalize("NFKC", level).casefold().split())
        if plain in first:
            pairs.append((first[plain], level))
        first.setdefault(plain, level)
    return pairs


def _remarks_on_numbers(name: str, values: np.ndarray) -> list[str]:
    low, high = float(values.min()), float(values.max())
    for mark in (low, high):
        n_marked = int((values == mark).sum())
        rest = values[values != mark]
        if mark in _MARKS_AS_NUMBERS and len(rest) and abs(mark) > 3 * np.abs(rest).max():
            return [f"{name} is {mark:g} in {n_marked} of {len(values)} rows; {_if_marks([f'{mark:g}'])}"]
    if name.lower() in _COUNTERS and low in (0, 1) and high == low + len(values) - 1:
        if len(np.unique(values)) == len(values) and (values == np.floor(values)).all():
            return [f"{name} counts the rows; to leave it out, set data.exclude = {toml_value([name])}"]
    return []


def _remarks_on_censoring(spec: RunSpec, data: Dataset) -> list[str]:
    """Return a remark for inputs of 0 and 1 whose name says that they mark censored times."""
    if not spec.data_model.are_times or spec.data.censored or spec.data.event or (data.targets < 0).any():
        return []
    return [
        f"{name} is an input, and no time is censored; if {name} says where a time is censored, set"
        f" data.censored = {toml_value(name)} (1 for a censored time) or data.event = {toml_value(name)}"
        " (1 for an event)"
        for name, column in zip(data.input_names, data.inputs.T, strict=True)
        if any(part in name.lower() for part in _EVENTS) and np.isin(column, (0, 1)).all()
    ]


def _if_marks(marks: list[str]) -> str:
    return f"if it marks missing values, set {marks_key(marks)}"
