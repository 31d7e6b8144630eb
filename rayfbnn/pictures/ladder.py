"""The picture of ladders: rejection of exchanges, agreement of both families, round trips, and evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.draws.ladders import LadderDraws, ladder_draws
from rayfbnn.pictures.colours import BLUE, GREY, RED
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes
from rayfbnn.store.catalogue import FAMILIES
from rayfbnn.store.ladder_words import MEASURES

if TYPE_CHECKING:
    from rayfbnn.answers.judging.ladder_evidence import LadderEvidence
    from rayfbnn.draws.view import Draws

_WORDS = dict(zip(FAMILIES, ("from chains", "from the prior"), strict=True))
_COLOURS = dict(zip(FAMILIES, (BLUE, RED), strict=True))
_WANTED = 0.6  # the largest rejection that the adaptation leaves
_MOST_SHOWN, _MOST_NAMED = 2_000, 16  # draws of the paths of replicas, and ladders with a path or a name


@styled
def ladder_pictures(run: Draws, evidence: LadderEvidence, path: str | Path) -> Path:
    """Plot rejection by level, the measure of each level by family, replicas at the top, and evidence."""
    figure, axes = figure_with_axes(2, 2, width=8.4, height=6.0)
    levels = ladder_draws(run)
    draw_rejection(axes[0, 0], levels)
    draw_measures(axes[0, 1], levels)
    draw_replicas(axes[1, 0], levels)
    draw_evidence(axes[1, 1], evidence)
    return save(figure, path)


def draw_rejection(axis: Axes, levels: LadderDraws) -> None:
    """Draw the rejection of exchanges between neighbouring levels, one line for each ladder."""
    for values in levels.rejection:
        axis.plot(np.arange(levels.n_levels - 1) + 0.5, values, color=GREY, lw=0.7)
    axis.axhline(_WANTED, color="black", lw=0.7, ls=":")
    axis.set_ylim(0, 1)
    axis.set_title("rejection between neighbours")
    _name_levels(axis, levels)


def draw_measures(axis: Axes, levels: LadderDraws) -> None:
    """Draw the mean of each ladder's measure by level, in the colour of its family."""
    for values, family in zip(levels.measure, levels.families, strict=True):
        axis.plot(values.mean(axis=0, dtype=float), color=_COLOURS[family], lw=0.9, label=family)
    handles, labels = axis.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    axis.legend(by_label.values(), [_WORDS[label] for label in by_label])
    axis.set_title(f"{MEASURES[levels.measured].removeprefix('the ')} by level")
    _name_levels(axis, levels)


def draw_replicas(axis: Axes, levels: LadderDraws) -> None:
    """Draw which replica is at the posterior in the first ladders; changes show that replicas travel."""
    for ladder, values in enumerate(levels.replica[:_MOST_NAMED, -_MOST_SHOWN:]):
        height = ladder + 0.1 + 0.8 * values / (levels.n_levels - 1)
        axis.plot(height, color=_COLOURS[levels.families[ladder]], lw=0.5)
    pairs = zip(levels.ladders[:_MOST_NAMED], levels.trips[:_MOST_NAMED], strict=True)
    names = [f"{number}: {trips} trips" for number, trips in pairs]
    axis.set_yticks(np.arange(len(names)) + 0.5, names)
    axis.set_ylim(0, len(names))
    axis.set_title("replica at the posterior, and round trips")
    axis.set_xlabel("draw")


def draw_evidence(axis: Axes, evidence: LadderEvidence) -> None:
    """Draw log Z of each ladder from the common level, with two standard errors, in its family's colour."""
    for place, (z, error, family) in enumerate(
        zip(evidence.log_z, evidence.errors, evidence.families, strict=True)
    ):
        bar = 2 * error if np.isfinite(error) else 0.0
        axis.errorbar(place, z, yerr=bar, fmt="o", color=_COLOURS[family], ms=4)
    step = -(-len(evidence.ladders) // _MOST_NAMED)
    named = range(0, len(evidence.ladders), step)
    axis.set_xticks(named, [str(evidence.ladders[place]) for place in named])
    axis.set_xlabel("ladder")
    axis.set_title("log Z from the common level, two standard errors")


def _name_levels(axis: Axes, levels: LadderDraws) -> None:
    shown = np.unique(np.linspace(0, levels.n_levels - 1, 5).round().astype(int))
    names = [levels.name_of(level).removeprefix(f"{levels.kind.rstrip('s')} ") for level in shown]
    axis.set_xticks(shown, ["posterior" if name == "the posterior" else name for name in names])
    axis.set_xlabel("noise of the level" if levels.kind == "noise" else "power of the likelihood")
