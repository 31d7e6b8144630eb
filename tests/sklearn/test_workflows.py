"""Estimators work within pipelines, searches over priors and cross-validation, silently."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from rayfbnn.store.store import Store
from tests.support.sklearn.small import classifier, line, numbers_spec, regressor

X, Y = line()
SPEC = numbers_spec(first=2, kept=6)


@pytest.fixture(autouse=True)
def nothing_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    """No test prints or logs anything, or leaves a store behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


def houses() -> tuple[pd.DataFrame, pd.Series]:
    """Areas and towns, and prices that depend on both; the last town is in few rows."""
    generator = np.random.default_rng(2)
    area = generator.uniform(50, 200, size=30)
    town = np.array(["Ayr", "Bath"])[np.arange(30) % 2]
    town[[3, 4]] = "Cork"
    price = 2 * area + 80 * (town == "Bath") + generator.normal(size=30)
    return pd.DataFrame({"area": area, "town": town}), pd.Series(price, name="price")


def test_a_pipeline_with_a_scaler_and_a_one_hot_encoder() -> None:
    frame, price = houses()
    columns = make_column_transformer(
        (StandardScaler(), ["area"]), (OneHotEncoder(sparse_output=False), ["town"])
    )
    pipeline = make_pipeline(columns, regressor()).fit(frame, price)
    assert pipeline.score(frame, price) > 0.9
    assert pipeline.predict(frame, return_std=True)[1].shape == (30,)


def test_text_needs_no_encoder() -> None:
    frame, price = houses()
    estimator = regressor().fit(frame, price)
    assert estimator.score(frame, price) > 0.9
    assert Store.open(estimator.store_).data.input_names == ("area", "town=Ayr", "town=Bath", "town=Cork")
    gaps = frame.assign(area=frame["area"].where(frame.index != 5))
    with pytest.raises(ValueError, match='inputs are missing in 1 of 30 rows.*data.missing = "indicator"'):
        regressor().fit(gaps, price)
    filled = regressor(missing="indicator", spec=SPEC).fit(gaps, price)
    assert np.isfinite(filled.predict(gaps)).all()


def test_a_search_over_priors() -> None:
    """A column that is constant in every fold is left out without a word."""
    grid = {"input_width": np.array([0.5, 2.0]), "priors": [{"io": "-"}]}
    wider = np.hstack([X, np.ones((30, 1))])
    search = GridSearchCV(regressor(spec=SPEC), grid, cv=2).fit(wider, Y)
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_
    written = Store.open(best.store_).spec.network_keys.priors
    assert "io" not in written
    assert written["ih0"] == {0.5: "0.35:4:4", 2.0: "1.4:4:4"}[search.best_params_["input_width"]]
    assert best.n_features_in_ == 3 and best.predict(wider).shape == (30,)


def test_scores_by_cross_validation() -> None:
    labels = np.where(X[:, 0] > 0, "high", "low")
    scores = cross_val_score(classifier(), X, labels, cv=2)
    assert scores.shape == (2,) and scores.mean() > 0.7


def test_rows_of_an_estimator_are_paired_by_position() -> None:
    frame, price = houses()
    order = np.random.default_rng(3).permutation(len(price))
    expected = regressor().fit(frame.iloc[order].reset_index(drop=True), price.to_numpy()[order])
    shuffled, target = frame.iloc[order], price.iloc[order]
    for X in (shuffled, pa.Table.from_pandas(shuffled)):
        for y in (
            target,
            target.to_frame()["price"],
            pa.array(target),
            pa.Table.from_pandas(target.to_frame()),
        ):
            model = regressor().fit(X, y)
            assert list(model.feature_names_in_) == ["area", "town"]
            assert model.predict(X).reshape(-1).tolist() == expected.predict(shuffled).tolist()
            assert model.score(X, y) == expected.score(shuffled, target)
    for act in (regressor().fit, expected.score):
        with pytest.raises(ValueError, match="the rows of X and y have different labels, first in row 1"):
            act(shuffled, price)
    with pytest.raises(ValueError, match="different labels"):
        classifier().fit(shuffled[["area"]], price.sort_values() > 200)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        regressor().fit(shuffled, target[:-1])


def test_an_arrow_table_of_numbers_keeps_the_names_of_its_columns() -> None:
    frame = pd.DataFrame(X, columns=["b", "a"], index=np.arange(len(X))[::-1])
    model = regressor().fit(pa.Table.from_pandas(frame), Y)
    assert model.n_features_in_ == 2 and list(model.feature_names_in_) == ["b", "a"]
    assert model.predict(frame).tolist() == model.predict(pa.Table.from_pandas(frame)).tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pa.Table.from_pandas(frame[["a", "b"]]))
