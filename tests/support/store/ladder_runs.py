"""Small runs of ladders, and all that such a run leaves, to compare two of them bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from tests.support.small import make_store, small, write_train

SETTINGS: dict[str, Any] = {"levels": 4, "warmup": 3, "annealing": 5, "adaptation": 12}


def ladder_keys(*, settings: dict[str, Any] | None = None, **replaced: Any) -> dict[str, Any]:
    """Return a configuration of four ladders in two batches, with values at dotted keys replaced."""
    keys = small(**{"phase": None, "chains": 4, "chains_per_batch": 2, "draws_per_block": None} | replaced)
    return {"iterations": 9, **keys, "ladder": SETTINGS | (settings or {})}


def ladder_spec(folder: Path, *, settings: dict[str, Any] | None = None, **replaced: Any) -> RunSpec:
    """Return the small configuration of ladders; its training file is written."""
    write_train(folder)
    return RunSpec.from_dict(ladder_keys(settings=settings, **replaced), base_dir=folder)


def run_ladders(path: Path, spec: RunSpec) -> Store:
    """Make a store and run it to its end in this process."""
    store = make_store(path, spec)
    with store.lock(), InProcess() as executor:
        for _ in run_rounds(store, executor):
            pass
    return Store.open(path)


def contents(path: str | Path | Place) -> dict[str, Array]:
    """Return all draws, the states at the end, and what the records of all rounds say, by name."""
    store = Store.open(path)
    plans = store.hierarchy.plans
    found = {name: store.hierarchy.read(name) for name, plan in plans.items() if plan.dims[1:2] == ("draw",)}
    for batch in range(store.n_batches):
        last = store.last_record(batch)
        assert last is not None
        for name, values in store.named_state_after(last).items():
            first = store.batch_chains(batch)[0]
            found |= {f"{name} of ladder {first + row}": of_one for row, of_one in enumerate(values)}
    for one in store.tuning.rounds:
        read = store.tuning.read if one.of == "operations" else store.tuning.read_ladder
        record = read(one.number)
        found[f"round {one.number}"] = np.array(repr((record.measured, record.settings)))
    return found


def assert_same_ladders(path: str | Path | Place, other: str | Path | Place) -> None:
    """Check that two stores hold the same bits."""
    ours, theirs = contents(path), contents(other)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.tobytes() == theirs[name].tobytes(), name
