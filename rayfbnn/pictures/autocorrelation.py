"""The picture of autocorrelations by lag: after how many draws chains forget where they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.mixing import Autocorrelations, autocorrelations
from rayfbnn.draws.quantities import sigmas, weight_sizes
from rayfbnn.draws.subsets import chosen
from rayfbnn.pictures.chains import describe_quantity
from rayfbnn.pictures.chosen_quantities import least_converged
from rayfbnn.pictures.colours import GREY, chain_style
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_COLUMNS, _MAX_PANELS = 2, 12
_TITLE = 56  # characters that fit above a panel
_LEAST_LAGS = 20
# Limits on what the picture reads, from the last draws: values of each quantity, and bytes of all parameters.
_MOST_VALUES, _MOST_BYTES = 400_000, 1e9


@styled
def autocorrelation_by_lag(run: Draws, path: str | Path) -> Path:
    """Plot autocorrelations of the log posterior density, and of the sizes of weights and their sigmas.

    Neal (1996) fig. 3.6. At most 400,000 draws and 1 GB of them are read, the last of each chain.
    """
    some = _last_draws(run)
    log_posterior = some.stat("log_prior") + some.stat("log_likelihood") / run.spec.temperature
    candidates = {"log_posterior": log_posterior} | weight_sizes(some) | sigmas(some)
    names = least_converged(candidates, _MAX_PANELS)
    by_name = {name: autocorrelations(candidates[name]) for name in names}
    n_rows = -(-len(names) // _COLUMNS)
    figure, axes = figure_with_axes(
        n_rows, _COLUMNS, width=8.2, height=1.35 * n_rows + 0.6, sharex=True, sharey=True
    )
    panels = axes.ravel()
    for axis, (name, values) in zip(panels, by_name.items(), strict=False):
        _draw(axis, values, some.chain_numbers)
        axis.set_title(describe_quantity(name, _TITLE))
    for axis in panels[len(names) :]:
        axis.set_axis_off()
    longest = max(values.first_within_chance for values in by_name.values())
    most = max(1, some.n_draws // 2)
    panels[0].set_xlim(0, min(most, max(_LEAST_LAGS, 1.5 * longest)))
    panels[0].locator_params(axis="x", integer=True)
    panels[0].set_ylim(-0.35, 1.05)
    for axis in panels[max(0, len(names) - _COLUMNS) : len(names)]:  # the lowest of each column
        axis.set_xlabel(f"lag in draws ({some.n_chains} chains of {some.n_draws:,} draws)")
        axis.tick_params(labelbottom=True)
    return save(figure, path)


def _last_draws(run: Draws) -> Draws:
    """Return as many of the last draws of each chain as are read for a picture."""
    draw_bytes = run.parameter_layout.n_parameters * np.dtype(run.spec.dtype).itemsize
    most = int(min(_MOST_VALUES, _MOST_BYTES / draw_bytes)) // run.n_chains
    return chosen(run, last=min(run.n_draws, max(2, most)))


def _draw(axis: Axes, values: Autocorrelations, numbers: Sequence[int]) -> None:
    """Draw each chain in its colour, all together in black, and what chance allows both as bands."""
    for chance, opacity in ((values.of_chain, 0.15), (values.of_all, 0.35)):
        axis.axhspan(-chance, chance, color=GREY, alpha=opacity, lw=0, zorder=0)
    for number, of_chain in zip(numbers, values.chains, strict=True):
        axis.plot(of_chain, **chain_style(number), lw=0.6, alpha=0.6)
    axis.plot(values.together, color="black", lw=1.3)
