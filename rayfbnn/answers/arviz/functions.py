"""The functions of draws as a labelled array."""

from __future__ import annotations

import xarray as xr

from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import functions_at
from rayfbnn.draws.view import Draws


def labelled_functions(run: Draws, inputs: Array) -> xr.DataArray:
    """Return the functions that a run is judged by, with dimensions chain, draw, case and function.

    inputs  (n_cases, n_inputs) as in the data file
    """
    names = run.spec.data_model.function_names(run.data.target_names)
    return xr.DataArray(
        functions_at(run, inputs),
        dims=("chain", "draw", "case", "function"),
        coords={"function": names},
    )
