"""Draws in files for other programs: a table as CSV or Parquet, or the groups as NetCDF."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.encoding import Encoding
from rayfbnn.draws.fits import check_own_networks
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import with_draws
from rayfbnn.errors import ConfigError, at_most_ten
from rayfbnn.memory import check_memory
from rayfbnn.model.network import summed_inputs
from rayfbnn.model.wiring import Link, Wiring
from rayfbnn.numerals import compared
from rayfbnn.output.whole_file import whole_file
from rayfbnn.spec.messages import nearest
from rayfbnn.version import __version__

if TYPE_CHECKING:
    import xarray as xr

    from rayfbnn.draws.view import Draws

FORMAT = "rayfbnn model"
FORMAT_VERSION = 1
_VERSION_WITH_ADDED_KEYS = 2  # code for version 1 would ignore the exposure, or the log scale of targets
_MODEL_BYTES = 16e6  # of an array that are computed at once
MOST_BYTES = 2e9  # of all arrays, because the file is loaded into memory as a whole


@dataclass(frozen=True)
class Rows:
    """An array of the file with a row for each draw, computed for some draws at a time.

    shape  of a row
    of     returns the rows of some positions (n_draws, n_parameters)
    """

    shape: tuple[int, ...]
    of: Callable[[Array], Array]


def export(
    run: Draws, numbers: Array, path: Path, on_progress: Callable[[float], None] = lambda share: None
) -> None:
    """Write some draws of each chain, chain after chain, atomically to a .npz file that needs no pickle.

    description       the network and the data model as JSON
    weights_s_d       (n_draws, units of layer s, units of layer d): layer 0 is the inputs, the last one the
                      outputs. Units that are not connected have weight zero
    bias_d, offset_s  (n_draws, units of the layer), the latter if the layer has offsets
    sigma_noise       (n_draws, n_targets), if the noise has sigmas; for counts with dispersion it is
                      sigma_dispersion
    input_center, input_scale, target_center, target_scale   the network's values are (value - center) / scale
                      (of log values for the targets that description names as log_targets)

    The parameters of the draws are in memory, and the arrays are written a few draws at a time. ConfigError
    if the file would be too large, or the parameters do not fit into memory.

    on_progress  called with the share of the arrays that is written
    """
    network = run.spec.network
    if any(layer.activation == "erf" for layer in network.hidden):
        raise ConfigError("network.hidden: erf units cannot be exported, because NumPy has no erf function")
    wiring = Wiring.from_network(network)
    check_own_networks(run)
    some = with_draws(run, numbers)
    _check_size(some, wiring)
    positions = some.positions().reshape(some.total, -1)
    arrays: dict[str, Array | Rows] = {
        "description": np.array(json.dumps(_description(run, wiring), ensure_ascii=False))
    }
    for layer, links in list(enumerate(wiring.incoming))[1:]:
        of, n_units = partial(_summed, wiring=wiring, layer=layer), wiring.units[layer]
        arrays[f"bias_{layer}"] = Rows((n_units,), partial(of, links=links, cases=slice(-1, None)))
        for source in dict.fromkeys(link.source for link in links if link.n_units):
            some_links = [link for link in links if link.n_units and link.source == source]
            weights = partial(of, links=some_links, cases=slice(-1))
            arrays[f"weights_{source}_{layer}"] = Rows((wiring.units[source], n_units), weights)
    for layer, offset in enumerate(wiring.offsets):
        if offset is not None:
            arrays[f"offset_{layer}"] = Rows((wiring.units[layer],), itemgetter(np.s_[:, offset]))
    if len(run.precision_layout.noise_columns):
        arrays[f"sigma_{run.spec.data_model.governed_by}"] = np.moveaxis(noise_sigmas(some), 0, -1).reshape(
            some.total, -1
        )
    for name in ("input_center", "input_scale", "target_center", "target_scale"):
        arrays[name] = getattr(run.data, name)
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        sizes = np.cumsum([0, *(math.prod(array.shape) for array in arrays.values())])
        for done, size, (name, array) in zip(sizes, np.diff(sizes), arrays.items(), strict=False):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                for share in _written(entry, array, positions):
                    on_progress((done + share * size) / sizes[-1])


def _written(entry: IO[bytes], array: Array | Rows, positions: Array) -> Iterator[float]:
    """Write an array as a file of NumPy, and yield the share that is written."""
    if not isinstance(array, Rows):
        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
        yield 1.0
        return
    descr = np.lib.format.dtype_to_descr(positions.dtype)
    shape = len(positions), *array.shape
    np.lib.format.write_array_header_1_0(entry, {"descr": descr, "fortran_order": False, "shape": shape})
    at_once = max(1, int(_MODEL_BYTES / (positions.dtype.itemsize * max(1, math.prod(array.shape)))))
    for first in range(0, len(positions), at_once):
        entry.write(np.ascontiguousarray(array.of(positions[first : first + at_once])).tobytes())
        yield min(1.0, (first + at_once) / len(positions))


def _summed(positions: Array, *, links: Sequence[Link], wiring: Wiring, layer: int, cases: slice) -> Array:
    """Return the sums over links of inputs from unit vectors: of units, then the bias.

    The shape is (n_draws, n_cases, n_units), with some of these vectors as the cases.
    """
    total: Array = 0.0
    for link in links:
        units = np.eye(wiring.units[link.source] + 1, dtype=positions.dtype)[:, cases]
        out = np.empty((len(positions), wiring.units[layer], units.shape[1]), dtype=positions.dtype)
        summed_inputs(positions, [units] * (link.source + 1), (link,), out=out)
        total = total + out
    return total.swapaxes(1, 2)


def _check_size(some: Draws, wiring: Wiring) -> None:
    n_values = sum(
        wiring.units[link.source] * wiring.units[layer]
        for layer, links in enumerate(wiring.incoming)
        for link in links
        if link.n_units
    )
    itemsize = np.dtype(some.spec.dtype).itemsize
    needed = n_values * some.total * itemsize
    if needed > MOST_BYTES:
        enough = int(some.total * MOST_BYTES / needed)
        (gigabytes,), most = compared([needed / 1e9], MOST_BYTES / 1e9, ".3g")
        raise ConfigError(
            f"draws: {some.total} draws of {some.path} take {gigabytes} GB with all connections"
            f" written out, above the limit of {most} GB; take at most {enough}"
        )
    check_memory("draws", some.total, some.parameter_layout.n_parameters * itemsize)


def _description(run: Draws, wiring: Wiring) -> dict[str, Any]:
    spec, data = run.spec, run.data
    encoding = spec.encoding or Encoding.from_numbers(data.input_names)
    layers: list[dict[str, Any]] = [
        {
            "activation": activation,
            "groups": [groups.n_rows, groups.width, -1 if groups.by_row else -2],
            "factor": factor,
        }
        for activation, groups, factor in zip(
            wiring.activations, wiring.subgroups, wiring.factors, strict=True
        )
    ]
    added: dict[str, Any] = {"log_targets": list(data.log_targets)} if data.log_targets else {}
    if wiring.added_input is not None:
        added["added_input"] = wiring.added_input
    return {
        "format": FORMAT,
        "format_version": _VERSION_WITH_ADDED_KEYS if added else FORMAT_VERSION,
        "rayfbnn_version": __version__,
        "columns": encoding.to_dict()["inputs"],
        "labels": encoding.to_dict()["labels"],
        **({} if spec.data.unknown is None else {"unknown": spec.data.unknown}),
        "inputs": list(data.input_names),
        "targets": list(data.target_names),
        **added,
        "layers": layers,
        "model": {"kind": spec.data_model.kind, **spec.data_model.exported_settings(data.targets)},
    }


MOST_COLUMNS = 10_000  # programs that read tables become slow beyond it
_BLOCK_BYTES = 32e6
_LEADING = ("chain", "draw")

Variables: TypeAlias = "dict[str, xr.DataArray]"


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
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_width(variables)
    first = next(iter(variables.values()))
    n_chains, n_draws = first.sizes["chain"], first.sizes["draw"]
    n_values = sum(map(_n_columns, variables.values()))
    done, writer = 0, None
    with whole_file(path) as file, ExitStack() as stack:
        for chains, draws in _pieces(n_chains, n_draws, n_values):
            columns = _columns(variables, chains, draws)
            if path.suffix == ".csv":
                pd.DataFrame(columns).to_csv(file, index=False, header=done == 0)
            else:
                rows = pa.table(columns)
                writer = writer or stack.enter_context(pq.ParquetWriter(file, rows.schema))
                writer.write_table(rows)
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
    total = sum(max(1, variable.size) for group in groups.values() for variable in group.variables.values())
    done = 0
    with whole_file(path) as file, h5netcdf.File(file, "w") as whole:
        for name, group in groups.items():
            place = whole.create_group(name)
            place.dimensions = {str(dim): size for dim, size in group.sizes.items()}
            _set_attributes(place, group.attrs)
            for key, variable in group.variables.items():
                _write(place, str(key), variable)
                done += max(1, variable.size)
                on_progress(done / total)


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
    values = np.asarray(variable.values)
    if values.dtype.kind == "b":
        return values.astype(np.int8)
    return values.astype(object) if values.dtype.kind in "OUT" else values


def _set_attributes(place: Any, attributes: Mapping[Any, Any]) -> None:
    for key, value in attributes.items():
        place.attrs[str(key)] = value
