"""Ladders of several stores: weighed together from one level, and alike if log Z cannot be compared."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.answers.judging.ladder_verdict import pooled_by_evidence, verdict_on_pooled_ladders
from rayfbnn.draws.subsets import stacked
from rayfbnn.draws.view import committed
from rayfbnn.errors import StoreMismatchError
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.ladder_runs import SETTINGS, ladder_spec, run_in_phases

_DRAWS, _GAP = 100, 3.0


def store(folder: Path, seed: int, **settings: object) -> Store:
    """Return a store whose ladders 1 and 3 are lighter by _GAP nats."""
    spec = ladder_spec(folder, iterations=_DRAWS, seed=seed, settings=SETTINGS | settings)
    return run_in_phases(folder / f"run{seed}.zarr", spec, gap=_GAP)


def stores(folder: Path, **settings: object) -> list[Store]:
    """Return two such stores with seeds of their own."""
    return [store(folder, seed, **settings) for seed in (7, 8)]


def test_ladders_from_one_hot_level_are_weighed_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = stores(tmp_path, hot=3.0)
    runs = [committed(store) for store in pair]
    verdict = verdict_on_pooled_ladders(runs)
    assert verdict is not None and verdict.evidence is not None
    heavy, light = verdict.evidence.phases
    assert heavy.ladders == (0, 2, 4, 6) and light.ladders == (1, 3, 5, 7)
    assert abs(light.gap - _GAP) < 4 * verdict.evidence.error
    (weighed,), sentence = pooled_by_evidence(runs)
    assert "ladders are numbered through all stores" in sentence
    share = np.exp(-light.gap)
    assert weighed.total == 4 * _DRAWS + 4 * int(share * _DRAWS + 1e-9)
    every = stacked(runs)
    first = np.concatenate([every.positions()[ladder] for ladder in (0, 1)])
    expected = first[: _DRAWS + int(share * _DRAWS)]  # of ladder 1 only the first draws count
    np.testing.assert_array_equal(weighed.positions()[0, : len(expected)], expected)

    with caplog.at_level(logging.WARNING):
        prediction = api.predict([str(store.path) for store in pair], data=tmp_path / "train.csv")
    assert prediction.equal_weights is not None and prediction.verdict is not None
    assert prediction.equal_weights.summary["draws"] == 8 * _DRAWS
    assert prediction.summary["draws"] == weighed.total
    assert [one.used for one in prediction.stores] == [_DRAWS, _DRAWS]
    assert not prediction.verdict.ok
    assert "phases remain" in caplog.text and "ladders 1, 3, 5 and 7" in caplog.text


def test_log_z_from_different_levels_is_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = stores(tmp_path)  # the adaptation of each finds a hot end of its own
    runs = [committed(store) for store in pair]
    verdict = verdict_on_pooled_ladders(runs)
    assert verdict is not None and verdict.grade == "cannot tell" and not verdict.is_sound
    assert "log Z of their ladders is counted from different levels" in verdict.decided_by
    assert "sample with the same ladder.hot in all of them" in verdict.advice[0]
    with caplog.at_level(logging.WARNING):
        prediction = api.predict([str(store.path) for store in pair], data=tmp_path / "train.csv")
    assert prediction.equal_weights is None and prediction.summary["draws"] == 8 * _DRAWS
    assert "all ladders count alike" in caplog.text
    assert prediction.verdict is not None and not prediction.verdict.ok


def test_chains_have_no_log_z_to_compare_that_of_ladders_with(tmp_path: Path) -> None:
    ladders = committed(store(tmp_path, 7))
    plain = make_store(tmp_path / "plain.zarr", small_spec(tmp_path, seed=3))
    api.resume(plain.path, workers=0, progress=False)  # type: ignore[arg-type]
    verdict = verdict_on_pooled_ladders([ladders, committed(Store.open(plain.path))])
    assert verdict is not None and "not all of them have ladders" in verdict.decided_by


def test_only_runs_of_one_posterior_are_stacked(tmp_path: Path) -> None:
    ladders = committed(store(tmp_path, 7))
    with pytest.raises(StoreMismatchError, match="has the same seed"):
        stacked([ladders, ladders])
    whole = stacked([ladders])
    assert whole.chain_numbers == (0, 1, 2, 3)
    part = whole.positions(slice(1, 3), slice(20, 30))
    np.testing.assert_array_equal(part, ladders.positions()[1:3, 20:30])
