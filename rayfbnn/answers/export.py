"""A run's draws as one file for predictions by NumPy alone, with the code in docs/serving.md."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.encoding import Encoding
from rayfbnn.draws.fits import check_own_networks
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import with_draws
from rayfbnn.errors import ConfigError
from rayfbnn.memory import check_memory
from rayfbnn.model.network import summed_inputs
from rayfbnn.model.wiring import Link, Wiring
from rayfbnn.numerals import compared
from rayfbnn.output.whole_file import whole_file
from rayfbnn.version import __version__

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

FORMAT = "rayfbnn model"
FORMAT_VERSION = 1
_VERSION_WITH_ADDED_KEYS = 2  # code for version 1 would ignore the exposure, or the log scale of targets
_BLOCK_BYTES = 16e6  # of an array that are computed at once
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
    for layer in range(1, len(wiring.units)):
        arrays |= _into(layer, wiring)
    for layer, offset in enumerate(wiring.offsets):
        if offset is not None:
            arrays[f"offset_{layer}"] = Rows((wiring.units[layer],), partial(_columns, columns=offset))
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
    at_once = max(1, int(_BLOCK_BYTES / (positions.dtype.itemsize * max(1, math.prod(array.shape)))))
    for first in range(0, len(positions), at_once):
        entry.write(np.ascontiguousarray(array.of(positions[first : first + at_once])).tobytes())
        yield min(1.0, (first + at_once) / len(positions))


def _into(layer: int, wiring: Wiring) -> dict[str, Rows]:
    """Return the biases and matrices that lead into a layer."""
    n_units, links = wiring.units[layer], wiring.incoming[layer]
    arrays = {f"bias_{layer}": Rows((n_units,), partial(_biases, links=links, wiring=wiring, layer=layer))}
    for source in dict.fromkeys(link.source for link in links if link.n_units):
        of_source = tuple(link for link in links if link.n_units and link.source == source)
        weights = partial(_weights, links=of_source, wiring=wiring, layer=layer)
        arrays[f"weights_{source}_{layer}"] = Rows((wiring.units[source], n_units), weights)
    return arrays


def _biases(positions: Array, *, links: tuple[Link, ...], wiring: Wiring, layer: int) -> Array:
    """Return the summed inputs of the units from the bias alone, (n_draws, n_units)."""
    total = np.zeros((len(positions), wiring.units[layer], 1), dtype=positions.dtype)
    for link in links:
        total += _summed(positions, link, wiring, layer, slice(-1, None))
    return total[:, :, 0]


def _weights(positions: Array, *, links: tuple[Link, ...], wiring: Wiring, layer: int) -> Array:
    """Return the summed inputs from each source unit alone, (n_draws, units of the source, n_units)."""
    total = _summed(positions, links[0], wiring, layer, slice(-1))
    for link in links[1:]:
        total += _summed(positions, link, wiring, layer, slice(-1))
    return total.swapaxes(1, 2)


def _summed(positions: Array, link: Link, wiring: Wiring, layer: int, cases: slice) -> Array:
    """Return the summed inputs (n_draws, n_units, n_cases) from unit vectors: units, then the bias."""
    units = np.eye(wiring.units[link.source] + 1, dtype=positions.dtype)[:, cases]
    out = np.empty((len(positions), wiring.units[layer], units.shape[1]), dtype=positions.dtype)
    summed_inputs(positions, [units] * (link.source + 1), (link,), out=out)
    return out


def _columns(positions: Array, *, columns: slice) -> Array:
    return positions[:, columns]


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
    """Return the names, the layers and the data model."""
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
