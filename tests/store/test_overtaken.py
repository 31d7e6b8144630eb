"""Whoever reads a state while another process gathers its block goes on from the state that is there then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.run.fitter import Fitter
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.fits import end_and_gather, fit_spec, make_fit


def _overtaken(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let others end the run, and gather its blocks, before a method of `store.commits` is called."""
    method: Callable[..., object] = getattr(store.commits, name)

    def late(*arguments: object) -> object:
        monkeypatch.undo()
        end_and_gather(store.path)
        return method(*arguments)

    monkeypatch.setattr(store.commits, name, late)


def _begun(folder: Path) -> Store:
    """A run whose first batch has committed a block of the warm-up and the first of its draws."""
    store = make_store(folder / "run.zarr", small_spec(folder))
    for _ in range(4):
        list(Sampler(store).run_block(0))
    return Store.open(store.path)  # which has not read a state yet


def test_a_state_is_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _begun(tmp_path)
    _overtaken(store, "state_after", monkeypatch)
    loaded, finished = store.load_state(0), Store.open(store.path).load_state(0)
    assert loaded is not None and finished is not None
    assert loaded[1] == finished[1] == 18
    np.testing.assert_array_equal(loaded[0].position, finished[0].position)


def test_a_worker_says_how_far_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _begun(tmp_path)
    _overtaken(store, "state_after", monkeypatch)
    (progress,) = Sampler(store).run_block(0)
    assert progress.committed and progress.is_complete


def test_a_worker_of_a_fit_says_how_far_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_fit(tmp_path / "fit.zarr", fit_spec(tmp_path, "bbb"))
    list(Fitter(store).run_block(0, should_stop=lambda: True))
    store = Store.open(store.path)
    _overtaken(store, "named_state_after", monkeypatch)
    (progress,) = Fitter(store).run_block(0)
    assert progress.committed and progress.is_complete
