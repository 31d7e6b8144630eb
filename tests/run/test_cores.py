"""The cores of a machine, and the batches of chains that follow from them; no draw depends on these."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfbnn
from rayfbnn import api
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.run import hardware, resuming, running
from rayfbnn.run.hardware import n_cores
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from rayfbnn.verbs import benchmarking
from tests.support.small import contents, make_store, small, small_spec

HIDDEN = {
    "one layer": [{"units": 3, "activation": "tanh"}],
    "two layers": [{"units": 4, "activation": "tanh"}, {"units": 3, "activation": "tanh"}],
}


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "n_cores", lambda: 4)


def of_cases(n_cases: int, **replaced: Any) -> RunSpec:
    """Return a run of a network with three hidden units on this number of cases with two inputs."""
    spec = RunSpec.from_dict(small(**{"phase": None, "chains": 8, "chains_per_batch": None, **replaced}))
    return spec.resolved(Encoding(("x1", "x2"), (InputColumn("x1"), InputColumn("x2")), n_cases=n_cases))


@pytest.mark.parametrize("kernels", ["plain", "compiled"])
@pytest.mark.parametrize(
    ("kind", "hidden"), [("real", "one layer"), ("binary", "two layers"), ("count", "two layers")]
)
def test_no_draw_and_no_tuned_setting_depends_on_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, hidden: str, kernels: str
) -> None:
    if kernels == "plain":
        monkeypatch.setenv("RAYFBNN_KERNELS", kernels)
    model = {"kind": kind} if kind != "real" else {"kind": kind, "noise": "0.3:3"}
    table = np.linspace(-2, 2, 60).reshape(20, 3)
    table[:, 2] = np.arange(20) % 2 if kind != "real" else np.sin(table[:, 0])
    folder = tmp_path / "train.csv"
    folder.write_text("x1,x2,y\n" + "\n".join(",".join(f"{value:.6g}" for value in row) for row in table))
    keys = small(
        phase=None, iterations=2, chains=5, chains_per_batch=None, model=model, network__hidden=HIDDEN[hidden]
    )
    del keys["network"]["priors"], keys["draws_per_block"]
    written = RunSpec.from_dict(keys, base_dir=tmp_path).to_dict()
    short = [f"phase[{number}].iterations=4" for number in (0, 1)]
    found = []
    for size in (2, 5):
        spec = RunSpec.from_dict({**written, "chains_per_batch": size}, short, base_dir=tmp_path)
        api.sample(spec, tmp_path / f"{size}.zarr", workers=0, progress=False)
        store = Store.open(tmp_path / f"{size}.zarr")
        draws = contents(store.path)
        kept = [draws[name].tobytes() for name in ("positions", "precisions", "energy", "log_likelihood")]
        found.append((kept, tuple(store.tuning.latest()[1].values())))
    assert len(found[0][1]) >= 1
    assert found[0] == found[1]


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("n_cases", "workers", "size"),
    [
        (1600, None, 8),  # 4,800 hidden values: a batch of eight takes hardly longer than one of two
        (1600, 0, 8),
        (1600, 2, 4),
        (1600, 8, 1),
        (1700, None, 2),
        (1700, 0, 8),
        (1700, 16, 1),
        (30_000, None, 2),  # a large table
        (30_000, 0, 2),
        (30_000, 8, 1),
    ],
)
def test_chains_share_a_batch_unless_it_keeps_cores_idle(
    n_cases: int, workers: int | None, size: int
) -> None:
    assert hardware.with_batches(of_cases(n_cases), workers, None).chains_per_batch == size


@pytest.mark.usefixtures("four_cores")
def test_many_cores_leave_two_chains_in_a_batch_of_a_table_that_is_not_large() -> None:
    assert hardware.with_batches(of_cases(1700, chains=4), None, None).chains_per_batch == 2
    assert hardware.with_batches(of_cases(30_000, chains=4), None, None).chains_per_batch == 1


def test_what_is_written_and_what_is_not_known_stays() -> None:
    written = of_cases(30_000, chains_per_batch=5)
    assert hardware.with_batches(written, 4, None) is written
    large = of_cases(30_000)
    assert hardware.with_batches(large, None, "auto") is large  # the cores of a cluster
    assert hardware.with_batches(large, 8, "auto").chains_per_batch == 1


def test_a_run_can_be_resumed_on_a_machine_with_other_cores(tmp_path: Path) -> None:
    asked = small_spec(tmp_path, chains_per_batch=None)
    store = make_store(tmp_path / "run.zarr", asked.with_batches_for_cores(3, is_asked=True))
    assert store.header.chains_per_batch == 2
    assert resuming.agreed_iterations(store, asked, None) is None
    assert resuming.agreed_iterations(store, asked.with_iterations(20), None) == 20


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are not kept to cores here")
def test_cores_are_those_that_the_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert n_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert n_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_workers_and_estimates_go_without_the_set_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert n_cores() == 2
    spec = small_spec(tmp_path)
    store = make_store(tmp_path / "run.zarr", spec)
    given: dict[str, object] = {}
    monkeypatch.setattr(running, "RayExecutor", lambda **settings: given.update(settings))
    running.new_executor(store, 3, running.RunOptions())
    assert given["workers"] == 2
    monkeypatch.setattr(benchmarking, "rows_of_operations", lambda *arguments, **settings: ())
    monkeypatch.setattr(benchmarking, "estimate_run", lambda *arguments, **settings: given.update(settings))
    given.clear()
    rayfbnn.bench(spec, progress=False)
    assert given["workers"] == 2
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert n_cores() == 1


@pytest.mark.parametrize(
    ("workers", "remedy"),
    [
        (4, "a new run with chains_per_batch = 1 has 5"),
        (2, "a new run with chains_per_batch = 2 has 3"),
        (1, ""),
        (None, ""),
    ],
)
def test_more_workers_than_batches_are_remarked_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    workers: int | None,
    remedy: str,
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path, chains_per_batch=5))
    monkeypatch.setattr(running, "RayExecutor", lambda **settings: None)
    running.new_executor(store, 1, running.RunOptions(workers=workers))
    what = f"{workers} workers were asked for, but one samples a batch, and the 5 chains are in 1 batch"
    assert (f"{what}; {remedy}" in caplog.text) == bool(remedy) == ("were asked for" in caplog.text)


def test_chains_that_are_batches_of_their_own_cannot_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path, chains_per_batch=1))
    monkeypatch.setattr(running, "RayExecutor", lambda **settings: None)
    running.new_executor(store, 5, running.RunOptions(workers=9))
    assert "the 5 chains are in 5 batches; use more chains" in caplog.text
