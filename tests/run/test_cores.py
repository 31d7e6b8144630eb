"""The number of cores, on systems that report which cores a process may use and on others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rayfbnn
from rayfbnn.run import running
from rayfbnn.run.hardware import n_cores
from rayfbnn.timing import run_time as run_times
from rayfbnn.timing import steps as step_times
from tests.support.small import make_store, small_spec


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
    monkeypatch.setattr(step_times, "rows_of_operations", lambda *arguments, **settings: ())
    monkeypatch.setattr(run_times, "estimate_run", lambda *arguments, **settings: given.update(settings))
    given.clear()
    rayfbnn.bench(spec, progress=False)
    assert given["workers"] == 2
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert n_cores() == 1
