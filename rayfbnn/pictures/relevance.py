"""The picture of the sigmas of inputs, which show how much each input matters (ARD)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.draws.quantities import sigmas
from rayfbnn.output.lines import all_shortened
from rayfbnn.pictures.chosen_quantities import largest, of_inputs, relevance_groups
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import draw_relevance

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_MAX_BARS = 40
_SHORT_NAME, _INCHES = 16, 0.07  # characters that need no wider panel, and inches for each further one


def has_relevance(run: Draws) -> bool:
    """Return True if inputs have their own sigmas."""
    return bool(relevance_groups(run))


@styled
def relevance_of_inputs(run: Draws, path: str | Path) -> Path:
    """Plot the sigma of each input's weights, for each group with such sigmas in its prior (ARD).

    At most 40 inputs of a group are shown, those with the largest medians, in their order.
    """
    all_sigmas = sigmas(run)
    groups = relevance_groups(run)
    rows = {group: largest(of_inputs(all_sigmas, group), _MAX_BARS) for group in groups}
    height = 1.1 + 0.27 * max(len(of_inputs_shown) for of_inputs_shown in rows.values())
    longest = max(len(name) for name in all_shortened([name for values in rows.values() for name in values]))
    width = 4.4 + max(0.0, _INCHES * (longest - _SHORT_NAME))
    figure, axes = figure_with_axes(1, len(rows), width=0.6 + width * len(rows), height=max(2.2, height))
    for axis, (group, values) in zip(axes[0], rows.items(), strict=True):
        draw_relevance(axis, list(values), np.stack(list(values.values())))
        axis.set_xlabel(f"sigma_{group}_unit")
        where = "outputs" if group == "io" else f"hidden layer {group[2:]}"
        left_out = len(of_inputs(all_sigmas, group)) - len(values)
        more = f", the {len(values)} largest" if left_out else ""
        axis.set_title(f"Weights from each input to {where}{more}")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return save(figure, path)
