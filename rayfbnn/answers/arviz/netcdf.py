"""ArviZ's groups as a file of NetCDF, written in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file

if TYPE_CHECKING:
    import xarray as xr

_PIECE_BYTES = 32e6


def check_netcdf() -> None:
    """Raise ConfigError unless the library that writes NetCDF files is installed."""
    if find_spec("h5netcdf") is None:
        raise ConfigError('out: a .nc file needs h5netcdf; pip install "rayfbnn[netcdf]"')


def write_netcdf(
    tree: xr.DataTree, path: Path, on_progress: Callable[[float], None] = lambda share: None
) -> None:
    """Write the groups of a tree to a .nc file, whole or not at all; xarray and ArviZ read it.

    Values that the tree reads from a store are read and written some draws at a time.

    on_progress  called with the share of the values that is written
    """
    import h5netcdf

    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    total = sum(_size(variable) for group in groups.values() for variable in group.variables.values())
    done = 0
    with whole_file(path) as file, h5netcdf.File(file, "w") as whole:
        for name, group in groups.items():
            place = whole.create_group(name)
            place.dimensions = {str(dim): size for dim, size in group.sizes.items()}
            _set_attributes(place, group.attrs)
            for key, variable in group.variables.items():
                _write(place, str(key), variable)
                done += _size(variable)
                on_progress(done / total)


def _size(variable: xr.Variable) -> int:
    return max(1, variable.size)


def _write(place: Any, name: str, variable: xr.Variable) -> None:
    """Write a variable with its attributes. Truth values and text are stored as xarray stores them."""
    attributes = dict(variable.attrs)
    dtype: Any = variable.dtype
    if dtype.kind == "b":
        dtype, attributes["dtype"] = np.dtype(np.int8), "bool"
    elif dtype.kind in "OUT":
        import h5py

        dtype = h5py.string_dtype()
    written = place.create_variable(name, [str(dim) for dim in variable.dims], dtype)
    _set_attributes(written, attributes)
    if "draw" not in variable.dims or variable.ndim == 1:
        written[...] = _plain(variable)
        return
    axis = variable.dims.index("draw")
    of_draw = 8 * max(1, variable.size // max(1, variable.shape[axis]))
    at_once = max(1, int(_PIECE_BYTES / of_draw))
    for first in range(0, variable.shape[axis], at_once):
        some = slice(first, min(first + at_once, variable.shape[axis]))
        written[(slice(None),) * axis + (some,)] = _plain(variable.isel(draw=some))


def _plain(variable: xr.Variable) -> Any:
    """Return the values as numbers, or as an array of Python's texts."""
    values = np.asarray(variable.values)
    if values.dtype.kind == "b":
        return values.astype(np.int8)
    return values.astype(object) if values.dtype.kind in "OUT" else values


def _set_attributes(place: Any, attributes: Mapping[Any, Any]) -> None:
    for key, value in attributes.items():
        place.attrs[str(key)] = value
