"""The parts of the training cases in words, with a warning where they are not alike."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.parts import cases_of_part
from rayfbnn.spec import RunSpec

_RARE = 1e-4  # a difference between parts that chance makes less often is worth a warning


def describe_parts(spec: RunSpec, targets: Array | None) -> list[str]:
    """Describe the division of the training cases, one item a line; nothing if they are one whole.

    targets  (n_cases, n_targets) of the training cases, in the order of the run, for a warning about parts
             whose targets differ by more than chance; None if they are not known
    """
    if spec.data.parts == "auto":
        return ["  the training cases say in how many parts they are divided"]
    if spec.n_parts == 1:
        return ["  cases in random order"] if spec.data.shuffle else []
    order = "of cases in random order" if spec.data.shuffle else "of cases in the order of the table"
    lines = [f"  {spec.n_parts} parts {order}{_sizes(spec, targets)}; chains travel from part to part"]
    if targets is not None:
        lines += [f"  warning: {text}" for text in unlike_parts(spec, targets)]
    return lines


def unlike_parts(spec: RunSpec, targets: Array) -> list[str]:
    """Say for each target whose parts differ by more than chance how they do, and what to do.

    Partial gradients stand for the gradient of all cases, so that parts which are not alike lead to
    trajectories that are rejected. Labels are compared by a chi-squared test of their shares, numbers by the
    test of Kruskal and Wallis, which has no assumption on their distribution.
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
            lines.append(f"{name} is not alike in the parts: {difference}; {advice}")
    return lines


def _of_labels(parts: list[Array]) -> str:
    """Say how the shares of labels differ between parts; "" if not by more than chance."""
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
    return f"the share of label {labels[widest]:g} goes from {lowest:.2f} to {highest:.2f} (p = {p:.1g})"


def _of_numbers(parts: list[Array]) -> str:
    """Say how means differ between parts; "" if not by more than chance."""
    import scipy.stats

    filled = [part for part in parts if len(part)]
    if len(filled) < 2 or len(np.unique(np.concatenate(filled))) < 2:
        return ""
    p = float(scipy.stats.kruskal(*filled).pvalue)
    if p >= _RARE:
        return ""
    means = [part.mean() for part in filled]
    return f"the mean goes from {min(means):.3g} to {max(means):.3g} (p = {p:.1g})"


def _sizes(spec: RunSpec, targets: Array | None) -> str:
    """Return how many cases each part has, as far as their number is known."""
    if targets is not None:
        n_cases = len(targets)
    elif spec.encoding is not None:
        n_cases = spec.encoding.n_cases
    else:
        return ""
    least, most = n_cases // spec.n_parts, -(-n_cases // spec.n_parts)
    return f", {least:,} in each" if least == most else f", {least:,} or {most:,} in each"
