"""Runs in memory that draws/ and answers/ read, with predictions of some models computed by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset, make_dataset
from rayfbnn.draws.view import Draws, committed
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import RunUpdates, Updates
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams


def streams(seed: int, n: int = 1) -> Streams:
    return chain_streams(seed, n)


def normal(seed: int, shape: tuple[int, ...]) -> Array:
    return streams(seed).normal(Purpose.PROPOSAL, shape)[0]


def uniform(seed: int, shape: tuple[int, ...]) -> Array:
    return streams(seed).uniform(Purpose.PROPOSAL, shape)[0]


def make_spec(kind: str = "real", **changes: Any) -> RunSpec:
    """A small network (2 inputs, 3 tanh units) for one of the data models; `changes` by key path."""
    model: dict[str, dict[str, Any]] = {
        "real": {"kind": "real", "noise": "0.3:4"},
        "binary": {"kind": "binary"},
        "class": {"kind": "class", "classes": 3},
    }
    raw: dict[str, Any] = {
        "seed": 1,
        "chains": 4,
        "chains_per_batch": 2,
        "draws_per_block": 7,
        "dtype": "float64",
        "data": {
            "train": "train.csv",
            "inputs": ["x1", "x2"],
            "targets": ["label"] if kind == "class" else ["y1", "y2"],
        },
        "model": model[kind],
        "network": {
            "hidden": [{"units": 3, "activation": "tanh"}],
            "priors": {"ih0": "1:4:3", "bh0": "1:4", "ho0": "x1:4:3", "bo": "1"},
        },
        "phase": [{"iterations": 20, "operations": [{"op": "sample-sigmas"}, {"op": "heatbath"}]}],
    }
    return RunSpec.from_dict(raw, [f"{key.replace('__', '.')}={value}" for key, value in changes.items()])


def make_data(spec: RunSpec, n_cases: int = 12, seed: int = 3) -> Dataset:
    """Inputs around 5, targets around 100 with standard deviation 20 (real), or labels."""
    inputs = 5 + 2 * normal(seed, (n_cases, len(spec.data.inputs)))
    shape = (n_cases, len(spec.data.targets))
    if spec.model.kind == "real":
        targets = 100 + 20 * normal(seed + 1, shape)
    else:
        targets = np.floor(uniform(seed + 1, shape) * (spec.model.classes or 2))
    return make_dataset(
        inputs,
        targets,
        input_names=spec.data.inputs,
        target_names=spec.data.targets,
        standardize=spec.data.standardize,
        dtype=spec.dtype,
    )


class MemoryStore:
    """A committed run held in memory: positions (c, d, P), precisions (c, d, Q), statistics (c, d)."""

    def __init__(
        self,
        spec: RunSpec,
        data: Dataset,
        positions: Array,
        precisions: Array,
        stats: dict[str, Array] | None = None,
        *,
        kind: str = "mcmc",
        path: str = "run.zarr",
    ) -> None:
        self.spec, self.data, self.kind, self.path = spec, data, kind, path
        self.positions, self.precisions = positions, precisions
        self.n_chains, self.committed_draws = positions.shape[:2]
        self.header = SimpleNamespace(
            chains_per_batch=spec.chains_per_batch,
            draws_per_chunk=spec.draws_per_block or self.committed_draws,
        )
        self.tuning = SimpleNamespace(latest=lambda: (0, {}))  # nothing is tuned
        network = spec.network
        self.parameter_layout = ParameterLayout.from_network(network)
        self.precision_layout = PrecisionLayout.from_specs(network, spec.model, data.n_targets)
        shape = (self.n_chains, self.committed_draws)
        self.stats = {
            "accepted": np.ones(shape),
            "diverged": np.zeros(shape),
            "energy": normal(93, shape),
            "log_likelihood": normal(91, shape),
            "log_prior": normal(92, shape),
            **(stats or {}),
        }

    def read_positions(
        self, draws: slice, chains: slice, *, section: str = "posterior", committed: int
    ) -> Array:
        return self.positions[chains, draws].copy()

    def read_precisions(
        self, draws: slice, chains: slice, *, section: str = "posterior", committed: int
    ) -> Array:
        return self.precisions[chains, draws].copy()

    def read_stat(
        self, name: str, draws: slice, chains: slice, *, section: str = "posterior", committed: int
    ) -> Array:
        return self.stats[name][chains, draws].copy()

    def updates(self) -> RunUpdates:
        return RunUpdates(warmup=Updates(accepted_sum=6.0, n_accepted=8, divergences=5))


class Endless(MemoryStore):
    """A store whose draws are made when they are read, so that only the reduction takes memory."""

    def __init__(self, store: MemoryStore, n_draws: int) -> None:
        self.__dict__ |= store.__dict__
        self.committed_draws = n_draws

    def _tiled(self, values: Array, draws: slice, chains: slice) -> Array:
        return values[chains][:, np.arange(draws.start, draws.stop) % values.shape[1]]

    def read_positions(
        self, draws: slice, chains: slice, *, section: str = "posterior", committed: int
    ) -> Array:
        return self._tiled(self.positions, draws, chains)

    def read_precisions(
        self, draws: slice, chains: slice, *, section: str = "posterior", committed: int
    ) -> Array:
        return self._tiled(self.precisions, draws, chains)


def make_run(
    spec: RunSpec, data: Dataset | None = None, *, n_draws: int = 20, seed: int = 11, **settings: Any
) -> Draws:
    """Independent draws in a MemoryStore: parameters normal with sd 0.7, log precisions around 1."""
    data = make_data(spec) if data is None else data
    network = spec.network
    n_precisions = PrecisionLayout.from_specs(network, spec.model, data.n_targets).n_precisions
    positions = 0.7 * normal(seed, (spec.chains, n_draws, network.n_parameters))
    precisions = np.exp(1 + 0.5 * normal(seed + 1, (spec.chains, n_draws, n_precisions)))
    return view(MemoryStore(spec, data, positions.astype(spec.dtype), precisions, **settings))


def view(store: MemoryStore) -> Draws:
    """The draws of a store in memory."""
    return committed(cast("Any", store))


def endless(run: Draws, n_draws: int) -> Draws:
    """The draws of a run, over and over."""
    return view(Endless(cast("Any", run.store), n_draws))


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
