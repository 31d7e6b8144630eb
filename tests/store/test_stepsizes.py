"""The stepsizes of draws are those that their updates had, although no store keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.arrays import Array, to_host
from rayfbnn.draws.subsets import chosen
from rayfbnn.draws.view import committed
from rayfbnn.mcmc import metropolis, stepsizes
from rayfbnn.store import store as stored
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams
from tests.support.small import small_spec

pytest.importorskip("zarr", reason="Zarr is not installed")

HEATBATH, SIGMAS = {"op": "heatbath"}, {"op": "sample-sigmas"}
HYBRID = {"op": "hybrid", "steps": 2, "stepsize": 0.1, "stepsize_jitter": -1}
MAX = {"op": "hybrid-max", "max_steps": 4, "max_ok": 2, "stepsize": 0.2, "stepsize_jitter": 3}
METROPOLIS = {"op": "metropolis", "stepsize": 0.05, "stepsize_jitter": 2.5}
SLICE = {"op": "slice-1", "stepsize": 1.0, "stepsize_jitter": -1}
AUTO = HYBRID | {"steps": "auto", "stepsize": "auto"}
TEMPERED = {
    "op": "tempered-transition",
    "inverse_temperatures": [1.0, 0.8],
    "operations": [{"op": "metropolis", "stepsize": 0.1}],
}
# The operations of an iteration, and the number of the one whose stepsize is wanted.
ITERATIONS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "log-uniform": ([SIGMAS, HEATBATH, HYBRID], 2),
    "Gamma": ([HEATBATH, HYBRID | {"stepsize_jitter": 0.7}], 1),
    "no jitter": ([HEATBATH, HYBRID | {"stepsize_jitter": None}], 1),
    "the last of a repetition": ([{"op": "repeat", "times": 3, "operations": [HEATBATH, HYBRID]}], 5),
    "before an update without energy": ([HEATBATH, HYBRID, SLICE, SIGMAS], 1),
    "after a trajectory": ([HEATBATH, HYBRID, METROPOLIS], 2),
    "one at a time": ([HEATBATH, HYBRID, METROPOLIS | {"op": "metropolis-1"}], 2),
    "hybrid-max": ([HEATBATH, MAX], 1),
    "uncorrected": ([HEATBATH, HYBRID, HYBRID | {"op": "dynamic"}], 2),
    "automatic": ([SIGMAS, HEATBATH, AUTO], 2),
}  # fmt: skip


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int, int], float]:
    """The stepsizes that updates of runs in this process draw, by chain, iteration and operation."""
    factors: dict[tuple[int, int, int], float] = {}
    draw = stepsizes.jittered_stepsize

    def recording(stepsize: float, jitter: float | None, streams: Streams) -> Array:
        values = draw(stepsize, jitter, streams)
        for chain, value in zip(to_host(streams.chains), to_host(values), strict=True):
            factors[int(chain), streams.iteration, streams.operation] = float(value)
        return values

    for module in (stepsizes, metropolis):
        monkeypatch.setattr(module, "jittered_stepsize", recording)
    return factors


def run(folder: Path, operations: list[dict[str, Any]]) -> Store:
    without_none = [{key: value for key, value in one.items() if value is not None} for one in operations]
    phases = [
        {"iterations": 3, "keep": False, "operations": [HEATBATH, HYBRID]},
        {"iterations": 40, "keep": False, "operations": without_none},
        {"iterations": 9, "operations": without_none},
    ]
    if "auto" not in str(operations):
        del phases[1]
    api.sample(small_spec(folder, phase=phases), folder / "run.zarr", workers=0, progress=False)
    return Store.open(folder / "run.zarr")


@pytest.mark.parametrize("name", ITERATIONS)
def test_stepsizes_are_those_of_the_last_update_with_an_energy_change(
    name: str, tmp_path: Path, used: dict[tuple[int, int, int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, number = ITERATIONS[name]
    store = run(tmp_path, operations)
    last = store.spec.total_iterations - 9
    expected = [[used[chain, last + draw, number] for draw in range(1, 10)] for chain in range(5)]
    monkeypatch.setattr(stored, "_AT_ONCE", 20)
    view = committed(store)
    np.testing.assert_array_equal(view.stat("stepsize"), expected)
    some = chosen(view, chains=[1, 4], last=2)
    np.testing.assert_array_equal(some.stat("stepsize"), np.array(expected)[[1, 4], -2:])
    np.testing.assert_array_equal(api.open(store.path)["sample_stats"]["step_size"], expected)


def test_without_an_energy_change_there_is_no_stepsize(tmp_path: Path) -> None:
    for name, operations in {"none": [SIGMAS, SLICE], "tempered": [HEATBATH, HYBRID, TEMPERED]}.items():
        (tmp_path / name).mkdir()
        store = run(tmp_path / name, operations)
        assert np.isnan(committed(store).stat("stepsize")).all()
        assert "step_size" not in api.open(store.path)["sample_stats"]


def test_stepsizes_follow_a_run_that_is_lengthened(tmp_path: Path) -> None:
    store = run(tmp_path, [HEATBATH, HYBRID])
    before = committed(store).stat("stepsize")
    api.resume(store.path, iterations=15, workers=0, progress=False)
    after = committed(Store.open(store.path)).stat("stepsize")
    assert after.shape == (5, 15) and len(np.unique(after)) == after.size
    np.testing.assert_array_equal(after[:, :9], before)
