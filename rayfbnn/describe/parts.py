"""Describes the parts of the training cases, with a warning if they differ."""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.parts import cases_of_part
from rayfbnn.run.visit_length import visit_length
from rayfbnn.spec import RunSpec

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
    return f"the mean ranges from {min(means):.3g} to {max(means):.3g} (p = {p:.1g})"


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
