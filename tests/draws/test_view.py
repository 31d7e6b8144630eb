"""A view asks its store once how many draws are committed, whatever is computed from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zarr", reason="Zarr is not installed")

import rayfbnn  # noqa: E402
from rayfbnn.store.opened import OpenStore  # noqa: E402
from tests.support.small import small_spec  # noqa: E402


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", workers=0, progress=False)
    return folder


@pytest.mark.parametrize("verb", ["diagnose", "predict", "report", "load"])
def test_what_is_committed_is_asked_once(verb: str, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question lists the records of every batch; a run on a cluster has hundreds of batches."""
    settings: dict[str, dict[str, Any]] = {
        "predict": {"data": finished / "train.csv"},
        "report": {"out": finished / "report.html", "progress": False},
    }
    asked, ask = [], OpenStore.committed

    def counted(store: OpenStore, section: Any) -> int:
        asked.append(section)
        return ask(store, section)

    monkeypatch.setattr(OpenStore, "committed", counted)
    getattr(rayfbnn, verb)(finished / "run.zarr", **settings.get(verb, {}))
    assert len(asked) == 1
