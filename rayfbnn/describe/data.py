"""Describes data: columns, parts of the training cases, remarks on these, and a comparison with new cases."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset, Source
from rayfbnn.data.cells import MARKS, Cells, marks_key
from rayfbnn.data.dataset import log_scale_advice
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.data.learning import places_of
from rayfbnn.data.raw_table import listed, toml_value
from rayfbnn.data.special_columns import missing_rows
from rayfbnn.data.training import as_trained, counts_text, table_of_new_cases, unknown_levels
from rayfbnn.errors import DataError
from rayfbnn.model.batches import cases_of_part
from rayfbnn.numerals import plain
from rayfbnn.output.facts import wrapped
from rayfbnn.run.in_parts import visit_length
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
    for target, labels in ({} if encoding is None else encoding.labels).items():
        lines += _listed(f"labels of {target}:", [f"{label} ({n})" for n, label in enumerate(labels)])
    if spec.data.censored is not None:
        lines.append(f"  times are censored where {spec.data.censored} is 1 or true")
    if spec.data.event is not None:
        lines.append(f"  times are those of events where {spec.data.event} is 1 or true, and else censored")
    without_mean = "" if model.has_exponential_moments else "; it has no mean, predict its median"
    lines += [
        f"  {name} on a log scale: the network models log({name}){without_mean}"
        for name in spec.data.transform or {}
    ]
    lines += [f"  {remark}" for remark in model.remarks]
    if spec.temperature != 1:
        power = f"the likelihood to the power {1 / spec.temperature:.4g}"
        lines.append(f"  temperature {spec.temperature:g}: {power}")
    return lines


def describe_skewness(spec: RunSpec, targets: Array | None) -> list[str]:
    """Advise a log scale for real targets that are clearly skewed, one a line.

    targets  (n_cases, n_targets) of the training cases as in the table; None if they are not known
    """
    if targets is None or not spec.data_model.is_real:
        return []
    columns = zip(spec.data.targets, targets.T, strict=True)
    raw = [(name, column) for name, column in columns if name not in (spec.data.transform or {})]
    return wrapped([text for one in raw if (text := log_scale_advice(*one))], "  ", _WIDTH)


def _columns(encoding: Encoding) -> list[str]:
    """Describe the input columns and the columns left out; complete columns of numbers share an item."""
    plain = [column.name for column in encoding.inputs if column.kind == "number" and not column.n_missing]
    lines = _listed("inputs", plain) if plain else []
    for column in encoding.inputs:
        if column.name not in plain:
            lines += wrapped([f"input {column.name}: {_column(column, encoding.n_cases)}"], "  ", _WIDTH)
    if encoding.constant:
        constant = [f"{name} (always {value})" for name, value in encoding.constant.items()]
        lines += _listed("left out, because they are constant:", constant)
    if encoding.not_used:
        names = [name or "a column without a name" for name in encoding.not_used]
        lines += _listed("left out, because the configuration does not ask for them:", names)
    return lines


def _column(column: InputColumn, n_cases: int) -> str:
    levels = ", ".join(column.levels)
    text = {
        "levels": f"{len(column.levels)} levels, an input of 0 or 1 for each: {levels}",
        "ordered": f"the place from 0 among the levels {levels}",
        "missing": "only whether it is missing, because all its values are equal",
        "exposure": "its logarithm is added to the outputs, so it multiplies the means (the exposure)",
        "number": "the number",
    }[column.kind]
    if not column.n_missing:
        return text
    if column.median is not None:
        text += f", {column.median:g} where it is missing"
    return f'{text}; "{column.indicator_names[0]}" in {column.n_missing:,} of {n_cases:,} cases'


def _listed(what: str, names: tuple[str, ...] | list[str]) -> list[str]:
    return wrapped([f"{what} {', '.join(names)}"], "  ", _WIDTH)


_RARE = 1e-4  # a difference between parts that is less likely by chance is worth a warning


def describe_parts(spec: RunSpec, targets: Array | None) -> list[str]:
    """Describe the division of the training cases, one item a line; no lines if they are not divided.

    targets  (n_cases, n_targets) of the training cases, in the order of the run, for a warning if targets of
             the parts differ by more than chance; None if they are not known
    """
    if spec.data.parts == "auto":
        return ["  the number of parts will depend on the training cases"]
    if spec.n_parts == 1:
        return ["  cases in random order"] if spec.data.shuffle else []
    order = "of cases in random order" if spec.data.shuffle else "of cases in the order of the table"
    line = f"  {spec.n_parts} parts {order}{{}}; chains travel from part to part"
    if targets is not None:
        n_cases = len(targets)
    elif spec.encoding is not None:
        n_cases = spec.encoding.n_cases
    else:
        return [line.format("")]
    least, most = n_cases // spec.n_parts, -(-n_cases // spec.n_parts)
    sizes = f", {least:,} in each" if least == most else f", {least:,} or {most:,} in each"
    warnings = [] if targets is None else unlike_parts(spec, targets)
    return [
        line.format(sizes),
        *(f"  {text}" for text in _visits(spec, n_cases)),
        *(f"  warning: {text}" for text in warnings),
    ]


def unlike_parts(spec: RunSpec, targets: Array) -> list[str]:
    """Describe each target that differs between parts by more than chance, and give advice.

    Partial gradients estimate the gradient of all cases, so trajectories are rejected if the parts differ.
    A chi-squared test compares the shares of labels, and the test of Kruskal and Wallis compares numbers,
    without an assumption about their distribution.
    """
    advice = (
        "trajectories of partial gradients may be rejected"
        if spec.data.shuffle
        else "trajectories of partial gradients may be rejected; set data.shuffle = true"
    )
    ends = [cases_of_part(len(targets), part, spec.n_parts) for part in range(spec.n_parts)]
    lines = []
    for name, column in zip(spec.data.targets, targets.T, strict=True):
        values = np.abs(column) if spec.data_model.are_times else column  # censored times are negative
        parts = [part[~np.isnan(part)] for part in (values[first:end] for first, end in ends)]
        if difference := _difference(parts, are_labels=spec.data_model.has_labels):
            lines.append(f"{name} differs between the parts: {difference}; {advice}")
    return lines


def _difference(parts: list[Array], *, are_labels: bool) -> str:
    import scipy.stats

    filled = [part for part in parts if len(part)]
    values = np.unique(np.concatenate(parts))
    if len(filled) < 2 or len(values) < 2:
        return ""
    if not are_labels:
        p, means = float(scipy.stats.kruskal(*filled).pvalue), [part.mean() for part in filled]
        ends = f"the mean ranges from {plain(min(means), 3)} to {plain(max(means), 3)}"
    else:
        counts = np.array([[(part == label).sum() for label in values] for part in filled])
        p, shares = float(scipy.stats.chi2_contingency(counts).pvalue), counts / counts.sum(axis=1)[:, None]
        widest = int(np.argmax(np.ptp(shares, axis=0)))
        lowest, highest = shares[:, widest].min(), shares[:, widest].max()
        ends = f"the share of label {values[widest]:g} ranges from {lowest:.2f} to {highest:.2f}"
    return f"{ends} (p = {p:.1g})" if p < _RARE else ""


def _visits(spec: RunSpec, n_cases: int) -> list[str]:
    length = visit_length(spec, n_cases)
    chains = "1 chain" if length.n_chains == 1 else f"{length.n_chains} chains"
    cases = f"{math.ceil(n_cases / spec.n_parts):,} cases"
    lines = [
        f"a visit takes about {1000 * length.seconds:.2g} ms at the usual speed of a core: one gradient of"
        f" {chains} at {cases}"
    ]
    if length.takes_star(length.n_batches + 1):
        lines.append(
            f"with more workers than batches ({length.n_batches}), all workers compute a full gradient at"
            " once (a star); otherwise, and for partial gradients, chains go round the workers (a ring)"
        )
    elif length.has_full:
        lines.append("chains go round the workers (a ring): visits are too short to ask all workers at once")
    else:
        lines.append("chains go round the workers (a ring), because partial gradients follow one another")
    if length.is_short:
        lines.append(
            f"warning: if visits are shorter than {1000 * length.worth_seconds:.2g} ms, messages take more"
            " than a tenth of the workers' time; use fewer parts, more chains in a batch, or no parts if all"
            " cases fit into one worker"
        )
    return lines


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
    plain = [" ".join(unicodedata.normalize("NFKC", level).casefold().split()) for level in levels]
    pairs = [(first.setdefault(form, level), level) for form, level in zip(plain, levels, strict=True)]
    return [pair for pair in pairs if pair[0] != pair[1]]


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


_FAR = 1.0  # widths of the training range outside of it


def describe_new_cases(spec: RunSpec, training: Dataset, data: Source) -> list[str]:
    """Return lines about new cases: first whether they can be predicted, then a line for each column.

    spec  the configuration, resolved against the training cases

    Raises DataError if the table cannot be read at all.
    """
    table = table_of_new_cases(data, spec)
    encoding = spec.encoding or Encoding.from_numbers(spec.input_names)
    absent = [column.name for column in encoding.inputs if column.name not in table.names]
    refused = [f"columns are missing: {listed(absent)}"] if absent else []
    remarks: list[str] = []
    for column in encoding.inputs:
        if column.name in absent:
            continue
        try:
            _compare(Cells.from_table(table, column.name), column, spec, training, refused, remarks)
        except DataError as exc:
            refused.append(str(exc).removeprefix(f"{table.source}: "))
    targets = [name for name in spec.data.targets if name in table.names]
    compared = f"{table.n_rows:,} cases, {'with' if targets else 'without'} targets"
    verdict = "cannot be predicted as they are" if refused else "can all be predicted"
    lines = [f"New cases: {table.source}, {compared}; they {verdict}"]
    return lines + [f"  refused: {text}" for text in refused] + [f"  remark: {text}" for text in remarks]


def _compare(
    cells: Cells,
    column: InputColumn,
    spec: RunSpec,
    training: Dataset,
    refused: list[str],
    remarks: list[str],
) -> None:
    cells = as_trained(cells, column, training)
    is_missing = missing_rows(cells, column)
    if is_missing.any():
        text = f"column {column.name}: missing in {is_missing.sum()} of {len(is_missing)} rows"
        if column.n_missing:
            remarks.append(f"{text}, and in {column.n_missing} of {training.n_cases} training cases")
        else:
            refused.append(f"{text}, and in no training case")
    if column.kind in ("levels", "ordered"):
        counts = unknown_levels(cells, places_of(cells, column.levels))
        text = (
            f"column {column.name}: {counts.total()} of {len(is_missing)} rows have levels that no training"
            f" case has: {counts_text(counts)}"
        )
        if counts and column.kind == "ordered":
            refused.append(text)
        elif counts and spec.data.unknown == "ignore":
            remarks.append(f"{text}; they are ignored")
        elif counts:
            refused.append(f'{text}; data.unknown = "ignore" predicts them')
        return
    cells.check_numbers(allowed=cells.is_missing)
    if column.kind == "number":
        values = training.inputs[:, training.input_names.index(column.name)]
        remarks += _far_outside(column.name, cells.numbers, values)


def _far_outside(name: str, new: Array, training: Array) -> list[str]:
    low, high = float(training.min()), float(training.max())
    margin = _FAR * (high - low)
    is_far = (new < low - margin) | (new > high + margin)
    if not is_far.any():
        return []
    distance = np.where(is_far, np.maximum(low - new, new - high), -1.0)
    row = int(np.argmax(distance))
    return [
        f"column {name}: {is_far.sum()} of {len(new)} rows are far outside the training range, {low:g} to"
        f" {high:g}; row {row + 1} has {new[row]:g}"
    ]
