"""Stores of count and survival models, with predictions computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset, make_dataset
from rayfbnn.model.layout import ParameterLayout
from rayfbnn.spec import RunSpec
from tests.support.store.standin_store import MemoryStore, make_run, make_spec, normal

PIECEWISE = {"kind": "survival", "hazard": "piecewise", "time_points": [0.4, 1.0, 2.5], "log_time": True}
DISPERSED = {"kind": "count", "dispersion": "0.7:4:5"}
OTHER_MODELS: list[dict[str, Any]] = [
    {"kind": "count"},
    DISPERSED,
    {"kind": "survival", "hazard": "constant"},
    PIECEWISE,
    {"kind": "heteroscedastic"},
]
N_TEST = 6


def run_of(model: dict[str, Any], **changes: Any) -> tuple[Any, Array, Array]:
    """A store of draws, with inputs and targets that no draw has seen."""
    raw = make_spec(**changes).to_dict()
    raw["model"] = model
    raw["data"]["targets"] = ["y1"] if model["kind"] == "survival" else ["y1", "y2"]
    spec = RunSpec.from_dict(raw)
    train, test = data_of(spec, 12, 3), data_of(spec, N_TEST, 41)
    return make_run(spec, train), test.inputs, test.targets


def data_of(spec: RunSpec, n_cases: int, seed: int) -> Dataset:
    inputs = 0.5 * normal(seed, (n_cases, 2))
    values = normal(seed + 1, (n_cases, len(spec.data.targets)))
    if spec.model.kind == "count":
        values = np.floor(np.exp(1 + values))
    elif spec.model.kind == "survival":
        values = np.exp(values) * np.where(np.arange(n_cases) % 3 == 1, -1, 1)[:, None]
    else:
        values = 100 + 20 * values
    return make_dataset(
        inputs,
        values,
        input_names=spec.data.inputs,
        target_names=spec.data.targets,
        standardize=spec.data.standardize,
    )


def outputs_by_hand(run: MemoryStore, x: Array) -> Array:
    """Outputs of the network written out, (draws of all chains, n_cases, n_outputs)."""
    w = ParameterLayout.from_network(run.spec.network).views(run.store.positions)
    hidden = np.tanh(np.einsum("ni,cdih->cdnh", x, w["ih0"]) + w["bh0"][:, :, None])
    outputs = np.einsum("cdnh,cdho->cdno", hidden, w["ho0"]) + w["bo"][:, :, None]
    return outputs.reshape(-1, *outputs.shape[2:])


def counts_by_hand(run: MemoryStore, x: Array) -> Any:
    """The distribution of counts given each draw, as scipy has it, (draws, n_cases, n_targets)."""
    means = np.exp(outputs_by_hand(run, x))
    if run.spec.model.dispersion is None:
        return scipy.stats.poisson(means)
    columns = run.precision_layout.noise_columns
    shapes = run.store.precisions.reshape(len(means), -1)[:, None, columns]
    return scipy.stats.nbinom(shapes, shapes / (shapes + means))


def log_hazards_by_hand(run: MemoryStore, inputs: Array) -> Array:
    """Log hazards, (draws of all chains, n_cases, n_pieces)."""
    if not run.spec.model.times:
        return outputs_by_hand(run, inputs)
    t = np.log(run.spec.model.times)
    clock = [t[0], *(t[:-1] + t[1:]) / 2, t[-1]]
    return np.concatenate(
        [outputs_by_hand(run, np.insert(inputs, 0, time, axis=1)) for time in clock], axis=2
    )


def survival_by_hand(time: float, log_hazard: Array, points: list[float]) -> Array:
    """Survival exp(-integral of the hazard), summed piece by piece, (n_draws, n_cases)."""
    spent, edges = 0.0, [0.0, *points, math.inf]
    for piece, (start, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        spent = spent + np.exp(log_hazard[..., piece]) * max(min(time, end) - start, 0)
    return np.asarray(np.exp(-spent))
