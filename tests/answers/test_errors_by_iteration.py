"""Errors by iteration are those that `predict` computes from single draws, and from the draws so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.answers.errors_by_iteration import (
    ErrorsByIteration,
    errors_by_iteration,
    iterations_of,
    warmup_draws,
)
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import chosen, with_chains, with_draws
from rayfbnn.draws.view import Draws, committed
from rayfbnn.store.store import Store
from tests.support.small import small_spec
from tests.support.store.fits import spec_of

pytest.importorskip("zarr", reason="Zarr is not installed")

MEASURES = {
    "real": "squared_error",
    "heteroscedastic": "squared_error",
    "binary": "error_rate",
    "class": "error_rate",
    "count": "log_probability",
    "hazard of pieces": "log_probability",
}


def run_of(name: str, folder: Path, **changes: Any) -> Draws:
    real = {"data__standardize": ["inputs", "targets"]}
    spec = small_spec(folder, **real) if name == "real" else spec_of(name, folder, **changes)
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return committed(Store.open(folder / "run.zarr"))


def predicted(run: Draws, measure: str) -> float:
    """The mean of a measure over the cases, from the training cases as new ones."""
    summary = predict_from_draws([run], run.data.inputs, run.data.targets).summary
    return -summary[measure] if measure == "log_probability" else summary[measure]


def errors(run: Draws, **options: Any) -> ErrorsByIteration:
    found = errors_by_iteration(run, run.data.inputs, run.data.targets, **options)
    assert found is not None
    return found


@pytest.mark.parametrize("name", MEASURES)
def test_errors_are_those_of_predict(name: str, tmp_path: Path) -> None:
    run, measure = run_of(name, tmp_path), MEASURES[name]
    found = errors(run)
    assert found.measure == measure and found.n_cases == 12 - (name != "real")
    assert found.kept.iterations.tolist() == list(range(9, 19))
    chain = with_chains(run, np.array([3]))
    for draw in (0, 9):
        alone, until = with_draws(chain, np.array([draw])), with_draws(chain, np.arange(draw + 1))
        np.testing.assert_allclose(found.kept.of_draws[3, draw], predicted(alone, measure), rtol=1e-5)
        np.testing.assert_allclose(found.kept.so_far[3, draw], predicted(until, measure), rtol=1e-5)
        together = with_draws(run, np.arange(draw + 1))
        np.testing.assert_allclose(found.kept.together[draw], predicted(together, measure), rtol=1e-5)


@pytest.mark.parametrize("name", ["class", "hazard of pieces"])
@pytest.mark.parametrize("memory_bytes", [1.0, 3e4])
def test_errors_do_not_depend_on_the_memory(name: str, memory_bytes: float, tmp_path: Path) -> None:
    run = run_of(name, tmp_path)
    whole, parts = errors(run), errors(run, memory_bytes=memory_bytes)
    for field in ("of_draws", "so_far", "together"):
        np.testing.assert_allclose(getattr(parts.kept, field), getattr(whole.kept, field), rtol=1e-5)


def test_kept_draws_of_the_warmup_come_first(tmp_path: Path) -> None:
    run = run_of("real", tmp_path)
    found, warmup = errors(run), warmup_draws(run.store)
    assert warmup is not None and found.warmup is not None
    assert found.starts == (4, 9) and found.warmup.iterations.tolist() == [4, 5, 6, 7, 8]
    first = with_draws(with_chains(warmup, np.array([2])), np.array([0]))
    np.testing.assert_array_equal(
        first.positions(), run.store.read_positions(slice(0, 1), slice(2, 3), section="warmup")
    )
    np.testing.assert_allclose(found.warmup.of_draws[2, 0], predicted(first, "squared_error"), rtol=1e-5)


def test_without_a_warmup_there_are_only_draws_from_the_posterior(tmp_path: Path) -> None:
    phases = [{"iterations": 4, "operations": [{"op": "heatbath"}]}]
    api.sample(small_spec(tmp_path, phase=phases), tmp_path / "run.zarr", workers=0, progress=False)
    run = committed(Store.open(tmp_path / "run.zarr"))
    assert warmup_draws(run.store) is None
    found = errors(run)
    assert found.warmup is None and found.starts == () and found.kept.iterations.tolist() == [1, 2, 3, 4]


def test_some_draws_are_evenly_spaced_and_keep_their_iterations(tmp_path: Path) -> None:
    run = run_of("real", tmp_path)
    every, some = errors(run), errors(chosen(run, skip=2), at_most=15)
    assert some.kept.iterations.tolist() == [11, 14, 18]
    np.testing.assert_allclose(some.kept.of_draws, every.kept.of_draws[:, [2, 5, 9]], rtol=1e-6)


def test_iterations_of_several_kept_phases(tmp_path: Path) -> None:
    phases = [
        {"iterations": n, "keep": keep, "operations": [{"op": "heatbath"}]}
        for n, keep in ((2, "warmup"), (3, False), (2, "warmup"), (2, True), (3, True))
    ]
    spec = small_spec(tmp_path, phase=phases)
    assert iterations_of(spec, np.arange(5)).tolist() == [8, 9, 10, 11, 12]
    assert iterations_of(spec, np.array([0, 1, 3]), keep="warmup").tolist() == [1, 2, 7]


def test_unknown_targets_are_left_out(tmp_path: Path) -> None:
    run = run_of("real", tmp_path)
    inputs: Array = run.data.inputs
    targets: Array = run.data.targets.copy()
    targets[2:] = np.nan
    some = errors_by_iteration(run, inputs, targets)
    expected = errors_by_iteration(run, inputs[:2], targets[:2])
    assert some is not None and expected is not None and some.n_cases == 2
    np.testing.assert_allclose(some.kept.together, expected.kept.together, rtol=1e-6)
    assert errors_by_iteration(run, inputs, np.full_like(targets, np.nan)) is None
