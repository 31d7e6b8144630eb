"""The regressor predicts what `rayfbnn.predict` does from its store, in the shapes of scikit-learn."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

import rayfbnn
from rayfbnn.sklearn import BayesianNetworkRegressor
from tests.support.sklearn.small import line, numbers_spec, regressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = line()


FRAME, PRICE = pd.DataFrame(X, columns=["a", "b"]), pd.Series(Y, name="price")


@dataclass
class Fit:
    """A fitted estimator, and the warnings of its fit."""

    estimator: BayesianNetworkRegressor
    warned: list[warnings.WarningMessage]


@pytest.fixture(scope="module")
def fit() -> Fit:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        return Fit(regressor().fit(FRAME, PRICE), warned)


@pytest.fixture
def fitted(fit: Fit) -> BayesianNetworkRegressor:
    return fit.estimator


@pytest.fixture(scope="module")
def of_two() -> BayesianNetworkRegressor:
    return regressor().fit(X, np.stack([Y, -10 * Y], axis=1))


def test_predictions_are_those_of_the_store(fitted: BayesianNetworkRegressor) -> None:
    mean, std, quantiles = fitted.predict(FRAME, return_std=True, quantiles=[0.1, 0.5])
    table = rayfbnn.load(fitted.store_, max_mcse=0.02).predict(FRAME).table
    np.testing.assert_allclose(mean, table["price_mean"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, table["price_sd"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(quantiles, [table["price_q10"], table["price_median"]], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(fitted.predict(FRAME), mean)
    assert len(fitted.predict(FRAME, return_std=True)) == 2
    assert fitted.score(FRAME, Y) == r2_score(Y, mean) > 0.9
    assert fitted.summary_.draws == 20


def test_the_columns_of_a_frame_are_remembered(fitted: BayesianNetworkRegressor) -> None:
    assert (fitted.n_features_in_, list(fitted.feature_names_in_)) == (2, ["a", "b"])
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(pd.DataFrame(X, columns=["b", "a"]))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fitted.predict(X)


def test_samples_are_from_the_predictive_distribution(fitted: BayesianNetworkRegressor) -> None:
    frame = FRAME[:3]
    mean, std = fitted.predict(frame, return_std=True)
    samples = fitted.sample_y(frame, 4000, random_state=2)
    assert samples.shape == (3, 4000)
    np.testing.assert_allclose(samples.mean(axis=1), mean, atol=5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(samples.std(axis=1), std, rtol=0.2)
    np.testing.assert_array_equal(fitted.sample_y(frame, 4000, random_state=2), samples)
    assert fitted.sample_y(frame).shape == (3, 1)


def test_several_targets_keep_their_axis(of_two: BayesianNetworkRegressor) -> None:
    mean, std, quantiles = of_two.predict(X, return_std=True, quantiles=(0.2, 0.5, 0.8))
    assert mean.shape == std.shape == (30, 2) and quantiles.shape == (3, 30, 2)
    assert of_two.sample_y(X, 5).shape == (30, 2, 5)
    assert of_two.score(X, np.stack([Y, -10 * Y], axis=1)) > 0.9
    assert std[:, 1].mean() > 3 * std[:, 0].mean()


def test_weights_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="sample_weight: cases cannot be weighted.*repeat the rows"):
        regressor().fit(X, Y, sample_weight=np.ones(30))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sample_weights'"):
        regressor().fit(X, Y, sample_weights=np.ones(30))


def test_a_verdict_that_is_not_ok_says_what_to_do(fit: Fit) -> None:
    (warning,) = fit.warned
    assert warning.category is ConvergenceWarning and warning.filename == __file__
    advice = r"What to do: set chains=4 or more.*set iterations=\d+ \(with warm_start=True.*verdict_ has"
    assert re.match(rf"BayesianNetworkRegressor: .*\. {advice}", str(warning.message))
    assert fit.estimator.verdict_ is not None and not fit.estimator.verdict_.ok


def test_repeated_fits_differ_unless_the_seed_is_given(fitted: BayesianNetworkRegressor) -> None:
    again = clone(fitted).fit(FRAME, PRICE)
    np.testing.assert_array_equal(fitted.predict(FRAME), again.predict(FRAME))
    other = clone(fitted).set_params(random_state=np.random.RandomState(4)).fit(FRAME, PRICE)
    assert (fitted.predict(FRAME) != other.predict(FRAME)).all()
    assert len({regressor(random_state=None)._seed() for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"chains": 0}, "chains"),
        ({"hidden_layer_sizes": (4, -1)}, r"network\.hidden\[1\]\.units"),
        ({"activation": "tan"}, "activation.*did you mean"),
        ({"spec": {"model": {"kind": "class"}}}, r"model\.kind must be real or count or heteroscedastic"),
        ({"spec": 3}, "spec: must be a TOML file, nested dictionaries or a RunSpec, got int"),
        ({"spec": {"data": 3}}, "spec: data must be a table of keys, got 3"),
        ({"until": "ok"}, "max_time: must be given with until"),
        ({"priors": {"ih7": "1:3"}}, "ih7"),
        ({"missing": "mean"}, "missing"),
        ({"alpha": "4"}, 'alpha: must be a number above 0, got "4"'),
        ({"linear_width": -1}, "linear_width: must be a number at least 0, got -1"),
        ({"store": "no/such/folder/run.zarr"}, "there is no folder"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regressor(**parameters).fit(X, Y)


def test_targets_on_a_log_scale_are_predicted_in_their_units() -> None:
    spec = numbers_spec() | {"data": {"transform": {"price": "log"}}}
    on_logs = regressor().fit(FRAME, PRICE)
    fitted = regressor(spec=spec).fit(FRAME, np.exp(PRICE))
    quantiles, logs = (one.predict(FRAME, quantiles=[0.2, 0.5])[1] for one in (fitted, on_logs))
    np.testing.assert_allclose(quantiles, np.exp(logs), rtol=1e-4)
    mean, std = fitted.predict(FRAME, return_std=True)
    assert (mean > quantiles[1]).all() and np.isfinite(std).all()
    with_t = regressor(spec=spec, noise="0.2:0.5::4").fit(FRAME, np.exp(PRICE))
    np.testing.assert_array_equal(with_t.predict(FRAME), with_t.predict(FRAME, quantiles=[0.5])[1][0])
    with pytest.raises(ValueError, match="return_std: price has no standard deviation"):
        with_t.predict(FRAME, return_std=True)
