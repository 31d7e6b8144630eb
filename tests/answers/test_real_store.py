"""Reducing a store on disk gives the same results as its draws in memory, also while it is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.draws.view import committed
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store
from tests.support.store.standin_store import MemoryStore, make_data, make_run, make_spec


def write(path: Path, memory: MemoryStore) -> Store:
    spec: RunSpec = memory.spec
    sizes = {"chains": spec.chains, "chains_per_batch": 2, "draws_per_block": spec.draws_per_block}
    store = Store.create(
        path, spec=spec, data=memory.data, kernel="plain NumPy", n_draws=memory.committed_draws, **sizes
    )
    with store.lock():
        for batch in range(store.n_batches):
            commit(store, memory, batch, slice(0, memory.committed_draws))
    return store


def commit(store: Store, memory: MemoryStore, batch: int, draws: slice) -> None:
    chains = slice(store.header.batch_chains(batch)[0], store.header.batch_chains(batch)[-1] + 1)
    n = draws.stop - draws.start
    stats = {name: values[chains, draws] for name, values in memory.stats.items()}
    values = (memory.positions[chains, draws], memory.precisions[chains, draws])
    last = ChainState(values[0][:, -1], values[0][:, -1], values[1][:, -1])
    store.commit(batch, Block(draws.start + 1, n, "posterior", draws.start, *values, stats, last))


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_store_and_memory_give_the_same_tables(kind: str, tmp_path: Path) -> None:
    memory = make_run(make_spec(kind, dtype="float32"))
    store = committed(Store.open(write(tmp_path / "run.zarr", memory.store).path))
    unseen = make_data(memory.spec, 5, seed=41)
    there, here = (predict_from_draws([draws], unseen.inputs, unseen.targets) for draws in (store, memory))
    np.testing.assert_allclose(there.table, here.table, rtol=1e-5)
    stored, kept = (diagnose_draws(draws).quantities for draws in (store, memory))
    # A sigma's last bit decides the ranks of the two values about the median, which are equally far from it.
    np.testing.assert_allclose(stored.pop("rhat"), kept.pop("rhat"), atol=0.01)
    np.testing.assert_allclose(stored, kept, rtol=1e-9)


def test_draws_that_arrive_meanwhile_are_left_for_the_next_look(tmp_path: Path) -> None:
    memory: Any = make_run(make_spec()).store
    spec = memory.spec
    sizes = {"chains": spec.chains, "chains_per_batch": 4, "draws_per_block": 7}
    store = Store.create(
        tmp_path / "run.zarr", spec=spec, data=memory.data, kernel="plain NumPy", n_draws=20, **sizes
    )
    read = store.read_positions

    def read_while_writing(draws: slice, chains: slice, **known: int) -> Any:
        with store.lock():
            if store.committed_draws < 20:
                commit(store, memory, 0, slice(10, 20))
        return read(draws, chains, **known)

    with store.lock():
        commit(store, memory, 0, slice(0, 10))
    store.read_positions = read_while_writing  # type: ignore[method-assign, assignment]
    unseen = make_data(spec, 5, seed=41)
    assert predict_from_draws([committed(store)], unseen.inputs).summary["draws"] == 4 * 10
    assert predict_from_draws([committed(store)], unseen.inputs).summary["draws"] == 4 * 20
