"""Ray is not started where it would wait for ever."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rayfbnn import api
from rayfbnn.errors import ConfigError
from rayfbnn.run import cluster
from tests.support.small import make_store, small_spec


def test_too_few_open_files_for_ray_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path)
    make_store(tmp_path / "run.zarr", spec)
    limit_of = resource.getrlimit
    limits = {resource.RLIMIT_NOFILE: (64, 64)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which) or limit_of(which))
    with pytest.raises(
        ConfigError, match=r"Ray needs 512 open files, and this shell allows 64 .*workers = 0"
    ):
        api.sample(spec, tmp_path / "new.zarr", workers=2, progress=False)
    monkeypatch.setattr(
        "ray.is_initialized", lambda: False
    )  # other tests may have started it in this process
    with pytest.raises(ConfigError, match="Ray needs 512 open files"):
        api.resume(tmp_path / "run.zarr", workers=2, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.zarr", "train.csv"]


def test_the_limit_of_open_files_is_raised_as_far_as_ray_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: limits.append(limit))
    monkeypatch.setattr(cluster, "_import_ray", lambda address: None)
    cluster.check_ray(2, None)
    assert limits == [(512, 4096)]
    cluster.check_ray(0, None)
    assert limits == [(512, 4096)]
