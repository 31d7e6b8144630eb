"""The verb that gives the draws of a run as functions: function_values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_cases
from rayfbnn.verbs.arguments import check_counts, open_draws

if TYPE_CHECKING:
    import xarray as xr


def function_values(
    path: str | Path, *, data: Source, draws: int | None = None, skip: int = 0
) -> xr.DataArray:
    """Return what the network of each draw says at some cases, to average or to take quantiles of.

    These are values of functions, without the noise of targets: for real targets the mean, for labels their
    probabilities, for counts the log rate, for survival times the log hazard, and for heteroscedastic targets
    the mean and the log precision. Real and heteroscedastic ones are on the scale of the data file.

    Parameters
    ----------
    path
        The store, of a run or of draws from the prior.
    data
        The cases: a CSV or Parquet file with the columns of the inputs, a DataFrame, or an array.
    draws
        Number of draws of each chain to take at most, evenly spaced; all of them if not given.
    skip
        Number of draws to leave out at the start of each chain.

    Returns
    -------
    xarray.DataArray
        Dimensions chain, draw, case and function. `values.quantile([0.05, 0.95], dim=("chain", "draw"))`
        gives a band of 90 % around each function.
    """
    from rayfbnn.answers.arviz.functions import labelled_functions
    from rayfbnn.draws.choosing import thinned

    if draws is not None:
        check_counts(least=1, draws=draws)
    run = open_draws(path, skip)
    inputs, _ = read_cases(data, run.spec, run.data)
    return labelled_functions(run if draws is None else thinned(run, draws), inputs)
