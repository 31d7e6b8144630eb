"""The section on the data: cases, columns with their encoding, and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.effects import columns_of
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.output import tables
from rayfbnn.reporting.reported_run import ReportedRun, labels_of

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_MAX_ROWS = 60
_KINDS = {
    "number": "number",
    "levels": "levels, an input of 0 or 1 for each",
    "ordered": "ordered levels, numbered from 0",
    "missing": "only whether the value is missing",
}


def data_section(run: ReportedRun) -> str:
    """Return the number of cases and inputs, a table of the columns, and a table of the targets."""
    draws, cases = run.draws, run.cases
    spec, data = draws.spec, draws.data
    held_out = f"{cases.n_all:,}, {cases.source}" if cases.is_held_out else "none given"
    numbers = tables.pairs(
        {
            "training cases": data.n_cases,
            "source": spec.data.train or "from memory",
            "held-out cases": held_out,
            "columns that are inputs": len(columns_of(draws)),
            "inputs of the network": data.n_inputs,
            "standardised": " and ".join(spec.data.standardize) or "nothing",
            "on a log scale": ", ".join(spec.data.transform or {}) or None,
        }
    )
    return numbers + _inputs(draws) + _targets(draws) + _left_out(draws)


def _inputs(draws: Draws) -> str:
    columns = columns_of(draws)
    rows = [_input_row(draws, column) for column in columns[:_MAX_ROWS]]
    more = len(columns) - len(rows)
    header = ("input", "type", "values in the training cases", "missing")
    return tables.table(header, rows) + tables.paragraph(f"and {more:,} more columns" if more else "")


def _input_row(draws: Draws, column: InputColumn) -> tuple[tables.Cell, ...]:
    names = draws.data.input_names
    if column.kind == "levels":
        values = [draws.data.inputs[:, names.index(name)].sum() for name in column.value_names]
        words = ", ".join(
            f"{level} ({count:.0f})" for level, count in zip(column.levels, values, strict=True)
        )
    elif column.kind == "ordered":
        places = draws.data.inputs[:, names.index(column.name)]
        counts = [int((places == place).sum()) for place in range(len(column.levels))]
        words = ", ".join(f"{level} ({count})" for level, count in zip(column.levels, counts, strict=True))
    elif column.kind == "missing":
        words = "always the same"
    else:
        words = _range_in_words(draws.data.inputs[:, names.index(column.name)])
    return column.name, _KINDS[column.kind], words, column.n_missing


def _range_in_words(values: Array) -> str:
    low, middle, high = (tables.cell_text(float(value)) for value in np.quantile(values, [0, 0.5, 1]))
    return f"{low} to {high}, median {middle}"


def _targets(draws: Draws) -> str:
    rows = []
    for target, name in enumerate(draws.data.target_names):
        values = draws.data.targets[:, target]
        n_missing = int(np.isnan(values).sum())
        rows.append((name, draws.spec.data_model.in_words, _target_in_words(draws, name, values), n_missing))
    return tables.table(("target", "data model", "values in the training cases", "missing"), rows)


def _target_in_words(draws: Draws, name: str, values: Array) -> str:
    model, known = draws.spec.data_model, values[~np.isnan(values)]
    if len(known) == 0:
        return "none"
    if model.has_labels:
        labels = labels_of(draws, name)
        numbers, counts = np.unique(known, return_counts=True)
        return ", ".join(
            f"{labels[int(number)] if labels else f'{number:g}'} ({count})"
            for number, count in zip(numbers, counts, strict=True)
        )
    if model.are_times:
        return f"{_range_in_words(np.abs(known))}; {int((known < 0).sum())} censored"
    return f"{_range_in_words(known)}, mean {tables.cell_text(float(known.mean()))}"


def _left_out(draws: Draws) -> str:
    encoding = draws.spec.encoding
    if encoding is None:
        return ""
    sentences = []
    if encoding.constant:
        constant = ", ".join(f"{name} (always {value})" for name, value in encoding.constant.items())
        sentences.append(f"Left out, because they are constant: {constant}.")
    if encoding.not_used:
        names = ", ".join(encoding.not_used)
        sentences.append(f"Left out, because the configuration does not ask for them: {names}.")
    return tables.items(sentences)
