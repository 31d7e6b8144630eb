"""The picture of errors on the cases of a file by iteration, of single draws and of their predictive mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rayfbnn.answers.errors_by_iteration import Course, ErrorsByIteration
from rayfbnn.arrays import Array
from rayfbnn.pictures.colours import GREY, chain_style
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes, logarithmic

_WORDS = {
    "squared_error": "squared error",
    "error_rate": "error rate",
    "log_probability": "minus log probability",
}


@styled
def errors_by_iteration(
    errors: ErrorsByIteration, path: str | Path, *, numbers: Sequence[int] | None = None
) -> Path:
    """Plot the error of each draw alone on the left, and that of the predictive mean so far on the right.

    Draws of the warm-up come first, and dashed lines separate the phases. The mean has no draws of the
    warm-up in it.

    numbers  the numbers that the chains have; 0, 1, ... unless given
    """
    figure, axes = figure_with_axes(1, 2, width=8.2, height=3.2, width_ratios=(1.5, 1))
    left, right = axes[0]
    courses = [course for course in (errors.warmup, errors.kept) if course is not None]
    for course in courses:
        _draw_chains(left, course, course.of_draws, numbers)
    _draw_chains(right, errors.kept, errors.kept.so_far, numbers)
    right.plot(errors.kept.iterations, errors.kept.together, color="black", lw=1.6, label="all chains")
    right.legend(loc="upper right")
    for axis, of_axis in ((left, courses), (right, [errors.kept])):
        first, last = of_axis[0].iterations[0], of_axis[-1].iterations[-1]
        for start in errors.starts:
            if first < start <= last:
                axis.axvline(start - 0.5, color=GREY, lw=0.8, ls="--", zorder=0)
        axis.set_xlim(first - 0.5, last + 0.5)
        axis.set_xlabel("iteration")
    words = _WORDS[errors.measure]
    left.set_title(f"{words} of single draws, {errors.n_cases:,} cases")
    right.set_title("of the mean of the draws so far")
    left.set_ylabel(words)
    is_logarithmic = errors.measure == "squared_error"
    _scale(left, [course.of_draws for course in courses], is_logarithmic=is_logarithmic)
    _scale(right, [errors.kept.so_far, errors.kept.together], is_logarithmic=is_logarithmic)
    return save(figure, path)


def _draw_chains(axis: Axes, course: Course, values: Array, numbers: Sequence[int] | None) -> None:
    for number, of_chain in zip(numbers or range(len(values)), values, strict=True):
        axis.plot(course.iterations, of_chain, **chain_style(number), lw=0.7, alpha=0.8)


def _scale(axis: Axes, drawn: list[Array], *, is_logarithmic: bool) -> None:
    """Set the vertical scale; a linear one ends where all but the first tenth of a warm-up fits."""
    finite = [values[np.isfinite(values)] for values in drawn]
    every = np.concatenate(finite)
    if is_logarithmic and every.size and every.min() > 0:
        logarithmic(axis, every)
    elif every.size:
        top = max(finite[-1].max(initial=-np.inf), float(np.quantile(finite[0], 0.9)))
        margin = 0.05 * ((top - every.min()) or 1.0)
        axis.set_ylim(every.min() - margin, top + margin)
