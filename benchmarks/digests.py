"""Samples a fixed matrix of small configurations and prints a digest of everything each run drew.

    python benchmarks/digests.py > before.txt      # at one commit
    python benchmarks/digests.py > after.txt       # at another, on the same machine
    diff before.txt after.txt

A change that is meant to leave results alone must leave every line alone. Digests differ between machine
types, so none are stored. The script uses public names of the package and its store alone, so that one copy
of it can be run at any two commits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

import rayfbnn  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402

# Every network has the inputs x1, x2 and x3, and N_CASES cases.
N_CASES = 14
HEATBATH = {"op": "heatbath", "decay": 0.4}
GIBBS = {"op": "sample-sigmas"}
NEGATE = {"op": "negate"}
HYBRID = {"op": "hybrid", "steps": 6, "stepsize": 0.3}
MARGINAL = {"op": "hybrid-marginal", "steps": 4, "stepsize": 0.5}

PRIORS = {"ih0": "0.7:3:4", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"}
NETWORKS: dict[str, dict[str, Any]] = {
    "one layer": {"hidden": [{"units": 4, "activation": "tanh"}], "priors": PRIORS},
    "linear": {"hidden": [], "priors": {"io": "1:3:4", "bo": "1"}},
    "every connection": {
        "hidden": [{"units": 3, "activation": "tanh"}, {"units": 4, "activation": "softplus"}],
        "priors": {
            "ti": "0.5",
            "ih0": "0.7:3:4:5",
            "bh0": "0.7:3",
            "th0": "0.3",
            "ih1": "0.5:3",
            "h0h1": "x1:3",
            "bh1": "0.7",
            "th1": "0.2",
            "ho0": "x1:3:4",
            "ho1": "x1:3",
            "io": "0.5:3",
            "bo": "1",
        },
    },
    "layers of groups": {
        "hidden": [
            {"units": 4, "activation": "softmax", "groups": "i % 2"},
            {"units": 3, "activation": "tanh"},
            {"units": 3, "activation": "sin", "product": 1},
        ],
        "priors": {
            "ih0": "0.7:3:4",
            "bh0": "1:3",
            "ah0": "3",
            "h0h1": "0.5:3",
            "bh1": "1",
            "h0h2": "x1:3:2",
            "ho2": "x1:3",
            "bo": "1",
            "ao": "5",
        },
        "omit": {"ih0": ["x1"]},
    },
    "configured connections": {
        "hidden": [{"units": 4, "activation": "relu"}, {"units": 3, "activation": "tanh"}],
        "priors": {"ih0": "0.7:3", "bh0": "1:3", "h0h1": "0.5:3", "bh1": "1", "ho1": "x1:3", "bo": "1"},
        "connections": {
            "h0h1": {"generator": "conv1d", "size": 2, "channels": 2, "filters": 3, "window": 2},
            "bh1": {"generator": "channels", "size": 3},
        },
    },
    # With enough units, hybrid-marginal works with matrices of the cases, its dual form.
    "wide": {"hidden": [{"units": 40, "activation": "tanh"}], "priors": PRIORS},
}

# The configuration's [model] table, and the number of targets.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "real": ({"kind": "real", "noise": "0.3:3"}, 1),
    "real, each target": ({"kind": "real", "noise": "0.3:3:4"}, 2),
    "real, missing": ({"kind": "real", "noise": "0.3:3:4"}, 2),
    "t": ({"kind": "real", "noise": "0.3:3:4:5"}, 2),
    "t, missing": ({"kind": "real", "noise": "0.3:3:4:5"}, 2),
    "binary": ({"kind": "binary"}, 1),
    "binary, missing": ({"kind": "binary"}, 2),
    "class": ({"kind": "class", "classes": 3}, 1),
    "class, missing": ({"kind": "class", "classes": 3}, 1),
    "count": ({"kind": "count"}, 1),
    "count, missing": ({"kind": "count"}, 2),
    "survival": ({"kind": "survival", "hazard": "constant"}, 1),
    "survival, pieces": ({"kind": "survival", "hazard": "piecewise", "time_points": [0.3, 1.0, 2.0]}, 1),
    "heteroscedastic": ({"kind": "heteroscedastic", "noise_floor": 0.05}, 1),
    "heteroscedastic, missing": ({"kind": "heteroscedastic", "noise_floor": 0.05}, 2),
}

OPERATIONS: dict[str, list[dict[str, Any]]] = {
    "hybrid": [GIBBS, HEATBATH, HYBRID],
    "windows": [GIBBS, HEATBATH, {**HYBRID, "window": 3, "partitions": 3}, NEGATE],
    "jump and jitter": [GIBBS, HEATBATH, {**HYBRID, "jump": 2, "stepsize_jitter": 5.0}, NEGATE],
    "fourth order": [GIBBS, HEATBATH, {**HYBRID, "steps": 2, "integrator": "fourth-order"}],
    "two stages": [GIBBS, HEATBATH, {**HYBRID, "steps": 3, "integrator": "two-stage"}],
    "hybrid-max": [
        GIBBS,
        HEATBATH,
        {"op": "hybrid-max", "max_steps": 6, "max_ok": 2, "stepsize": 0.4, "partitions": 2},
    ],
    "dynamic": [
        GIBBS,
        {"op": "dynamic", "steps": 3, "stepsize": 0.1, "partitions": 3, "permuted": True},
    ],
    "metropolis": [GIBBS, {"op": "metropolis", "stepsize": 0.3, "stepsize_jitter": -0.5}],
    "barker": [GIBBS, {"op": "metropolis", "stepsize": 0.3, "acceptance": "barker"}],
    "metropolis-1": [GIBBS, {"op": "metropolis-1", "stepsize": 0.8}],
    "slice-1": [
        {"op": "sample-sigmas", "level": "lower"},
        {"op": "sample-noise"},
        {"op": "slice-1", "stepsize": 0.5, "max_steps": 4, "doubling": True, "random": True},
        {"op": "slice-1", "stepsize": 0.5, "max_steps": 4},
    ],
    "random-grid": [{"op": "random-grid", "stepsize": 0.5}, GIBBS, HEATBATH, HYBRID],
    "rescale": [
        {"op": "rescale", "along": "sigmas", "stepsize": 0.3},
        {"op": "rescale", "along": "incoming", "stepsize": 0.3},
        HEATBATH,
        HYBRID,
    ],
    "radial-heatbath": [GIBBS, {"op": "radial-heatbath"}, HYBRID, NEGATE],
    "repeat": [GIBBS, {"op": "repeat", "times": 2, "operations": [HEATBATH, {**HYBRID, "steps": 2}]}],
    "simulated-tempering": [
        {
            "op": "simulated-tempering",
            "inverse_temperatures": [1.0, 0.8],
            "log_weights": [0.0, -3.0],
            "operations": [GIBBS, HEATBATH, {**HYBRID, "steps": 3}],
        }
    ],
    "simulated-tempering, persistent": [
        {
            "op": "simulated-tempering",
            "inverse_temperatures": [1.0, 0.8, 0.6],
            "log_weights": [0.0, -3.0, -6.0],
            "direction": "persistent",
            "operations": [GIBBS, HEATBATH, {**HYBRID, "steps": 3}],
        }
    ],
    "tempered-transition": [
        {
            "op": "tempered-transition",
            "inverse_temperatures": [1.0, 0.7, 0.4],
            "operations": [GIBBS, HEATBATH, {**HYBRID, "steps": 2}],
        }
    ],
    "marginal, outputs": [GIBBS, HEATBATH, {**MARGINAL, "over": ["outputs"]}],
    "marginal, precisions": [GIBBS, HEATBATH, {**MARGINAL, "over": ["precisions"], "partitions": 3}],
    "marginal, both": [GIBBS, HEATBATH, {**MARGINAL, "over": ["outputs", "precisions"], "window": 2}],
}

# Automatic settings are found in a first phase and used in the last.
AUTOMATIC = {
    "hybrid": {"op": "hybrid", "steps": "auto", "stepsize": "auto", "scaling": "auto"},
    "hybrid-marginal": {
        "op": "hybrid-marginal",
        "over": ["outputs", "precisions"],
        "steps": "auto",
        "stepsize": "auto",
        "scaling": "auto",
    },
}


def cells() -> Iterator[tuple[str, str, str]]:
    """Names of (network, model, operations): combinations that the package allows and that add coverage."""
    for model in MODELS:
        yield "one layer", model, "windows"
    for operations in OPERATIONS:
        if "marginal" not in operations:
            yield "one layer", "t", operations
            yield "one layer", "class", operations
    for network in NETWORKS:
        yield network, "t, missing", "windows"
        yield network, "real", "marginal, outputs"
        yield network, "t, missing", "marginal, both"
    for model in ("real, each target", "real, missing", "binary", "binary, missing"):
        yield "one layer", model, "marginal, outputs"
        yield "wide", model, "marginal, both"
    for model in ("class", "t", "real", "count", "survival, pieces", "heteroscedastic"):
        yield "one layer", model, "marginal, precisions"


def write_training_file(path: Path, model: str) -> list[str]:
    """The training file of a data model; returns the names of its targets."""
    kind, n_targets = MODELS[model][0]["kind"], MODELS[model][1]
    rng = np.random.Generator(np.random.Philox(key=5))
    inputs = rng.normal(size=(N_CASES, 3))
    targets = np.sin(inputs[:, :n_targets]) + 0.3 * rng.normal(size=(N_CASES, n_targets))
    if kind == "binary":
        targets = (targets > 0).astype(float)
    elif kind == "class":
        targets = np.digitize(targets, [-0.5, 0.5]).astype(float)
    elif kind == "count":
        targets = np.floor(np.exp(1 + targets))
    elif kind == "survival":
        targets = np.exp(targets) * np.where(np.arange(N_CASES) % 3 == 1, -1, 1)[:, None]
    cells = [[repr(float(value)) for value in row] for row in np.hstack([inputs, targets])]
    if "missing" in model:
        cells[3][3] = cells[7][-1] = ""
    names = [f"y{number}" for number in range(n_targets)]
    path.write_text("\n".join(",".join(row) for row in [["x1", "x2", "x3", *names], *cells]) + "\n")
    return names


def configuration(folder: Path, network: str, model: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole configuration, with its training file written to `folder`."""
    train = folder / f"{model}.csv"
    names = write_training_file(train, model)
    return {
        "seed": 7,
        "chains": 4,
        "chains_per_batch": 2,
        "draws_per_block": 10,
        "data": {
            "train": str(train),
            "inputs": ["x1", "x2", "x3"],
            "targets": names,
            "standardize": ["inputs"],
        },
        "model": MODELS[model][0],
        "network": NETWORKS[network],
        "phase": [{"iterations": 5, "operations": operations}],
    }


def digest(path: Path, data: str) -> str:
    """Sixteen hexadecimal digits over every array of a store, and its predictions for the cases in `data`."""
    total = hashlib.sha256()
    tree = Store.open(path).datatree()
    for group in sorted(tree.groups):
        dataset = tree[group].to_dataset()
        for name in sorted(map(str, dataset.variables)):
            values = np.ascontiguousarray(dataset[name].values)
            first_name = "log_likelihood" if name == "log_likelihood_total" else name
            total.update(f"{group}/{first_name} {values.dtype} {values.shape}".encode())
            total.update(repr(values.tolist()).encode() if values.dtype.kind in "OUT" else values.tobytes())
    if data:
        table = rayfbnn.predict(path, data=data).table
        for column in sorted(table):
            total.update(column.encode() + table[column].to_numpy(dtype=float).tobytes())
    shutil.rmtree(path)
    return total.hexdigest()[:16]


def sampled(spec: dict[str, Any], path: Path, *, predicts: bool = False) -> str:
    """The digest of a run of `spec`, or the first line of the error that refuses it."""
    try:
        rayfbnn.sample(spec, path, workers=0, progress=False)
    except rayfbnn.RayFBNNError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return digest(path, spec["data"]["train"] if predicts else "")


def lines(kernels: str, dtype: str) -> list[str]:
    """A line for each run with these kernels and this dtype: its description, and its digest."""
    os.environ["RAYFBNN_KERNELS"] = kernels
    with tempfile.TemporaryDirectory() as folder:
        kind = f"{'array code' if kernels else 'compiled'} | {dtype}"
        return [f"{kind} | {line}" for line in _lines(Path(folder), dtype, is_array_code=bool(kernels))]


def _lines(folder: Path, dtype: str, *, is_array_code: bool) -> Iterator[str]:
    path = folder / "run.zarr"

    def spec_for(network: str, model: str, operations: str = "hybrid") -> dict[str, Any]:
        return configuration(folder, network, model, OPERATIONS[operations]) | {"dtype": dtype}

    for network, model, operations in dict.fromkeys(cells()):
        predicts = operations == "windows" and not is_array_code
        text = sampled(spec_for(network, model, operations), path, predicts=predicts)
        yield f"{network} | {model} | {operations}: {text}"
    for name, operation in AUTOMATIC.items():
        spec, iteration = spec_for("one layer", "real"), [GIBBS, HEATBATH, operation]
        spec["phase"] = [
            {"iterations": 40, "keep": False, "operations": iteration},
            {"iterations": 8, "operations": iteration},
        ]
        yield f"automatic {name}: {sampled(spec, path)}"
    for model in ("real", "class"):
        spec = spec_for("one layer", model) | {"iterations": 4}
        del spec["phase"]
        yield f"default schedule | {model}: {sampled(spec, path)}"
    if is_array_code:  # no operation below has trajectories
        return
    for model in MODELS:
        rayfbnn.prior(spec_for("one layer", model), path, draws=20)
        yield f"prior | {model}: {digest(path, '')}"
    spec = spec_for("linear", "binary")
    rayfbnn.reject(spec, path, draws=20, progress=False)
    yield f"reject | binary: {digest(path, spec['data']['train'])}"


def main() -> None:
    """Print the matrix, and last a digest of all its lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", choices=["compiled", "plain"], help="only with these; absent: both")
    asked = parser.parse_args().kernels
    total = hashlib.sha256()
    kernels = [text for name, text in (("compiled", ""), ("plain", "plain")) if asked in (None, name)]
    pairs = [(text, dtype) for text in kernels for dtype in ("float32", "float64")]
    with ProcessPoolExecutor(2) as processes:
        for part in processes.map(lines, *zip(*pairs, strict=True)):
            print(*part, sep="\n", flush=True)
            total.update("\n".join(part).encode())
    print(f"all: {total.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
