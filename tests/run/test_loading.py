"""A worker holds the training cases once, in the run's dtype, with the bits of the whole."""

from __future__ import annotations

import shutil
import tracemalloc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.data import Dataset, read_training
from rayfbnn.errors import StoreCorruptError
from rayfbnn.run.hardware import kernel_name
from rayfbnn.run.sampler import Sampler, build_posterior, posterior_of_run
from rayfbnn.spec import RunSpec
from rayfbnn.store.creation import chunk_cases
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.small import small, small_spec

N_CASES, N_INPUTS = 30_000, 20
FLOAT32_BYTES = 4 * N_CASES * N_INPUTS
SURVIVAL = {
    "model": {"kind": "survival", "hazard": "piecewise", "time_points": [0.5, 2.0, 8.0]},
    "phase": [{"iterations": 1, "operations": [{"op": "heatbath"}]}],
}
PHASES = [
    {"iterations": 1, "keep": False, "operations": [{"op": "hybrid", "steps": 1, "stepsize": 0.1}]},
    {
        "iterations": 1,
        "operations": [
            {"op": "sample-noise"},
            {"op": "hybrid", "steps": 1, "stepsize": 0.1, "partitions": 3},
        ],
    },
]
NAMES = [f"x{number}" for number in range(N_INPUTS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "run.zarr"
    created(path, N_CASES, cases_per_chunk=1000)
    return path


def created(path: Path, n_cases: int, *, cases_per_chunk: int | None = None, **changes: Any) -> Store:
    inputs = Streams(5, np.arange(n_cases, dtype=np.uint64)).normal(Purpose.PROPOSAL, (N_INPUTS,))
    data = {"inputs": NAMES, "targets": ["y"], "standardize": ["inputs"]}
    settings = {"data": data, "chains": 1, "chains_per_batch": 1, "phase": PHASES, **changes}
    configuration = RunSpec.from_dict(small(**settings))
    spec, dataset = read_training(configuration, (inputs, inputs[:, :2].sum(axis=1, keepdims=True) ** 2))
    return Store.create(path, spec, dataset, kernel=kernel_name(spec), cases_per_chunk=cases_per_chunk)


@pytest.mark.parametrize(
    "changes",
    [{}, {"dtype": "float64"}, SURVIVAL],
    ids=["float32", "float64", "several cells a case"],
)
def test_cases_read_in_pieces_are_those_read_at_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = created(tmp_path / "run.zarr", 20_000, **changes)
    in_pieces, whole = posterior_of_run(store), build_posterior(store.spec, store.data, device="cpu")
    assert in_pieces.inputs.dtype == store.spec.dtype
    for name in ("inputs", "targets", "input_mean_squares"):
        assert (getattr(in_pieces, name) == getattr(whole, name)).all()


def test_cases_of_another_run_are_refused(path: Path) -> None:
    store = Store.open(path)
    store.header = replace(store.header, data_hash=64 * "0")
    with pytest.raises(StoreCorruptError, match="the training cases do not match the run's data hash"):
        posterior_of_run(store)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9] + b"?" + raw[-8:], lambda raw: raw[:-9]])
def test_a_damaged_chunk_of_cases_is_named(path: Path, tmp_path: Path, damage: Any) -> None:
    shutil.copytree(path, tmp_path / "run.zarr")
    file = tmp_path / "run.zarr/constant_data/inputs/c.7.0"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StoreCorruptError, match=f"{file}: damaged"):
        posterior_of_run(Store.open(tmp_path / "run.zarr"))


def test_chunks_are_small_and_no_longer_than_a_part(tmp_path: Path) -> None:
    n_cases = 4 * 2**20 // (8 * N_INPUTS) + 1
    assert created(tmp_path / "whole.zarr", n_cases).root.header.cases_per_chunk == n_cases - 1
    spec = RunSpec.from_dict(small(data__parts=3, phase=SURVIVAL["phase"]))
    assert [chunk_cases(spec, n) for n in (3, 4, 100)] == [1, 2, 34]


def test_loading_takes_no_more_than_the_cases_and_some_chunks(path: Path) -> None:
    store = Store.open(path)
    posterior_of_run(store)  # imports what is needed
    tracemalloc.start()
    try:
        posterior = posterior_of_run(store)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert posterior.inputs.nbytes >= FLOAT32_BYTES
    # A second copy in float32 would make it 2.7 times, and one in float64 3.7 times.
    assert most < 2 * FLOAT32_BYTES


@pytest.mark.parametrize("kernels", [None, "plain"])
def test_worker_holds_its_cases_once(
    path: Path, tmp_path: Path, kernels: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count arrays of NumPy while a worker runs blocks with full and with partial gradients."""
    if kernels is not None:
        monkeypatch.setenv("RAYFBNN_KERNELS", kernels)
        path = created(tmp_path / "run.zarr", N_CASES).path
    list(Sampler(created(tmp_path / "imports.zarr", 10)).run_block(0))
    tracemalloc.start()
    try:
        sampler = Sampler(Store.open(path))
        for _ in PHASES:
            list(sampler.run_block(0))
        arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        sizes = [trace.size for trace in tracemalloc.take_snapshot().filter_traces([arrays]).traces]
    finally:
        tracemalloc.stop()
    of_cases = [size for size in sizes if size >= FLOAT32_BYTES / 2]
    assert sum(of_cases) < 1.1 * FLOAT32_BYTES, of_cases


def test_sampling_in_this_process_lets_go_of_the_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, are_alive = [], []
    create, run_block = Store.create, Sampler.run_block

    def watched_create(path: Path, spec: RunSpec, data: Dataset, **options: Any) -> Store:
        given.append(weakref.ref(data))
        return create(path, spec, data, **options)

    def watched_run_block(sampler: Sampler, *arguments: Any, **options: Any) -> Any:
        are_alive.append(given[0]() is not None)
        return run_block(sampler, *arguments, **options)

    monkeypatch.setattr(Store, "create", staticmethod(watched_create))
    monkeypatch.setattr(Sampler, "run_block", watched_run_block)
    api.sample(small_spec(tmp_path), tmp_path / "run.zarr", workers=0, progress=False)
    assert are_alive and not any(are_alive)
