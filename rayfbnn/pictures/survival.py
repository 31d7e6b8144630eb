"""The picture of survival curves, by the model and by the cases themselves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import outputs_alone
from rayfbnn.draws.subsets import for_picture
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.output.lines import shortened
from rayfbnn.pictures.colours import BLUE, GREEN, ORANGE, PURPLE, RED
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import draw_survival

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_MAX_CURVES = 400  # draws of a survival curve
_MEMORY_BYTES = 64e6


@styled
def survival_curves(run: Draws, path: str | Path, *, n_groups: int = 3, n_times: int = 120) -> Path:
    """Plot survival of the training cases, all and by predicted risk, by the model and by the cases.

    Cases with a missing time are left out. The groups are of equal size, by each case's mean survival over
    the times. Lines and bands are the mean and the 80 % interval over draws of the model's curves, averaged
    over the cases. Steps are Kaplan and Meier's estimate.
    """
    data = run.data
    is_known = ~np.isnan(data.targets[:, 0])
    targets = data.targets[is_known, 0]
    times = np.linspace(0, np.abs(targets).max(), n_times)
    curves = curves_by_draw(for_picture(run), data.inputs[is_known], times)
    order = np.argsort(curves.mean(axis=(0, 2)), kind="stable")
    groups = np.array_split(order, min(n_groups, len(order)))
    figure, axes = figure_with_axes(1, 2, width=7.6, height=3.3, sharey="row")
    draw_survival(axes[0, 0], times, curves.mean(axis=1), targets, label="model", colour=BLUE, explain=True)
    axes[0, 0].set_title(f"All {len(targets):,} cases")
    names = ("high", "middle", "low") if len(groups) == 3 else tuple(map(str, range(1, len(groups) + 1)))
    for group, name, colour in zip(groups, names, (RED, ORANGE, GREEN, BLUE, PURPLE), strict=False):
        of_group = curves[:, group].mean(axis=1)
        draw_survival(axes[0, 1], times, of_group, targets[group], label=f"{name} risk", colour=colour)
    axes[0, 1].set_title("By predicted risk")
    for axis in axes[0]:
        axis.set(xlabel=shortened(data.target_names[0]), ylim=(-0.02, 1.02))
        axis.set_xlim(0, times[-1])
        axis.legend(loc="best")
    axes[0, 0].set_ylabel("share surviving")
    return save(figure, path)


def has_survival_curves(run: Draws) -> bool:
    """Return True if the targets are survival times, which have survival curves."""
    return isinstance(run.spec.data_model, SurvivalTargets)


def curves_by_draw(run: Draws, inputs: Array, times: Array) -> Array:
    """Return P(T > t) of some cases for at most 400 draws, (n_draws, n_cases, n_times).

    inputs  (n_cases, n_inputs) as in the data file
    """
    model, data = run.spec.data_model, run.data
    assert isinstance(model, SurvivalTargets)
    standardized = (inputs - data.input_center) / data.input_scale
    stride = math.ceil(run.total / _MAX_CURVES)
    kept: list[Array] = []
    seen = 0
    for _, _, outputs in outputs_alone(run, standardized, memory_bytes=_MEMORY_BYTES):
        log_hazard = outputs.reshape(-1, *outputs.shape[2:])  # (n_draws, n_cases, n_pieces)
        chosen = log_hazard[-seen % stride :: stride]
        seen += len(log_hazard)
        shape = (*chosen.shape[:2], len(times))
        # Each case of each draw counts as a mixture of one draw.
        by_case = chosen.reshape(-1, 1, chosen.shape[2])
        kept.append(model.hazard.survival_curve(by_case, times).reshape(shape))
    return np.concatenate(kept)
