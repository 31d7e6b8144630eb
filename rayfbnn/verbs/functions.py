"""The verb that returns the draws of a run as functions: function_values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_cases
from rayfbnn.store.store import Store
from rayfbnn.verbs.arguments import check_counts, chosen_draws

if TYPE_CHECKING:
    import xarray as xr


def function_values(
    path: str | Path,
    *,
    data: Source,
    draws: int | None = None,
    skip: int = 0,
    last: int | None = None,
    chains: Sequence[int] | None = None,
) -> xr.DataArray:
    """Return the function values of each draw's network at some cases, to average or to take quantiles of.

    The values are without the noise of targets: the mean for real targets, the probabilities of labels, the
    log rate of counts, the log hazard of survival times, and the mean and the log precision of
    heteroscedastic targets. Values of real and heteroscedastic targets are on the scale of the data file.

    Parameters
    ----------
    path
        The store, of a run or of draws from the prior.
    data
        The cases: a CSV or Parquet file with the columns of the inputs, a DataFrame, or an array.
    draws
        The most draws of each chain to take, evenly spaced. The default is all of them.
    skip, last, chains
        See `predict`.

    Returns
    -------
    xarray.DataArray
        Dimensions chain, draw, case and function. `values.quantile([0.05, 0.95], dim=("chain", "draw"))`
        gives a band of 90 % around each function.
    """
    from rayfbnn.answers.arviz.computed import labelled_functions
    from rayfbnn.draws.subsets import thinned

    if draws is not None:
        check_counts(least=1, draws=draws)
    store = Store.open(path)
    inputs, _ = read_cases(data, store.spec, store.data)
    run = chosen_draws(store, skip, last, chains)
    return labelled_functions(run if draws is None else thinned(run, draws), inputs)
