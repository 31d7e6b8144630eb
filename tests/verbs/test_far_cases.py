"""New cases that are too large for the network's arithmetic are refused, by row and column."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api, cli
from rayfbnn.errors import DataError
from rayfbnn.sklearn import BayesianNetworkRegressor
from tests.support.small import small_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}
FAR = ["1e200", "-1e308", "1e39", "1e30", "-2e20"]
NO_NUMBERS = ["inf", "-inf", "-1e400", "1e400", "9" * 400]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in float32 in run.zarr."""
    folder = tmp_path_factory.mktemp("far")
    api.sample(small_spec(folder), folder / "run.zarr", **HERE)
    (folder / "tiny").mkdir()
    return folder


def with_cell(folder: Path, path: Path, column: str, text: str) -> Path:
    """Write the training cases with one cell of row 3 replaced, and return the file."""
    table = pd.read_csv(folder / "train.csv", dtype=str)
    table.loc[2, column] = text
    table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("text", FAR + NO_NUMBERS)
@pytest.mark.parametrize("column", ["x1", "x2", "y"])
def test_predict_refuses_a_far_cell_and_writes_nothing(
    folder: Path, tmp_path: Path, text: str, column: str
) -> None:
    data = with_cell(folder, tmp_path / "new.csv", column, text)
    out = tmp_path / "out.csv"
    arguments = ["predict", str(folder / "run.zarr"), "--data", str(data), "--out", str(out)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2, result.output
    assert f"new.csv: row 3, column {column}" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize("text", FAR)
@pytest.mark.parametrize(
    "verb",
    [
        lambda store, data, out: api.diagnose(store, data=data),
        lambda store, data, out: api.plot(store, data=data, out=out / "plots"),
        lambda store, data, out: api.report(store, data=data, out=out / "r.html", progress=False),
        lambda store, data, out: api.function_values(store, data=data),
        lambda store, data, out: api.predict(store, data=data, contributions=True),
        lambda store, data, out: api.load(store, draws=8).predict(data),
    ],
    ids=["diagnose", "plot", "report", "function_values", "contributions", "load"],
)
def test_every_verb_that_takes_new_cases_refuses_a_far_one(
    folder: Path, tmp_path: Path, verb: Any, text: str
) -> None:
    data = with_cell(folder, tmp_path / "new.csv", "x2", text)
    with pytest.raises(DataError, match=r"row 3, column x2: .*too large for float32 arithmetic"):
        verb(folder / "run.zarr", data, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.parametrize("value", [1e200, -1e308, 1e30])
@pytest.mark.parametrize("method", ["predict", "mean", "quantiles", "sample"])
def test_a_predictor_in_memory_refuses_a_far_row(folder: Path, method: str, value: float) -> None:
    predictor = api.load(folder / "run.zarr", draws=8)
    more: dict[str, Any] = {"quantiles": {"probabilities": [0.5]}, "sample": {"n_samples": 1, "seed": 1}}
    call = getattr(predictor, method)
    rows = [[0.1, 0.2], [0.3, value]]
    for cases in (rows, np.array(rows), pd.DataFrame(rows, columns=["x1", "x2"])):
        with pytest.raises(DataError, match="row 2, column x2: .*too large for float32"):
            call(cases, **more.get(method, {}))
    with pytest.raises(DataError, match="row 1, column x1"):
        call([value, 0.1], **more.get(method, {}))


@pytest.mark.parametrize("value", [10**400, float("inf"), float("-inf")])
def test_a_predictor_in_memory_refuses_what_is_no_finite_number(folder: Path, value: float) -> None:
    with pytest.raises(DataError, match="row 2, column x2: not a finite number"):
        api.load(folder / "run.zarr", draws=8).predict([[0.1, 0.2], [0.3, value]])


@pytest.mark.parametrize("value", [1e200, 1e300, -1e308])
@pytest.mark.parametrize("as_frame", [True, False])
def test_an_estimator_raises_a_value_error_that_names_row_and_column(
    regressor: BayesianNetworkRegressor, value: float, as_frame: bool
) -> None:
    X: Any = np.array([[0.1, 0.2], [value, 0.1]])
    X = pd.DataFrame(X, columns=["x1", "x2"]) if as_frame else X
    for predict in (regressor.predict, regressor.sample_y):
        with pytest.raises(ValueError, match="row 2, column x1: .*too large for float64"):
            predict(X)


@pytest.fixture(scope="module")
def regressor() -> BayesianNetworkRegressor:
    X = np.linspace(-1, 1, 24).reshape(12, 2)
    estimator = BayesianNetworkRegressor([2], random_state=1, chains=2, iterations=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws are not judged
        return estimator.fit(X, X.sum(axis=1))


def test_a_tiny_scale_makes_a_modest_value_too_large(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    table = pd.read_csv(tmp_path / "train.csv")
    table["x1"] *= 1e-25
    table.to_csv(tmp_path / "train.csv", index=False)
    api.sample(spec, tmp_path / "run.zarr", **HERE)
    with pytest.raises(DataError, match=r"row 1, column x1: 1, .* once standardised, is beyond 1.8e\+19"):
        api.predict(tmp_path / "run.zarr", data=pd.DataFrame({"x1": [1.0], "x2": [0.5]}))


@pytest.mark.parametrize("value", [1e17, -1e18])
def test_no_infinity_is_predicted_for_a_case_that_is_just_within_reach(folder: Path, value: float) -> None:
    cases = pd.DataFrame({"x1": [0.1, value], "x2": [0.2, 0.3], "y": [0.0, 1.0]})
    try:
        prediction = api.predict(folder / "run.zarr", data=cases, contributions=True)
    except DataError as exc:
        assert "row 2, column x1" in str(exc)
    else:
        assert not np.isinf(prediction.table.to_numpy(dtype=float)).any()


@pytest.mark.parametrize("value", [1e140, 1e152, -1e150])
def test_a_prediction_that_overflows_is_refused_in_float64_too(tmp_path: Path, value: float) -> None:
    spec = small_spec(tmp_path, dtype="float64", network__hidden=[{"units": 3, "activation": "identity"}])
    api.sample(spec, tmp_path / "run.zarr", **HERE)
    cases = pd.DataFrame({"x1": [0.1, 0.3], "x2": [0.2, value], "y": [0.0, value]})
    try:
        prediction = api.predict(tmp_path / "run.zarr", data=cases)
    except DataError as exc:
        assert "row 2, column" in str(exc)
    else:
        assert np.isfinite(prediction.table.to_numpy(dtype=float)).all()


def test_compare_refuses_far_test_cases_before_anything_is_fitted(folder: Path, tmp_path: Path) -> None:
    data = with_cell(folder, tmp_path / "new.csv", "x1", "1e200")
    with pytest.raises(DataError, match="row 3, column x1"):
        rayfbnn.compare(small_spec(folder), tmp_path / "out", data=data, methods="hmc", **HERE)
    assert not (tmp_path / "out").exists()
