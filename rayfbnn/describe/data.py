"""Describes the data of a configuration: the use of each column, and the columns left out."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.spec import RunSpec

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_WIDTH = 110


def describe_data(spec: RunSpec, store: Store | None) -> list[str]:
    """Describe the inputs and targets, one item a line.

    If the training cases have been read, the lines describe the inputs made from each column of the table.
    """
    model, encoding = spec.data_model, spec.encoding
    source = spec.data.train or "from memory"
    standardized = " and ".join(spec.data.standardize) or "nothing"
    if encoding is None:
        unchecked = " (no such file: the columns are unchecked)" if store is None and spec.data.train else ""
        lines = [f"Data: {source}{unchecked}", *_listed("inputs", spec.input_names)]
    else:
        lines = [f"Data: {source}, {encoding.n_cases:,} cases", *_columns(encoding)]
    lines.append(f"  targets {', '.join(spec.data.targets)} ({model.in_words}); standardised: {standardized}")
    if encoding is not None:
        lines += _labels(encoding)
    if spec.data.censored is not None:
        lines.append(f"  times are censored where {spec.data.censored} is 1 or true")
    lines += [f"  {remark}" for remark in model.remarks]
    if spec.temperature != 1:
        power = f"the likelihood to the power {1 / spec.temperature:.4g}"
        lines.append(f"  temperature {spec.temperature:g}: {power}")
    return lines


def _columns(encoding: Encoding) -> list[str]:
    """Describe the input columns and the columns left out; complete columns of numbers share an item."""
    plain = [column.name for column in encoding.inputs if column.kind == "number" and not column.n_missing]
    lines = _listed("inputs", plain) if plain else []
    for column in encoding.inputs:
        if column.name not in plain:
            lines += _wrapped(f"input {column.name}: {_column(column, encoding.n_cases)}")
    if encoding.constant:
        constant = [f"{name} (always {value})" for name, value in encoding.constant.items()]
        lines += _listed("left out, because they are constant:", constant)
    if encoding.not_used:
        lines += _listed("left out, because the configuration does not ask for them:", encoding.not_used)
    return lines


def _column(column: InputColumn, n_cases: int) -> str:
    """Describe the inputs that one column becomes."""
    levels = ", ".join(column.levels)
    match column.kind:
        case "levels":
            text = f"{len(column.levels)} levels, an input of 0 or 1 for each: {levels}"
        case "ordered":
            text = f"the place from 0 among the levels {levels}"
        case "missing":
            text = "only whether it is missing, because all its values are equal"
        case _:
            text = "the number"
    if not column.n_missing:
        return text
    if column.median is not None:
        text += f", {column.median:g} where it is missing"
    return f'{text}; "{column.indicator_names[0]}" in {column.n_missing:,} of {n_cases:,} cases'


def _labels(encoding: Encoding) -> list[str]:
    return [
        line
        for target, labels in encoding.labels.items()
        for line in _listed(
            f"labels of {target}:", [f"{label} ({number})" for number, label in enumerate(labels)]
        )
    ]


def _listed(what: str, names: tuple[str, ...] | list[str]) -> list[str]:
    return _wrapped(f"{what} {', '.join(names)}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
