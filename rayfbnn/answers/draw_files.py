"""Draws in files for other programs: a table as CSV or Parquet, or the groups as NetCDF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.output.whole_file import whole_file
from rayfbnn.spec.messages import nearest

if TYPE_CHECKING:
    import xarray as xr


MOST_COLUMNS = 10_000  # programs that read tables become slow beyond it
_BLOCK_BYTES = 32e6
_LEADING = ("chain", "draw")

Variables: TypeAlias = "dict[str, xr.DataArray]"
_Write: TypeAlias = Callable[[dict[str, Array]], None]


def variables_of(tree: xr.DataTree, patterns: Sequence[str] = ()) -> Variables:
    """Return the variables of the draws and their statistics by name, all or those that patterns choose.

    patterns  names, or patterns such as "sigma_*"; empty for all. ConfigError names one that fits nothing
    """
    every = {
        str(name): variable
        for group in tree.children.values()
        for name, variable in group.to_dataset().data_vars.items()
        if variable.dims[:2] == _LEADING
    }
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in every):
            raise ConfigError(
                f"variables: no variable is called {pattern}{nearest(pattern, every)};"
                f" there are {', '.join(at_most_ten(every))}"
            )
    return {
        name: variable
        for name, variable in every.items()
        if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def write_draw_table(
    variables: Variables, path: Path, on_progress: Callable[[float], None] = lambda share: None
) -> None:
    """Write a row for each draw, chain after chain, to a .csv or .parquet file, whole or not at all.

    The columns are chain and draw, which are numbered as in the store, and then each variable: `lp` is one
    column, and `ih0` has one for each of its weights, such as `ih0[x1,0]`. The draws are read and written in
    pieces of bounded size. ConfigError if there would be too many columns.

    on_progress  called with the share of the rows that is written
    """
    check_width(variables)
    first = next(iter(variables.values()))
    n_chains, n_draws = first.sizes["chain"], first.sizes["draw"]
    n_values = sum(map(_n_columns, variables.values()))
    done = 0
    with whole_file(path) as file, (_csv if path.suffix == ".csv" else _parquet)(file) as write:
        for chains, draws in _pieces(n_chains, n_draws, n_values):
            columns = _columns(variables, chains, draws)
            write(columns)
            done += len(columns["chain"])
            on_progress(done / (n_chains * n_draws))


def check_width(variables: Variables) -> None:
    """Raise ConfigError if a table of these variables would have more columns than is sensible."""
    widths = {name: _n_columns(variable) for name, variable in variables.items()}
    if sum(widths.values()) > MOST_COLUMNS:
        widest = sorted(widths, key=lambda name: -widths[name])[:3]
        listed = ", ".join(f"{name} {widths[name]:,}" for name in widest)
        raise ConfigError(
            f"variables: a table of these would have {sum(widths.values()):,} columns, above the limit of"
            f" {MOST_COLUMNS:,} ({listed}); choose some, such as sigma_*,lp, or write a .nc file"
        )


def column_names(name: str, variable: xr.DataArray) -> list[str]:
    """Return the names of a variable's columns, such as ih0[x1,0]; its own name if it is a single number."""
    inner = [str(dim) for dim in variable.dims[2:]]
    if not inner:
        return [name]
    labels = [variable[dim].values if dim in variable.coords else range(variable.sizes[dim]) for dim in inner]
    return [f"{name}[{','.join(map(str, place))}]" for place in product(*labels)]


def _n_columns(variable: xr.DataArray) -> int:
    return int(np.prod(variable.shape[2:], dtype=int))


def _pieces(n_chains: int, n_draws: int, n_values: int) -> Iterator[tuple[slice, slice]]:
    """Yield the chains and draws of pieces of bounded size: several chains, or some draws of one chain."""
    rows = max(1, int(_BLOCK_BYTES / (8 * n_values)))
    together = max(1, rows // n_draws)
    for chain in range(0, n_chains, together):
        for draw in range(0, n_draws, max(1, min(rows, n_draws))):
            yield slice(chain, min(chain + together, n_chains)), slice(draw, min(draw + rows, n_draws))


def _columns(variables: Variables, chains: slice, draws: slice) -> dict[str, Array]:
    """Return the columns of a piece by name, (n_rows,) each."""
    result: dict[str, Array] = {}
    for name, variable in variables.items():
        some = variable.isel(chain=chains, draw=draws)
        if not result:
            numbers = np.meshgrid(some["chain"].values, some["draw"].values, indexing="ij")
            result = dict(zip(_LEADING, (number.ravel() for number in numbers), strict=True))
        rows = np.ascontiguousarray(some.values.reshape(len(result["chain"]), -1).T)
        result |= dict(zip(column_names(name, variable), rows, strict=True))
    return result


@contextmanager
def _csv(file: BinaryIO) -> Iterator[_Write]:
    import pandas as pd

    yield lambda columns: pd.DataFrame(columns).to_csv(file, index=False, header=file.tell() == 0)


@contextmanager
def _parquet(file: BinaryIO) -> Iterator[_Write]:
    """Yield a function that adds a piece as a row group; the end of the file is written after the last."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        writer: list[Any] = []

        def write(columns: dict[str, Array]) -> None:
            table = pa.table(columns)
            if not writer:
                writer.append(stack.enter_context(pq.ParquetWriter(file, table.schema)))
            writer[0].write_table(table)

        yield write


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
