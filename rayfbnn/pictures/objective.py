"""The picture of an approximation's objective by step, which is flat once the fit has settled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.draws.fits import fit_summary
from rayfbnn.pictures.colours import series_colour
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws


@styled
def objective_by_step(run: Draws, path: str | Path) -> Path:
    """Plot the objective of each start of an approximation by step, averaged over a few steps at a time."""
    figure, axes = figure_with_axes(1, 1, width=5.5, height=3.4)
    draw_objective(axes[0, 0], run)
    return save(figure, path)


def draw_objective(axis: Axes, run: Draws) -> None:
    """Draw the objective of each start; starts without weight in predictions are thin.

    The range of the vertical axis is that of the objective after the first tenth of the steps.
    """
    summary = fit_summary(run.store)
    approximation = summary.approximation
    objective, n_bins = summary.objective, summary.objective.shape[1]
    if approximation.is_objective_evidence:
        objective = objective - run.data.log_scale  # on the scale of the log evidences in tables
    steps = (np.arange(n_bins) + 1) * approximation.n_steps / n_bins
    for start, (values, weight) in enumerate(zip(objective, summary.weight, strict=True)):
        colour = series_colour(start)
        axis.plot(steps, values, color=colour, lw=1.2 if weight > 0 else 0.5)
    late = objective[:, n_bins // 10 :]
    late = late[np.isfinite(late)]
    if late.size:
        margin = 0.05 * (np.ptp(late) or 1.0)
        axis.set_ylim(late.min() - margin, late.max() + margin)
    axis.set_xlabel("step")
    axis.set_ylabel(approximation.objective)
