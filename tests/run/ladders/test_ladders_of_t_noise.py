"""Whole runs of ladders whose noise has no closed integral."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.draws.ladders import ladder_draws
from rayfbnn.draws.view import committed
from rayfbnn.store.catalogue import LADDER
from rayfbnn.store.store import Store
from tests.support.store.ladder_runs import assert_same_ladders, ladder_spec, run_ladders

_TWO_TARGETS: dict[str, Any] = {"data__inputs": ["x1"], "data__targets": ["x2", "y"]}
_RUNS: dict[str, tuple[dict[str, Any], str, str]] = {
    "t": ({"model__noise": "0.3:3::4"}, "log_scale", "the log scale of the residuals"),
    "t of each": (
        {"model__noise": "0.3::3:4", **_TWO_TARGETS},
        "log_scale",
        "the log scale of the residuals",
    ),
    "two levels": ({"model__noise": "0.3:3:3", **_TWO_TARGETS}, "log_rss", "log RSS"),
}


@pytest.mark.parametrize("name", _RUNS)
def test_run_holds_noise_and_is_judged_by_its_measure(tmp_path: Path, name: str) -> None:
    keys, measured, words = _RUNS[name]
    spec = ladder_spec(tmp_path, **keys)
    assert "noise, held at one value at each level" in api.show(spec)
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    store = Store.open(tmp_path / "run.zarr")
    assert store.committed_draws == 9 and api.verify(tmp_path / "run.zarr").ok
    for array in (measured, "forward", "reverse"):
        assert np.isfinite(store.hierarchy.read(f"{LADDER}/{array}")).all()
    verdict = api.diagnose(tmp_path / "run.zarr").ladders
    assert verdict is not None and verdict.evidence is not None
    assert words in f"{verdict.reasons} {verdict.remarks}" and verdict.evidence.kind == "noise"
    levels = ladder_draws(committed(store))
    assert levels.measured == measured and 0.001 < levels.held[-1] < levels.held[0]


@pytest.mark.parametrize("name", _RUNS)
def test_draws_do_not_depend_on_batches(tmp_path: Path, name: str) -> None:
    for size in (2, 4):
        run_ladders(tmp_path / f"{size}.zarr", ladder_spec(tmp_path, **_RUNS[name][0], chains_per_batch=size))
    assert_same_ladders(tmp_path / "2.zarr", tmp_path / "4.zarr")


def test_t_noise_of_two_free_levels_has_powers_and_show_says_why(tmp_path: Path) -> None:
    text = api.show(ladder_spec(tmp_path, model__noise="0.3:3:3:4", **_TWO_TARGETS))
    assert "powers of the likelihood" in text and "because t noise has them with one alpha" in text
