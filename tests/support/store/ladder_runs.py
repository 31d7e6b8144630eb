"""Small runs of ladders, and all that such a run leaves, to compare two of them bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import SECONDS, Block
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.small import assert_same_draws, make_store, small, write_train

SETTINGS: dict[str, Any] = {"levels": 4, "warmup": 3, "annealing": 5, "adaptation": 12}


def ladder_keys(*, settings: dict[str, Any] | None = None, **replaced: Any) -> dict[str, Any]:
    """Return a configuration of four ladders in two batches, with values at dotted keys replaced."""
    keys = small(**{"phase": None, "chains": 4, "chains_per_batch": 2, "draws_per_block": None} | replaced)
    return {"iterations": 9, **keys, "ladder": SETTINGS | (settings or {})}


def ladder_spec(folder: Path, *, settings: dict[str, Any] | None = None, **replaced: Any) -> RunSpec:
    """Return the small configuration of ladders; its training file is written."""
    write_train(folder)
    return RunSpec.from_dict(ladder_keys(settings=settings, **replaced), base_dir=folder)


def apart_spec(folder: Path, *, iterations: int) -> RunSpec:
    """Return ladders of three levels for precise targets, so that neighbours never exchange."""
    normal = Streams(12, np.arange(80, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (3,))
    rows = [(x1, x2, x1 + 0.5 * x2 + 0.01 * noise) for x1, x2, noise in normal.tolist()]
    lines = [",".join(repr(value) for value in row) for row in rows]
    (folder / "apart.csv").write_text("\n".join(["x1,x2,y", *lines]) + "\n")
    keys: dict[str, Any] = {
        "chains": 4,
        "iterations": iterations,
        "data": {"train": "apart.csv", "inputs": ["x1", "x2"], "targets": ["y"]},
        "model": {"kind": "real"},
        "network": {"hidden": [{"units": 2, "activation": "tanh"}]},
        "ladder": {"levels": 3, "warmup": 20, "annealing": 20, "adaptation": 40},
    }
    return RunSpec.from_dict(keys, base_dir=folder)


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
        last = store.commits.last(batch)
        assert last is not None
        for name, values in store.commits.named_state_after(last).items():
            first = store.header.batch_chains(batch)[0]
            found |= {f"{name} of ladder {first + row}": of_one for row, of_one in enumerate(values)}
    for one in store.tuning.rounds:
        read = store.tuning.read if one.of == "operations" else store.tuning.read_ladder
        found[f"round {one.number}"] = np.array(repr(read(one.number)))
    return found


def assert_same_ladders(path: str | Path | Place, other: str | Path | Place) -> None:
    """Check that two stores hold the same bits."""
    assert_same_draws(path, other, contents)


def run_in_phases(path: Path, spec: RunSpec, *, gap: float, light: tuple[int, ...] = (1, 3)) -> Store:
    """Run ladders up to the kept draws, and commit draws that were made to sit in two phases.

    Some ladders, by default 1 and 3, which came from the prior, are lighter by `gap` nats, fit worse, and
    never leave.
    """
    store = make_store(path, spec)
    last = spec.total_iterations - spec.phase[-1].iterations
    with store.lock(), InProcess() as executor:
        for _ in run_rounds(store, executor, last=last):
            pass
        for batch in range(store.n_batches):
            store.commit(batch, _block_in_phases(store, batch, last, gap, light))
            store.gather(batch, everything=True)
    return Store.open(path)


def _block_in_phases(store: Store, batch: int, last: int, gap: float, lighter: tuple[int, ...]) -> Block:
    n, ladders = store.spec.kept_draws, np.array(store.header.batch_chains(batch))
    light = np.isin(ladders, lighter)[:, None]
    streams = Streams(9, ladders.astype(np.uint64))
    noise = streams.normal(Purpose.TARGET_VALUE, (n, 4, 4))
    positions = (
        streams.normal(Purpose.START, (n, store.parameter_layout.n_parameters)) / 10 + light[..., None]
    )
    precisions = np.ones((len(ladders), n, store.precision_layout.n_precisions))
    # Differences of energies between neighbours of sd 1/2, whose log ratios are 0, and -gap/3 in the lighter.
    shift = np.where(light, -gap / 3, 0.0)[..., None]
    record = store.commits.last(batch)
    assert record is not None
    return Block(
        first_iteration=last + 1,
        n_iterations=n,
        section="posterior",
        positions=positions.astype(store.spec.dtype),
        precisions=precisions,
        stats={"log_likelihood": noise[..., 0, 3] - 60.0 * light, "log_prior": noise[..., 1, 3]},
        state=store.commits.named_state_after(record),
        ladder={
            # Ladders part below the hottest level.
            "log_rss": noise[:, :, 1] + np.where(light, 5.0, 0.0)[..., None] * (np.arange(4) > 0),
            "forward": noise[:, :, 2, :3] / 2 - shift + 1 / 8,
            "reverse": noise[:, :, 3, :3] / 2 + shift + 1 / 8,
            "replica": np.tile(np.arange(n) % 4, (len(ladders), 1)),
            "round_trips": np.tile(np.arange(n) // 5, (len(ladders), 1)),
        },
        summary={SECONDS: 0.0},
    )
