"""Pictures of how the chains agree: traces and ranks, R-hat and effective sample sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.pictures.chains import draw_ess, draw_rhat, draw_traces
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.selection import least_converged, log_densities

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.draws.view import Draws

_MAX_ROWS = 12  # of traces
_MAX_BARS = 40


@styled
def traces_and_ranks(run: Draws, path: str | Path) -> Path:
    """Plot hyperparameters and log densities by draw and chain, and the ranks of each chain's draws."""
    candidates = sigmas(run) | adjustments(run) | log_densities(run)
    chosen = least_converged(candidates, _MAX_ROWS)
    figure, axes = figure_with_axes(
        len(chosen), 2, width=8.2, height=1.35 * len(chosen) + 0.7, width_ratios=(2.2, 1), sharex="col"
    )
    draw_traces(axes, {name: candidates[name] for name in chosen})
    if len(chosen) < len(candidates):
        figure.suptitle(
            f"The {len(chosen)} of {len(candidates)} quantities with the largest R-hat", fontsize=9
        )
    return save(figure, path)


@styled
def rhat_and_ess(diagnosis: Diagnosis, path: str | Path) -> Path:
    """Plot R-hat and effective sample sizes of each quantity as bars, with the thresholds."""
    table = diagnosis.quantities.sort_values("rhat", ascending=False).head(_MAX_BARS)
    figure, axes = figure_with_axes(1, 2, width=8.2, height=1.3 + 0.24 * len(table), sharey="row")
    draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    if len(table) < len(diagnosis.quantities):
        figure.suptitle(
            f"The {len(table)} of {len(diagnosis.quantities)} quantities with the largest R-hat", fontsize=9
        )
    return save(figure, path)
