"""A configuration so small that a whole run takes a tenth of a second, and its training file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import read_dataset
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams

_HEATBATH = {"op": "heatbath"}
SMALL: dict[str, Any] = {
    "seed": 7,
    "chains": 5,
    "chains_per_batch": 2,
    "draws_per_block": 4,
    "dtype": "float32",
    "data": {"train": "train.csv", "inputs": ["x1", "x2"], "targets": ["y"], "standardize": ["inputs"]},
    "model": {"kind": "real", "noise": "0.3:3"},
    "network": {
        "hidden": [{"units": 3, "activation": "tanh"}],
        "priors": {"ih0": "0.7:3", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"},
    },
    "phase": [
        {
            "iterations": 3,
            "keep": False,
            "operations": [{"op": "sample-noise"}, _HEATBATH, {"op": "hybrid", "steps": 5, "stepsize": 0.2}],
        },
        {"iterations": 5, "keep": "warmup", "operations": [{"op": "sample-sigmas"}, _HEATBATH]},
        {
            "iterations": 10,
            "operations": [
                {"op": "sample-sigmas"},
                {"op": "heatbath", "decay": 0.3},
                {"op": "hybrid", "steps": 6, "window": 2, "partitions": 3, "stepsize": 0.3},
                {"op": "negate"},
            ],
        },
    ],
}


def small(**replaced: Any) -> dict[str, Any]:
    """SMALL with values at dotted keys replaced: small(chains=1, model__kind="binary")."""
    raw = copy.deepcopy(SMALL)
    for key, value in replaced.items():
        *folders, last = key.split("__")
        table = raw
        for folder in folders:
            table = table[folder]
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    return raw


def write_train(folder: Path, *, n_cases: int = 12) -> Path:
    """train.csv with columns x1, x2, y."""
    numbers = Streams(11, np.arange(n_cases, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (3,))
    rows = ["x1,x2,y", *(",".join(repr(float(value)) for value in row) for row in numbers)]
    path = folder / "train.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def small_spec(folder: Path, **replaced: Any) -> RunSpec:
    """The small specification; its training file is written beside it."""
    write_train(folder)
    return RunSpec.from_dict(small(**replaced), base_dir=folder)


def make_store(path: str | Place, spec: RunSpec, *, fs: FileSystem | None = None) -> Store:
    return Store.create(path, spec, read_dataset(spec), kernel=kernel_name(spec), fs=fs)


def contents(path: str | Place) -> dict[str, Array]:
    """Everything that a run draws, by name, to compare two stores bit for bit."""
    store = Store.open(path)
    stats = ("accepted", "energy", "energy_change", "log_likelihood", "log_prior", "diverged")
    draws = {"positions": store.read_positions(), "precisions": store.read_precisions()}
    draws |= {name: store.read_stat(name) for name in stats}
    if store.spec.warmup_draws:
        draws["warmup"] = store.read_positions(section="warmup")
    for batch in range(store.n_batches):
        loaded = store.load_state(batch)
        if loaded is not None:
            state, iteration = loaded
            draws[f"state {batch}"] = np.concatenate(
                [state.position, state.momentum, state.precisions], axis=1
            )
            draws[f"iteration {batch}"] = np.array(iteration)
    return draws


def assert_same_draws(
    path: str | Place, other: str | Place, contents: Callable[[Any], dict[str, Array]] = contents
) -> None:
    """Check that two stores hold the same bits."""
    ours, theirs = contents(path), contents(other)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.tobytes() == theirs[name].tobytes(), name


BASE: dict[str, Any] = {
    "seed": 7,
    "chains": 4,
    "chains_per_batch": 2,
    "data": {"train": "train.csv", "inputs": ["x1", "x2"], "targets": ["y"]},
    "model": {"kind": "real", "noise": "0.1:0.2"},
    "network": {
        "hidden": [{"units": 8, "activation": "tanh"}],
        "priors": {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"},
    },
    "initial": {"sigmas": 0.5},
    "phase": [
        {"iterations": 5, "keep": False, "operations": [{"op": "sample-noise"}, {"op": "heatbath"}]},
        {
            "iterations": 20,
            "operations": [
                {"op": "sample-sigmas"},
                {"op": "heatbath"},
                {"op": "repeat", "times": 3, "operations": [{"op": "hybrid", "steps": 10, "stepsize": 0.3}]},
            ],
        },
    ],
}
PRIORS = "network.priors"
HYBRID = "phase[1].operations[2].operations[0]"
BINARY = ("model={kind='binary'}", "phase[0].operations[0].op=sample-sigmas")
CLASS = ("model={kind='class',classes=3}", "phase[0].operations[0].op=sample-sigmas")


def base(*overrides: str) -> RunSpec:
    """Read the configuration with overrides laid over it."""
    return RunSpec.from_dict(BASE, overrides)
