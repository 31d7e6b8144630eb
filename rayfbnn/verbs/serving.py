"""The verbs that export the predictions of a run: load and export."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import (
    check_folder,
    check_output,
    check_thinning,
    chosen_draws,
    draws_for_predictions,
    output_path,
)

if TYPE_CHECKING:
    from rayfbnn.answers.serving.monte_carlo import Thinning
    from rayfbnn.answers.serving.predictor import Predictor
    from rayfbnn.draws.view import Draws

_log = logging.getLogger(__name__)


def load(
    path: str | Path,
    *,
    draws: int | None = None,
    max_mcse: float = 0.05,
    skip: int = 0,
    max_memory: float = 256e6,
) -> Predictor:
    """Load draws of a run into memory, as a predictor that answers in milliseconds.

    The predictor takes as few draws as keep the Monte Carlo error small, evenly spaced in every chain. With
    all draws (`max_mcse=0`) its predictions are those of `predict`. For a run that has kept no draw yet, it
    takes all states of the latest earlier phase, with a warning, and its `early_phase` is the number of that
    phase.

    Parameters
    ----------
    path
        The store.
    draws, max_mcse
        See `export`.
    skip
        See `predict`.
    max_memory
        About how many bytes a prediction may use at once, besides the draws and the table that it returns.

    Returns
    -------
    Predictor
        Its method `predict` takes an array of inputs or a file.
    """
    from rayfbnn.answers.serving.predictor import Predictor

    check_thinning(draws, max_mcse)
    if not max_memory > 0:
        raise ConfigError(f"max_memory: must be a number of bytes above 0, such as 256e6, got {max_memory}")
    run = draws_for_predictions(Store.open(path), skip)
    if run.early_phase is not None:
        max_mcse = 0  # only draws of the posterior have a Monte Carlo error
    return Predictor(run, _thinning(run, draws, max_mcse), max_memory=max_memory)


def export(
    path: str | Path,
    *,
    out: str | Path,
    draws: int | None = None,
    max_mcse: float = 0.05,
    skip: int = 0,
) -> Path:
    """Write draws of a run to a .npz file that NumPy alone can predict from.

    docs/serving.md has the page of code that predicts from it. The file has as few draws as keep the Monte
    Carlo error small, evenly spaced in every chain.

    Parameters
    ----------
    path
        The store of the run.
    out
        The file to write, which must end in .npz; replaced if it exists.
    draws
        Number of draws to take over all chains. The default is as many as `max_mcse` needs.
    max_mcse
        Largest Monte Carlo standard error of a predictive mean, in predictive standard deviations; 0 takes
        all draws.
    skip
        See `predict`.

    Returns
    -------
    Path
        The file.
    """
    from rayfbnn.answers.serving.export import export as export_draws
    from rayfbnn.run.progress import show_share

    check_thinning(draws, max_mcse)
    out = output_path(out)
    if out.suffix != ".npz":
        raise ConfigError(f"out: must end in .npz, got {out}")
    if os.path.isdir(out):
        raise ConfigError(f"out: {out} is a folder; give the path of a .npz file")
    check_folder(out)
    store = Store.open(path)
    check_output(out, inputs=[] if store.spec.train_path is None else [store.spec.train_path])
    run = chosen_draws(store, skip)
    with show_share("export") as on_progress:
        export_draws(run, _thinning(run, draws, max_mcse).numbers, out, on_progress)
    return out


def _thinning(run: Draws, draws: int | None, max_mcse: float) -> Thinning:
    """Return the draws to take, with a warning if even all draws leave an error above max_mcse."""
    from rayfbnn.answers.serving.monte_carlo import thin

    thinning = thin(run, draws=draws, max_mcse=max_mcse)
    if draws is None and max_mcse > 0 and not thinning.mcse_of_all <= max_mcse:
        _log.warning(
            "%s: the Monte Carlo error of the predictive mean is %.3g predictive standard deviations with all"
            " draws, above %.3g; resume with more iterations",
            run.path,
            thinning.mcse_of_all,
            max_mcse,
        )
    return thinning
