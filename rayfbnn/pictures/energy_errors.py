"""The picture of the energy error of trajectories by their stepsize."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import thinned
from rayfbnn.pictures.colours import BLUE, GREY, SKY
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import logarithmic, opacity

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_MOST_POINTS = 20_000
_MOST_BINS, _LEAST_IN_BIN = 20, 40
_LEAST_SIZE, _GREATEST_SIZE = 1e-10, 1e4  # errors beyond these are rounding, or always rejected


@dataclass(frozen=True)
class ErrorsByStepsize:
    """Energy errors of trajectories in bins of neighbouring stepsizes, with equal numbers of trajectories.

    stepsizes, errors  (n,) in the order of the stepsizes
    middles            (n_bins,) median stepsize
    quantiles          (3, n_bins): 10 %, 50 % and 90 % quantile of the absolute error
    acceptance         (n_bins,) mean of min(1, exp(-error))
    """

    stepsizes: Array
    errors: Array
    middles: Array
    quantiles: Array
    acceptance: Array


def errors_by_stepsize(run: Draws) -> ErrorsByStepsize | None:
    """Return the energy errors of about 20,000 trajectories; None unless they have several stepsizes.

    A trajectory that diverged has an infinite error.
    """
    if run.kind != "mcmc":
        return None
    some = thinned(run, max(1, _MOST_POINTS // run.n_chains))
    stepsizes, errors = some.stat("stepsize").ravel(), some.stat("energy_change").ravel()
    is_known = np.isfinite(stepsizes) & ~np.isnan(errors)
    order = np.argsort(stepsizes[is_known], kind="stable")
    stepsizes, errors = stepsizes[is_known][order], errors[is_known][order]
    if len(errors) == 0 or stepsizes[0] == stepsizes[-1]:
        return None
    n_bins = int(np.clip(len(errors) // _LEAST_IN_BIN, 1, _MOST_BINS))
    bins = np.array_split(errors, n_bins)
    return ErrorsByStepsize(
        stepsizes,
        errors,
        np.array([np.median(one) for one in np.array_split(stepsizes, n_bins)]),
        np.array([np.quantile(np.abs(one), [0.1, 0.5, 0.9], method="lower") for one in bins]).T,
        np.array([np.exp(-np.maximum(one, 0)).mean() for one in bins]),
    )


@styled
def energy_errors(by_stepsize: ErrorsByStepsize, path: str | Path) -> Path:
    """Plot the absolute energy error by stepsize on logarithmic axes, and the acceptance probability.

    Neal (1996) fig. 3.3. The error rises with the square of the stepsize until trajectories become unstable.
    """
    figure, axes = figure_with_axes(1, 2, width=8.2, height=3.2, width_ratios=(1.5, 1))
    left, right = axes[0]
    stepsizes, sizes = by_stepsize.stepsizes, np.abs(by_stepsize.errors)
    left.plot(stepsizes, sizes, ".", color=GREY, ms=2, mew=0, alpha=opacity(len(sizes)), zorder=0)
    quantiles = np.clip(by_stepsize.quantiles, _LEAST_SIZE, _GREATEST_SIZE)
    low, median, high = quantiles
    middles = by_stepsize.middles
    left.fill_between(middles, low, high, color=SKY, alpha=0.4, lw=0, label="10 % to 90 %")
    left.plot(middles, median, "o-", color=BLUE, ms=3, label="median")
    left.set_title(f"energy error of {len(sizes):,} trajectories")
    left.set_ylabel("absolute error")
    ends = np.array([quantiles.min() / 3, quantiles.max() * 3])
    logarithmic(left, ends)
    left.set_ylim(*ends)
    left.legend(loc="upper left")
    right.plot(middles, by_stepsize.acceptance, "o-", color=BLUE, ms=3)
    right.set_ylim(0, 1.02)
    right.set_title("mean acceptance probability")
    for axis in (left, right):
        logarithmic(axis, stepsizes, which="x")
        axis.set_xlabel("stepsize, as a factor on the heuristic")
    return save(figure, path)
