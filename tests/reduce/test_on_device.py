"""Predictions by sums on a device, or on the stand-in for one, against those of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.errors import ConfigError
from rayfbnn.reduce.passes import TasksInProcess
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed
from tests.support.store.standin_store import DISPERSED, PIECEWISE, make_data, make_run, make_spec, run_of


@pytest.fixture
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


@needs_gxx
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"model__noise": "0.3:4:5:3"},
        {"kind": "class"},
        {"kind": "count"},
        DISPERSED,
        {"kind": "heteroscedastic"},
        {"kind": "survival", "hazard": "constant"},
        PIECEWISE,
    ],
    ids=[
        "gaussian",
        "t",
        "class",
        "count",
        "count with dispersion",
        "heteroscedastic",
        "constant hazard",
        "piecewise hazard",
    ],
)
def test_predictions_on_a_device_are_those_of_the_host(model: dict[str, Any], cupy: Any) -> None:
    if model.get("kind") in ("count", "heteroscedastic", "survival"):
        run, inputs, targets = run_of(model)
    else:
        run = make_run(make_spec(**model))
        inputs, targets = (getattr(make_data(run.spec, 9, seed=41), name) for name in ("inputs", "targets"))
    expected = predict_from_draws([run], inputs, targets).table
    with log.recorded() as entries:
        found = predict_from_draws([run], inputs, targets, executor=TasksInProcess("gpu")).table
    launched = {entry.what for entry in entries}
    assert "moments_of_draws" in launched and "scores_of_draws" in launched
    assert ("distribution_of_draws" in launched) == (model.get("kind") != "class")
    assert ("mass_of_draws" in launched) == (model.get("kind") == "count")
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5, atol=1e-6)


def test_a_device_that_is_not_there_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="no GPU here"):
        rayfbnn.predict(tmp_path / "run.zarr", data=np.zeros((1, 2)), device="gpu")
    with pytest.raises(ConfigError, match='device: must be "cpu" or "gpu", got "tpu"'):
        rayfbnn.predict(tmp_path / "run.zarr", data=np.zeros((1, 2)), device="tpu")
