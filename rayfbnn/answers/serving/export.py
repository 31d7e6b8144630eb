"""A run's draws as one file for predictions by NumPy alone, with the code in docs/serving.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.encoding import Encoding
from rayfbnn.draws.held import hold
from rayfbnn.draws.linear import check_own_networks
from rayfbnn.errors import ConfigError
from rayfbnn.model.network import summed_inputs
from rayfbnn.model.wiring import Wiring
from rayfbnn.output.whole_file import whole_file
from rayfbnn.version import __version__

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

FORMAT = "rayfbnn model"
FORMAT_VERSION = 1
MOST_BYTES = 2e9  # of all arrays, because the file is loaded into memory as a whole


def exported(run: Draws, numbers: Array) -> dict[str, Array]:
    """Return the arrays of the file by name, with some draws of each chain, chain after chain.

    description       the network and the data model as JSON
    weights_s_d       (n_draws, units of layer s, units of layer d): layer 0 is the inputs, the last the
                      outputs. Units that are not connected have weight zero
    bias_d, offset_s  (n_draws, units of the layer), the latter if the layer has offsets
    sigma_noise       (n_draws, n_targets), if the noise has sigmas
    input_center, input_scale, target_center, target_scale   the network's values are (value - center) / scale
    """
    network = run.spec.network
    if any(layer.activation == "erf" for layer in network.hidden):
        raise ConfigError("network.hidden: erf units cannot be exported, because NumPy has no erf function")
    wiring = Wiring.from_network(network)
    check_own_networks(run)
    held = hold(run, numbers)
    positions = held.positions().reshape(-1, held.parameter_layout.n_parameters)
    _check_size(run, wiring, positions)
    arrays = {"description": np.array(json.dumps(_description(run, wiring), ensure_ascii=False))}
    for layer in range(1, len(wiring.units)):
        arrays |= _into(layer, wiring, positions)
    for layer, offset in enumerate(wiring.offsets):
        if offset is not None:
            arrays[f"offset_{layer}"] = positions[:, offset]
    columns = held.precision_layout.noise_columns
    if len(columns):
        precisions = held.precisions().reshape(len(positions), -1)
        arrays["sigma_noise"] = precisions[:, columns] ** -0.5
    for name in ("input_center", "input_scale", "target_center", "target_scale"):
        arrays[name] = getattr(run.data, name)
    return arrays


def write(arrays: dict[str, Array], path: Path) -> None:
    """Write the arrays atomically to a .npz file that needs no pickle."""
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def _into(layer: int, wiring: Wiring, positions: Array) -> dict[str, Array]:
    """Return the matrices and biases that lead into a layer, computed from unit vectors as inputs."""
    n_draws, n_units = len(positions), wiring.units[layer]
    arrays = {f"bias_{layer}": np.zeros((n_draws, n_units), dtype=positions.dtype)}
    for link in wiring.incoming[layer]:
        n_sources = wiring.units[link.source]
        units = np.eye(n_sources + 1, dtype=positions.dtype)  # a case for each unit, and one for the bias
        sources = [units] * (link.source + 1)
        out = np.empty((n_draws, n_units, n_sources + 1), dtype=positions.dtype)
        summed_inputs(positions, sources, (link,), out=out)
        arrays[f"bias_{layer}"] += out[:, :, -1]
        if link.n_units:
            weights = np.ascontiguousarray(out[:, :, :-1].swapaxes(1, 2))
            name = f"weights_{link.source}_{layer}"
            arrays[name] = arrays[name] + weights if name in arrays else weights
    return arrays


def _check_size(run: Draws, wiring: Wiring, positions: Array) -> None:
    n_values = sum(
        wiring.units[link.source] * wiring.units[layer]
        for layer, links in enumerate(wiring.incoming)
        for link in links
        if link.n_units
    )
    needed = n_values * len(positions) * positions.dtype.itemsize
    if needed > MOST_BYTES:
        enough = int(len(positions) * MOST_BYTES / needed)
        raise ConfigError(
            f"draws: {len(positions)} draws of {run.path} take {needed / 1e9:.3g} GB with all connections"
            f" written out, above the limit of {MOST_BYTES / 1e9:g} GB; take at most {enough}"
        )


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
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "rayfbnn_version": __version__,
        "columns": encoding.to_dict()["inputs"],
        "labels": encoding.to_dict()["labels"],
        "inputs": list(data.input_names),
        "targets": list(data.target_names),
        "layers": layers,
        "model": {"kind": spec.data_model.kind, **spec.data_model.exported_settings(data.targets)},
    }
