"""Predictions of a run whose sampling phase has not begun: the states that they are from, and their marks."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.draws.view import committed_or_early
from rayfbnn.errors import ConfigError, StoreError
from rayfbnn.run.sampler import Sampler
from rayfbnn.state import ChainState
from rayfbnn.store.records import Record
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.fits import end_and_gather

_UPDATE = [{"op": "sample-noise"}, {"op": "heatbath"}, {"op": "hybrid", "steps": 3, "stepsize": 0.2}]


def begun(folder: Path, *, blocks: list[int], **replaced: Any) -> Store:
    """A run of which each batch (chains 0 and 1; 2 and 3; 4) has committed so many blocks.

    Phases have 6, 20 and 4 iterations, and blocks 4: the first phase ends with the second block, and the
    second one begins with the third.
    """
    phases = [{"iterations": n, "keep": n == 4, "operations": _UPDATE} for n in (6, 20, 4)]
    store = make_store(folder / "run.zarr", small_spec(folder, phase=phases, **replaced))
    sampler = Sampler(store)
    for batch, n_blocks in enumerate(blocks):
        for _ in range(n_blocks):
            list(sampler.run_block(batch))
    return store


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in its second phase of three, and the training cases."""
    folder = tmp_path_factory.mktemp("early")
    begun(folder, blocks=[5, 4, 6])
    return folder


def test_early_draws_are_the_later_states_of_the_latest_phase_of_all_batches(early: Path) -> None:
    store = Store.open(early / "run.zarr")
    run = committed_or_early(store)
    assert run.early_phase == 2
    assert run.n_draws == 1  # two blocks of the second phase in the slowest batch, the later half
    for batch in range(store.n_batches):
        state = store.load_state(batch)
        assert state is not None
        chains = store.header.batch_chains(batch)
        where = slice(chains.start, chains.stop)
        np.testing.assert_array_equal(run.positions(where)[:, -1], state[0].position)
        np.testing.assert_array_equal(run.precisions(where)[:, -1], state[0].precisions)


def test_as_many_states_of_each_chain_are_taken(tmp_path: Path) -> None:
    run = committed_or_early(begun(tmp_path, blocks=[6, 7, 6]))
    assert run.n_draws == 2
    assert run.positions().shape[:2] == (5, 2)
    assert run.positions(slice(1, 4), slice(1, 2)).shape[:2] == (3, 1)
    with pytest.raises(StoreError, match="states of an earlier phase have no energy"):
        run.stat("energy")


def test_states_that_are_gathered_while_they_are_read_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begun(tmp_path, blocks=[6, 7, 6])
    reader = Store.open(store.path)
    state_after = reader.commits.state_after

    def gathered_first(record: Record) -> ChainState | None:
        monkeypatch.undo()
        end_and_gather(store.path)
        return state_after(record)

    monkeypatch.setattr(reader.commits, "state_after", gathered_first)
    assert committed_or_early(reader).n_draws == reader.committed_draws == 4


def test_a_batch_that_lags_behind_decides_the_phase(tmp_path: Path) -> None:
    assert committed_or_early(begun(tmp_path, blocks=[2, 4, 4])).early_phase == 1


def test_a_store_with_draws_has_no_early_ones(tmp_path: Path) -> None:
    store = begun(tmp_path, blocks=[8, 8, 8])
    assert store.committed_draws == 4
    run = committed_or_early(store)
    assert (run.n_draws, run.early_phase) == (4, None)
    assert "early_phase" not in rayfbnn.predict(store.path, data=tmp_path / "train.csv").table


def test_predictions_are_marked_and_warned_of(early: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        prediction = rayfbnn.predict(early / "run.zarr", data=early / "train.csv", out=early / "out.csv")
    (record,) = caplog.records
    assert "NOT FROM THE POSTERIOR" in record.message
    assert "iteration 14 of 30" in record.message
    assert "phase 2 of 3" in record.message
    assert prediction.verdict is None
    assert prediction.summary["early_phase"] == 2
    assert (pd.read_csv(early / "out.csv")["early_phase"] == 2).all()
    assert json.loads(prediction.to_json())["early_phase"] == 2


def test_the_shell_prints_the_phase_and_succeeds(early: Path) -> None:
    result = CliRunner().invoke(
        cli.app, ["predict", str(early / "run.zarr"), "--data", str(early / "train.csv")]
    )
    assert result.exit_code == 0
    assert "early_phase       2" in result.stdout


def test_a_predictor_has_the_early_states_and_says_so(early: Path) -> None:
    predictor = rayfbnn.load(early / "run.zarr")
    assert predictor.early_phase == 2
    assert predictor.n_draws == 5
    assert "NOT FROM THE POSTERIOR: phase 2" in repr(predictor)
    table = predictor.predict(early / "train.csv").table
    expected = rayfbnn.predict(early / "run.zarr", data=early / "train.csv").table
    pd.testing.assert_frame_equal(table, expected, rtol=1e-5, atol=1e-6)


def test_early_draws_cannot_be_skipped_diagnosed_or_exported(early: Path) -> None:
    path, data = early / "run.zarr", early / "train.csv"
    with pytest.raises(ConfigError, match="skip"):
        rayfbnn.predict(path, data=data, skip=1)
    with pytest.raises(ConfigError, match="last: leave it out"):
        rayfbnn.predict(path, data=data, last=1)
    for verb in (lambda: rayfbnn.diagnose(path), lambda: rayfbnn.export(path, out=early / "run.npz")):
        with pytest.raises(StoreError, match="`predict` and `load` can use its earlier phases"):
            verb()


def test_a_run_without_a_block_is_still_an_error(tmp_path: Path) -> None:
    store = begun(tmp_path, blocks=[2, 0, 2])
    with pytest.raises(StoreError, match="no draws are committed"):
        rayfbnn.predict(store.path, data=tmp_path / "train.csv")
