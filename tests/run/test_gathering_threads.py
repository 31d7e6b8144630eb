"""Blocks are gathered beside the driver's loop: each batch by one thread, all before the run ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rayfbnn.errors import StoreError
from rayfbnn.run.job import Progress
from rayfbnn.run.running import Gathering
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from tests.support.store.toy import contents, create, run_to_end, step


def message(store: Store, batch: int) -> Progress:
    """What a worker says after the latest commit of a batch."""
    done, spec = store.progress(batch), store.spec
    return Progress(batch, done.iteration, 8, done.draws, spec.kept_draws, 2, 1.0, 0, 0, 1, 1.0, True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create(FileSystem(), tmp_path / "run.zarr")


def n_blocks(store: Store) -> int:
    return len(list(Path(str(store.path)).rglob("*.block")))


def test_a_run_gathered_in_threads_has_the_same_draws(store: Store, tmp_path: Path) -> None:
    with store.lock(), Gathering(store) as gathering:
        while sum(step(store, batch) for batch in range(store.n_batches)):
            for batch in range(store.n_batches):
                gathering.update(message(store, batch))
        gathering.all()
        assert n_blocks(store) == 0
    other = create(FileSystem(), tmp_path / "other.zarr")
    run_to_end(other)
    assert contents(Store.open(store.path)) == contents(other)
    assert Store.open(store.path).verify().ok


def test_a_batch_is_gathered_by_one_thread_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gather, inside, go_on = store.gather, [0, 0], threading.Event()
    n_calls, most, lock = [0, 0], [0, 0], threading.Lock()

    def watched(batch: int, *, everything: bool = False) -> None:
        with lock:
            inside[batch] += 1
            n_calls[batch] += 1
            most[batch] = max(most[batch], inside[batch])
        assert go_on.wait(30)
        gather(batch, everything=everything)
        with lock:
            inside[batch] -= 1

    monkeypatch.setattr(store, "gather", watched)
    with store.lock(), Gathering(store) as gathering:
        while sum(step(store, batch) for batch in range(2)):
            pass
        for _ in range(3):  # the loop goes on although nothing is gathered yet
            for batch in range(2):
                gathering.update(message(store, batch))
        go_on.set()
        gathering.all()
    assert most == [1, 1]
    assert min(n_calls) >= 2
    assert n_blocks(store) == 0


def test_an_error_of_a_thread_is_raised_in_the_driver(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(batch: int, *, everything: bool = False) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(store, "gather", failing)
    while step(store, 0):
        pass
    with pytest.raises(StoreError, match="the disk is gone"), Gathering(store) as gathering:
        gathering.update(message(store, 0))


def test_an_interrupted_run_waits_for_its_threads_and_drops_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, entered, done = store.gather, threading.Event(), []

    def slow(batch: int, *, everything: bool = False) -> None:
        entered.set()
        gather(batch, everything=everything)
        done.append(batch)

    monkeypatch.setattr(store, "gather", slow)
    while step(store, 0):
        pass
    with pytest.raises(KeyboardInterrupt), store.lock(), Gathering(store) as gathering:
        gathering.update(message(store, 0))
        assert entered.wait(30)
        raise KeyboardInterrupt
    assert done == [0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gathering")]
    assert Store.open(store.path).verify().ok
