"""Small runs and fits of every data model and approximation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.data import read_dataset
from rayfbnn.run.executor import InProcess
from rayfbnn.run.fitter import Fitter
from rayfbnn.run.running import run_rounds
from rayfbnn.run.sampler import Sampler
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.places import Place, place_of
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from rayfbnn.verbs.sampling import new_fit
from tests.support.small import small, write_train

SETTINGS: dict[str, dict[str, Any]] = {
    "laplace": {"starts": 3, "draws": 70, "steps": 8, "first": 3, "between": 2},
    "bbb": {"starts": 3, "draws": 70, "steps": 20, "refresh": 4, "batch": 5},
    "vep": {"starts": 3, "draws": 70, "sweeps": 5},
    "map": {"starts": 3, "draws": 70, "steps": 20, "refresh": 4, "validation": 0.2},
}


def fit_spec(
    folder: Path, method: str, *, settings: dict[str, Any] | None = None, **replaced: Any
) -> RunSpec:
    """Return the small specification for a method, two starts a batch; its training file is written."""
    write_train(folder)
    raw = small(**replaced) | {"methods": {method: SETTINGS[method] | (settings or {})}}
    return RunSpec.from_dict(raw, base_dir=folder).for_method(method)


def make_fit(path: Path, spec: RunSpec) -> Store:
    """Create the store of a fit, before its first step."""
    return new_fit(place_of(path), spec, read_dataset(spec))


def run(store: Store, executor: InProcess | None = None) -> Store:
    with store.lock(), InProcess() if executor is None else executor as in_process:
        in_process._sampler = Sampler(store)  # uses this store, and so its disk
        for _ in run_rounds(store, in_process):
            pass
    return store


def run_all(store: Store, *, stop_every: int | None = None) -> Store:
    """Run every batch to its end; a stop is requested after every stop_every-th iteration."""
    sampler = Sampler(store)
    for batch in range(store.n_batches):
        is_complete, asked = False, 0

        def should_stop() -> bool:
            nonlocal asked
            asked += 1
            return stop_every is not None and asked % stop_every == 0

        while not is_complete:
            for progress in sampler.run_block(batch, should_stop=should_stop):
                is_complete = progress.is_complete
    return store


def end_and_gather(path: Place) -> None:
    """Run every batch of chains or of a fit to its end, and gather all blocks."""
    store = Store.open(path)
    job = Fitter(store) if store.kind == "approximate" else Sampler(store)
    with store.lock():
        for batch in range(store.n_batches):
            while not [progress.is_complete for progress in job.run_block(batch)][-1]:
                pass
            store.gather(batch, everything=True)


MODELS: dict[str, dict[str, Any]] = {
    "real": {"kind": "real", "noise": "0.3:3"},
    "t noise": {"kind": "real", "noise": "0.3:3::4"},
    "binary": {"kind": "binary"},
    "class": {"kind": "class", "classes": 3},
    "count": {"kind": "count"},
    "count, dispersion": {"kind": "count", "dispersion": "0.5:3"},
    "constant hazard": {"kind": "survival", "hazard": "constant"},
    "hazard of pieces": {"kind": "survival", "hazard": "piecewise", "time_points": [0.3, 1.0, 2.0]},
    "heteroscedastic": {"kind": "heteroscedastic", "noise_floor": 0.05},
}


def spec_of(name: str, folder: Path, *, missing: bool = True, **changes: Any) -> RunSpec:
    """The small configuration with a model and a training file for it; unit sigmas for the inputs.

    missing  whether the target of the sixth case is missing
    """
    numbers = Streams(12, np.arange(12, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (3,))
    y = numbers[:, 2]
    if name.startswith("count"):
        y = np.floor(np.exp(1 + y))
    elif name == "binary":
        y = (y > 0).astype(float)
    elif name == "class":
        y = np.floor(3 / (1 + np.exp(-y)))
    elif "hazard" in name:
        y = np.exp(y) * np.where(np.arange(12) % 3 == 1, -1, 1)
    cells = [f"{a!r},{b!r},{c!r}" for a, b, c in np.column_stack([numbers[:, :2], y]).tolist()]
    if missing:
        cells[5] = cells[5].rsplit(",", 1)[0] + ","
    (folder / "train.csv").write_text("\n".join(["x1,x2,y", *cells]) + "\n")
    changes = {"model": MODELS[name], "network__priors__ih0": "0.7:3:4", **changes}
    return RunSpec.from_dict(small(**changes), base_dir=folder)
