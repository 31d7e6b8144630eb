"""Describes the data of a configuration: the use of each column, and the parts of the training cases."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.data.transforms import log_scale_advice
from rayfbnn.model.batches import cases_of_part
from rayfbnn.numerals import plain
from rayfbnn.output.lines import width_up_to
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
    if encoding is not None:
        lines += _labels(encoding)
    if spec.data.censored is not None:
        lines.append(f"  times are censored where {spec.data.censored} is 1 or true")
    if spec.data.event is not None:
        lines.append(f"  times are those of events where {spec.data.event} is 1 or true, and else censored")
    lines += _transforms(spec)
    lines += [f"  {remark}" for remark in model.remarks]
    if spec.temperature != 1:
        power = f"the likelihood to the power {1 / spec.temperature:.4g}"
        lines.append(f"  temperature {spec.temperature:g}: {power}")
    return lines


def _transforms(spec: RunSpec) -> list[str]:
    """Describe the targets on a log scale, one a line."""
    without_mean = "" if spec.data_model.has_exponential_moments else "; it has no mean, predict its median"
    return [
        f"  {name} on a log scale: the network models log({name}){without_mean}"
        for name in spec.data.transform or {}
    ]


def describe_skewness(spec: RunSpec, targets: Array | None) -> list[str]:
    """Advise a log scale for real targets that are clearly skewed, one a line.

    targets  (n_cases, n_targets) of the training cases as in the table; None if they are not known
    """
    if targets is None or not spec.data_model.is_real:
        return []
    plain = [name for name in spec.data.targets if name not in (spec.data.transform or {})]
    columns = dict(zip(spec.data.targets, targets.T, strict=True))
    advice = [log_scale_advice(name, columns[name]) for name in plain]
    return [line for text in advice if text for line in _wrapped(text)]


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
        names = [name or "a column without a name" for name in encoding.not_used]
        lines += _listed("left out, because the configuration does not ask for them:", names)
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
        case "exposure":
            text = "its logarithm is added to the outputs, so it multiplies the means (the exposure)"
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
    return textwrap.wrap(
        text,
        width_up_to(_WIDTH),
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )


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
    n_cases = _n_cases(spec, targets)
    sizes = _sizes(spec.n_parts, n_cases)
    lines = [f"  {spec.n_parts} parts {order}{sizes}; chains travel from part to part"]
    if n_cases is not None:
        lines += [f"  {text}" for text in _visits(spec, n_cases)]
    if targets is not None:
        lines += [f"  warning: {text}" for text in unlike_parts(spec, targets)]
    return lines


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
        difference = _of_labels(parts) if spec.targets_are_labels else _of_numbers(parts)
        if difference:
            lines.append(f"{name} differs between the parts: {difference}; {advice}")
    return lines


def _of_labels(parts: list[Array]) -> str:
    """Describe how the shares of labels differ between parts; "" if by no more than chance."""
    import scipy.stats

    labels = np.unique(np.concatenate(parts))
    counts = np.array([[(part == label).sum() for label in labels] for part in parts])
    counts = counts[counts.sum(axis=1) > 0]
    if counts.shape[0] < 2 or counts.shape[1] < 2:
        return ""
    p = float(scipy.stats.chi2_contingency(counts).pvalue)
    if p >= _RARE:
        return ""
    shares = counts / counts.sum(axis=1, keepdims=True)
    widest = int(np.argmax(np.ptp(shares, axis=0)))
    lowest, highest = shares[:, widest].min(), shares[:, widest].max()
    return f"the share of label {labels[widest]:g} ranges from {lowest:.2f} to {highest:.2f} (p = {p:.1g})"


def _of_numbers(parts: list[Array]) -> str:
    """Describe how means differ between parts; "" if by no more than chance."""
    import scipy.stats

    filled = [part for part in parts if len(part)]
    if len(filled) < 2 or len(np.unique(np.concatenate(filled))) < 2:
        return ""
    p = float(scipy.stats.kruskal(*filled).pvalue)
    if p >= _RARE:
        return ""
    means = [part.mean() for part in filled]
    return f"the mean ranges from {plain(min(means), 3)} to {plain(max(means), 3)} (p = {p:.1g})"


def _visits(spec: RunSpec, n_cases: int) -> list[str]:
    """Describe the time of a visit, the use of workers, and whether visits are too short."""
    length = visit_length(spec, n_cases)
    chains = "1 chain" if length.n_chains == 1 else f"{length.n_chains} chains"
    cases = f"{math.ceil(n_cases / spec.n_parts):,} cases"
    lines = [
        f"a visit takes about {_milliseconds(length.seconds)} at the usual speed of a core: one gradient of"
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
            f"warning: if visits are shorter than {_milliseconds(length.worth_seconds)}, messages take more"
            " than a tenth of the workers' time; use fewer parts, more chains in a batch, or no parts if all"
            " cases fit into one worker"
        )
    return lines


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms"


def _n_cases(spec: RunSpec, targets: Array | None) -> int | None:
    """Return the number of training cases, if it is known."""
    if targets is not None:
        return len(targets)
    return None if spec.encoding is None else spec.encoding.n_cases


def _sizes(n_parts: int, n_cases: int | None) -> str:
    """Return the number of cases in each part, as the end of a line; "" if it is not known."""
    if n_cases is None:
        return ""
    least, most = n_cases // n_parts, -(-n_cases // n_parts)
    return f", {least:,} in each" if least == most else f", {least:,} or {most:,} in each"
