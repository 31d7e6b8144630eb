"""Quantities read in small groups are those that are read all at once."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import Quantities, quantities, weight_sizes
from tests.support.store.standin_store import endless, make_data, make_run, make_spec


@pytest.mark.parametrize("per_chunk", [1, 7, 20])
def test_sizes_are_root_mean_squares_of_groups(per_chunk: int) -> None:
    run = replace(make_run(make_spec(), n_draws=20), draws_per_chunk=per_chunk, chains_per_batch=3)
    sizes = weight_sizes(run)
    groups = run.parameter_layout.views(run.store.positions)
    assert list(sizes) == [f"rms_{group}" for group in groups]
    for group, weights in groups.items():
        expected = np.sqrt(np.square(weights.reshape(4, 20, -1).astype(float)).mean(axis=2))
        np.testing.assert_allclose(sizes[f"rms_{group}"], expected, rtol=1e-6)


SPECS: dict[str, dict[str, Any]] = {
    "real": {"network__priors__ah0": "3", "network__priors__ao": "2"},
    "binary": {},
    "class": {},
}


def grouped(run: Any, *, memory_bytes: float, cases: int = 10) -> dict[str, Array]:
    every = Quantities.of_run(run, cases=cases)
    shape = run.n_chains, run.n_draws
    values = every.each([run], memory_bytes=memory_bytes)
    return {name: one.reshape(shape).copy() for name, one in values}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("n_together", [0, 4, 7])
def test_groups_have_the_values_that_are_read_at_once(kind: str, n_together: int) -> None:
    run = make_run(make_spec(kind, **SPECS[kind]))
    at_once = quantities(run)
    some = grouped(run, memory_bytes=n_together * 8 * run.total)
    assert set(some) == set(at_once)
    for name, values in at_once.items():
        np.testing.assert_allclose(some[name], values, rtol=1e-12, err_msg=name)


def test_runs_follow_each_other() -> None:
    spec = make_spec()
    runs = [make_run(spec, n_draws=20, seed=11), make_run(spec, n_draws=9, seed=50)]
    alone = [quantities(run) for run in runs]
    for name, values in Quantities.of_run(runs[0]).each(runs, memory_bytes=1000):
        expected = np.concatenate([one[name].ravel() for one in alone])
        np.testing.assert_allclose(values, expected, rtol=1e-12, err_msg=name)


def test_quantities_of_the_same_arrays_follow_each_other() -> None:
    names = list(grouped(make_run(make_spec()), memory_bytes=1, cases=3))
    assert names[-8:] == [
        "log_likelihood",
        "log_prior",
        *[f"{target}[{case}]" for case in (0, 6, 11) for target in ("y1", "y2")],
    ]


def test_memory_does_not_grow_with_the_number_of_quantities() -> None:
    spec = make_spec(draws_per_block=500)
    run: Any = endless(make_run(spec, make_data(spec, n_cases=100)), 50_000)
    run.store.stats = {name: np.zeros((4, 50_000)) for name in ("log_likelihood", "log_prior")}
    n_bytes = 8 * run.total
    peaks = []
    for cases in (4, 20):
        tracemalloc.start()
        for _ in Quantities.of_run(run, cases=cases).each([run], memory_bytes=4 * n_bytes):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 4 * n_bytes + 80e6  # 64 MB for a block of draws
    assert peaks[1] < 1.2 * peaks[0]
