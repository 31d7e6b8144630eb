"""Models that a method does not cover, and wrong settings, are refused by name; no file is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.errors import ConfigError
from tests.support.small import small, write_train

WIDE = {"network__hidden": [{"units": 1500, "activation": "tanh"}]}
SOFTMAX = {"network__hidden": [{"units": 3, "activation": "softmax"}]}
T_VALUES = {"network__priors": {"ih0": "0.7:3::4", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"}}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("laplace", WIDE, {}, "method laplace: covers at most 5000 parameters"),
    ("laplace", T_VALUES, {}, "method laplace: ih0 has a t prior"),
    ("laplace", {}, {"members": 13}, "methods.laplace.members: must be at most 12"),
    ("bbb", {}, {"members": 5}, "methods.bbb.members: must be at most 4"),
    ("vep", {}, {"members": 2, "mode": "adf"}, "methods.vep.members: needs the evidence"),
    ("laplace", {}, {"curvature": "exakt"}, "methods.laplace.curvature: must be"),
    ("vep", SOFTMAX, {}, "method vep: "),
    ("vep", {"temperature": 2.0}, {}, "method vep: only temperature = 1 is covered"),
    ("vep", {}, {"damping": 0}, "methods.vep.damping: must be a number above 0"),
    ("bbb", {}, {"batch": 13}, "methods.bbb.batch: must be at most 12, the number of training cases, got 13"),
    ("bbb", {}, {"samples": 3}, "methods.bbb.samples: must be even"),
    ("bbb", {}, {"stepps": 3}, "methods.bbb.stepps: unknown key"),
    ("bbb", T_VALUES, {}, "method bbb: "),
    ("bbb", {"data__parts": 2, "phase": None}, {}, "data.parts: bbb needs all cases in one place"),
    ("map", {}, {"optimizer": "lbfgs", "validation": 0.2}, "methods.map.validation: is for"),
    ("hmmc", {}, None, "method: must be one of hmc, sghmc"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("method", "replaced", "settings", "message"), REFUSED)
def test_a_method_that_does_not_apply_is_refused_before_anything_is_created(
    tmp_path: Path, method: str, replaced: dict[str, Any], settings: dict[str, Any] | None, message: str
) -> None:
    write_train(tmp_path)
    raw = small(**replaced)
    if settings is not None:
        raw["methods"] = {method: settings}
    raw["data"]["train"] = str(tmp_path / "train.csv")
    with pytest.raises(ConfigError) as caught:
        api.sample(raw, tmp_path / "run.zarr", method=method, workers=0, progress=False)
    assert message in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["train.csv"]


def test_vep_of_classes_is_refused_by_name(tmp_path: Path) -> None:
    table = {"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 2, 1]}
    import pandas as pd

    with pytest.raises(ConfigError, match=r'method vep: only binary and real targets are covered, .*"class"'):
        api.sample(
            {"data": {"targets": ["y"]}, "model": {"kind": "class", "classes": 3}},
            tmp_path / "run.zarr",
            data=pd.DataFrame(table),
            method="vep",
            workers=0,
            progress=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_fit_is_made_no_longer_and_not_until_ok(tmp_path: Path) -> None:
    write_train(tmp_path)
    raw = small() | {"methods": {"map": {"steps": 2}}}
    raw["data"]["train"] = str(tmp_path / "train.csv")
    path = tmp_path / "run.zarr"
    with pytest.raises(ConfigError, match="until: only for runs of Markov chains"):
        api.sample(raw, path, method="map", until="ok", max_time=1, workers=0, progress=False)
    api.sample(raw, path, method="map", workers=0, progress=False)
    with pytest.raises(ConfigError, match="iterations: only for runs of Markov chains"):
        api.resume(path, iterations=100, workers=0, progress=False)
