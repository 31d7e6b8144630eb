"""Answers for targets on a log scale: those of a run whose targets were logged by hand, and exact moments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.answers.distances import scores
from rayfbnn.answers.effects import columns_of, partial_dependence, permutation_shares, value_names
from rayfbnn.answers.errors_by_iteration import errors_by_iteration
from rayfbnn.answers.measures import places
from rayfbnn.draws.fits import fit_summary
from rayfbnn.draws.quantities import functions_at, noise_sigmas
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import StoreMismatchError
from rayfbnn.reduce.effective import mcse_mean
from rayfbnn.reduce.passes import TasksInProcess
from rayfbnn.store.store import Store
from tests.support.pages import ROOT, block_named
from tests.support.small import small

HERE: dict[str, Any] = {"workers": 0, "progress": False}
NOISE = {
    "gaussian": {"kind": "real", "noise": "0.3:3"},
    "t": {"kind": "real", "noise": "0.3:3::4"},
    "heteroscedastic": {"kind": "heteroscedastic", "noise_floor": 0.05},
}
QUANTILES = ["median", "q01", "q10", "q90", "q99"]


def table_of(n_cases: int, seed: int) -> pd.DataFrame:
    """Two inputs, a log-normal price, and a Gaussian size; the price of the third case is missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_cases, 2))
    price = np.exp(8 + 0.8 * x[:, 0] + 0.4 * rng.normal(size=n_cases))
    price[2] = np.nan
    size = 100 + 20 * x[:, 1] + 5 * rng.normal(size=n_cases)
    return pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "price": price, "size": size})


TRAIN, TEST = table_of(30, 5), table_of(12, 6)
BY_HAND = [table.assign(price=np.log(table["price"])) for table in (TRAIN, TEST)]


@pytest.fixture(scope="module", params=NOISE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The name of the noise, a run with a log scale, and one whose prices were logged by hand."""
    folder = tmp_path_factory.mktemp("runs")
    keys = small(model=NOISE[request.param], dtype="float64", data__targets=["price", "size"])
    keys["data"] = {"targets": ["price", "size"], "standardize": ["inputs", "targets"]}
    rayfbnn.sample(keys, folder / "hand.zarr", data=BY_HAND[0], **HERE)
    keys["data"]["transform"] = {"price": "log"}
    rayfbnn.sample(keys, folder / "log.zarr", data=TRAIN, **HERE)
    return request.param, folder / "log.zarr", folder / "hand.zarr"


def drawn(path: Path) -> Draws:
    return committed(Store.open(path))


def test_draws_are_those_of_targets_logged_by_hand(pair: Any) -> None:
    _, log, hand = pair
    np.testing.assert_array_equal(drawn(log).positions(), drawn(hand).positions())
    np.testing.assert_array_equal(drawn(log).precisions(), drawn(hand).precisions())
    resumed = rayfbnn.resume(log, iterations=14, workers=0, progress=False)
    assert resumed is not None
    rayfbnn.resume(hand, iterations=14, workers=0, progress=False)
    np.testing.assert_array_equal(drawn(log).positions(), drawn(hand).positions())


def test_quantiles_densities_and_places_are_converted(pair: Any) -> None:
    noise, log, hand = pair
    found = rayfbnn.predict(log, data=TEST)
    expected = rayfbnn.predict(hand, data=BY_HAND[1])
    for name in QUANTILES:
        np.testing.assert_allclose(found.table[f"price_{name}"], np.exp(expected.table[f"price_{name}"]))
        np.testing.assert_array_equal(found.table[f"size_{name}"], expected.table[f"size_{name}"])
    log_price = np.nan_to_num(BY_HAND[1]["price"].to_numpy())
    by_case = expected.table["log_probability"] - log_price
    np.testing.assert_allclose(found.table["log_probability"], by_case, rtol=1e-12)
    mean = expected.summary["log_probability"] - log_price.mean()
    assert found.summary["log_probability"] == pytest.approx(mean, rel=1e-12)
    columns = ["price", "size"]
    at = [
        places([drawn(path)], table[["x1", "x2"]].to_numpy(), table[columns].to_numpy())
        for path, table in ((log, TEST), (hand, BY_HAND[1]))
    ]
    np.testing.assert_array_equal(at[0].low, at[1].low)


def test_the_fit_is_judged_on_the_log_scale(pair: Any) -> None:
    _, log, hand = pair
    judged = [rayfbnn.predict(log, data=TEST).fit, rayfbnn.predict(hand, data=BY_HAND[1]).fit]
    assert judged[0] is not None and judged[0] == judged[1]
    assert rayfbnn.diagnose(log).fit == rayfbnn.diagnose(hand).fit


def moments_of_draws(path: Path) -> tuple[Any, Any]:
    """Means and variances of log prices given each draw at the test cases, (n_chains, n_draws, n_cases)."""
    run = drawn(path)
    values = functions_at(run, TEST[["x1", "x2"]].to_numpy())
    scale = run.data.target_scale[0]
    if run.spec.data_model.kind == "heteroscedastic":
        return values[..., 0], (0.05 * scale) ** 2 + np.exp(-values[..., 2])
    variances = np.square(scale * noise_sigmas(run)[0])
    return values[..., 0], np.broadcast_to(variances[..., None], values.shape[:3])


def test_moments_are_those_of_a_mixture_of_log_normal_distributions(pair: Any) -> None:
    noise, log, _ = pair
    prediction = rayfbnn.predict(log, data=TEST)
    table = prediction.table
    prices = TEST["price"].to_numpy()
    if noise == "t":
        assert not {"price_mean", "price_sd", "price_mean_mcse"} & set(table)
        assert {"size_mean", "size_sd", "size_mean_mcse"} <= set(table)
        point = table["price_median"]
    else:
        m, u = moments_of_draws(log)
        means = np.exp(m + u / 2)
        variance = (means**2 * np.expm1(u)).mean(axis=(0, 1)) + means.var(axis=(0, 1))
        np.testing.assert_allclose(table["price_mean"], means.mean(axis=(0, 1)), rtol=1e-10)
        np.testing.assert_allclose(table["price_sd"], np.sqrt(variance), rtol=1e-10)
        expected = mcse_mean(np.moveaxis(means, 2, 0))
        np.testing.assert_allclose(table["price_mean_mcse"], expected, rtol=1e-8)
        point = table["price_mean"]
    errors = point - prices
    assert prediction.summary["price_rmse"] == pytest.approx(np.sqrt(np.nanmean(errors**2)), rel=1e-10)
    of_size = np.square(table["size_mean"] - TEST["size"])
    np.testing.assert_allclose(table["squared_error"], np.nan_to_num(errors**2) + of_size, rtol=1e-10)
    of_median = np.abs(table["price_median"] - prices).fillna(0) + np.abs(table["size_median"] - TEST["size"])
    np.testing.assert_allclose(table["absolute_error"], of_median, rtol=1e-10)


def test_a_target_without_a_mean_is_named(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    noise, log, _ = pair
    rayfbnn.predict(log, data=TEST)
    words = "price has t noise on a log scale and so no mean: its prediction is price_median"
    assert (words in caplog.text) == (noise == "t")


def test_runs_with_and_without_a_log_scale_are_not_pooled(pair: Any, tmp_path: Path) -> None:
    noise, log, _ = pair
    keys = small(model=NOISE[noise], dtype="float64", seed=9)
    keys["data"] = {"targets": ["price", "size"], "standardize": ["inputs", "targets"]}
    rayfbnn.sample(keys, tmp_path / "plain.zarr", data=TRAIN, **HERE)
    with pytest.raises(StoreMismatchError, match=r"data\.transform"):
        rayfbnn.predict([log, tmp_path / "plain.zarr"], data=TEST)
    assert len(rayfbnn.loo([log, tmp_path / "plain.zarr"], workers=0).table) == 2  # one density: the price's


def test_predictors_agree_with_predict(pair: Any) -> None:
    noise, log, hand = pair
    table = rayfbnn.predict(log, data=TEST).table
    predictor, other = (rayfbnn.load(path, max_mcse=0) for path in (log, hand))
    x = TEST[["x1", "x2"]].to_numpy()
    points = table[["price_median" if noise == "t" else "price_mean", "size_mean"]]
    np.testing.assert_allclose(predictor.mean(x), points, rtol=1e-9)
    np.testing.assert_allclose(
        predictor.quantiles(x, [0.1, 0.99])[:, :, 0], table[["price_q10", "price_q99"]].T
    )
    samples, of_other = predictor.sample(x, 50, seed=3), other.sample(x, 50, seed=3)
    np.testing.assert_allclose(samples[..., 0], np.exp(of_other[..., 0]))
    np.testing.assert_array_equal(samples[..., 1], of_other[..., 1])


def test_the_page_predicts_from_an_exported_file(pair: Any, tmp_path: Path) -> None:
    noise, log, _ = pair
    names: dict[str, Any] = {}
    exec(block_named(ROOT / "docs" / "serving.md", "name: numpy-page"), names)
    file = rayfbnn.export(log, out=tmp_path / "model.npz", max_mcse=0)
    description, arrays = names["load"](file)
    assert (description["format_version"], description["log_targets"]) == (2, ["price"])
    result = names["predict"](description, arrays, TEST[["x1", "x2"]].to_numpy())
    table = rayfbnn.predict(log, data=TEST).table
    for name in ("mean", "sd"):
        columns = [f"price_{name}", f"size_{name}"]
        if noise == "t":
            assert np.isnan(result[name][:, 0]).all()
        expected = table.reindex(columns=columns)
        np.testing.assert_allclose(result[name], expected, rtol=1e-6)
    if noise != "t":
        np.testing.assert_allclose(result["quantiles"][0.9], table[["price_q90", "size_q90"]], rtol=1e-6)


def test_left_out_densities_have_the_jacobian(pair: Any) -> None:
    _, log, hand = pair
    found, expected = (rayfbnn.loo(path, workers=0) for path in (log, hand))
    log_price = np.nansum(BY_HAND[0]["price"])
    assert found.elpd == pytest.approx(expected.elpd - log_price, rel=1e-10)
    groups = ["log_likelihood", "posterior_predictive"]
    tree, other = (rayfbnn.to_datatree(path, groups=groups) for path in (log, hand))
    total, of_other = (one["log_likelihood/targets"].sum("observation") for one in (tree, other))
    np.testing.assert_allclose(total, of_other - log_price, rtol=1e-10)
    drawn_prices, logs = (one["posterior_predictive/targets"][..., 0] for one in (tree, other))
    np.testing.assert_allclose(drawn_prices, np.exp(logs), rtol=1e-10)


def test_scores_of_comparisons_are_in_the_units_of_the_file(pair: Any) -> None:
    noise, log, _ = pair
    x, y = TEST[["x1", "x2"]].to_numpy(), TEST[["price", "size"]].to_numpy()
    of_run = scores(drawn(log), x, y, executor=TasksInProcess(), memory_bytes=64e6)
    table = rayfbnn.predict(log, data=TEST).table
    np.testing.assert_allclose(of_run["squared_error"], table["squared_error"], rtol=1e-9)
    np.testing.assert_allclose(of_run["log_probability"], table["log_probability"], rtol=1e-9)
    samples = rayfbnn.load(log, max_mcse=0).sample(x, 4000, seed=2)[:, :, 0]
    case = 4
    by_samples = np.abs(samples[:, case] - y[case, 0]).mean()
    by_samples -= np.abs(samples[::2, case] - samples[1::2, case]).mean() / 2
    if noise != "t":  # t samples have no mean
        assert of_run["crps"][case, 0] == pytest.approx(by_samples, rel=0.15)


def test_functions_and_contributions_are_logarithms_by_name(pair: Any) -> None:
    noise, log, hand = pair
    found, expected = (rayfbnn.function_values(path, data=TEST) for path in (log, hand))
    np.testing.assert_array_equal(found, expected)
    assert list(found.function.values)[:2] == ["log(price)", "size"]
    table = rayfbnn.predict(log, data=TEST, contributions=True).table
    total = sum(table[f"log(price)_from_{source}_mean"] for source in ("h0", "bias"))
    of_draws = found.sel(function="log(price)").mean(("chain", "draw"))
    np.testing.assert_allclose(total, of_draws, rtol=1e-9)


def test_effects_are_averages_of_logarithms(pair: Any) -> None:
    _, log, hand = pair
    x = TEST[["x1", "x2"]].to_numpy()
    run, other = drawn(log), drawn(hand)
    assert value_names(run)[:2] == ["geometric mean of price", "mean of size"]
    column = columns_of(run)[0]
    found, expected = partial_dependence(run, x, column), partial_dependence(other, x, column)
    for name in ("mean", "low", "high"):
        values, logs = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(values[:, 0], np.exp(logs[:, 0]))
        np.testing.assert_array_equal(values[:, 1], logs[:, 1])
    shares = [permutation_shares(one, x, columns_of(one)) for one in (run, other)]
    np.testing.assert_array_equal(*shares)


def test_errors_by_iteration_end_at_the_errors_of_all_draws(pair: Any) -> None:
    noise, log, _ = pair
    run = drawn(log)
    x, y = TEST[["x1", "x2"]].to_numpy()[4:], TEST[["price", "size"]].to_numpy()[4:]
    errors = errors_by_iteration(run, x, y)
    assert errors is not None and errors.measure == "squared_error"
    course = errors.kept
    if noise != "t":
        expected = rayfbnn.predict(log, data=TEST[4:]).summary["squared_error"]
        assert course.together[-1] == pytest.approx(expected, rel=1e-8)
    assert np.isfinite(course.of_draws).all()


def test_log_normal_prices_are_predicted_with_their_moments(tmp_path: Path) -> None:
    """The mean of 1000 equal cases is exp(2 + 0.5**2 / 2), and their sd that times sqrt(exp(0.25) - 1).

    The posterior sd of the mean of the logarithms is 0.016, and the relative one of the noise 0.022.
    """
    rng = np.random.default_rng(7)
    x = rng.normal(size=(1000, 1))
    table = {"x": x[:, 0], "y": np.exp(2 + 0.5 * rng.normal(size=1000))}
    keys = {
        "seed": 3, "chains": 4,
        "data": {"targets": ["y"], "transform": {"y": "log"}, "standardize": ["inputs", "targets"]},
        "model": {"kind": "real", "noise": "1:0.5"},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "phase": [{"iterations": 120, "operations": [
            {"op": "sample-noise"}, {"op": "heatbath"}, {"op": "hybrid", "steps": 10, "stepsize": 0.3}]}],
    }  # fmt: skip
    rayfbnn.sample(keys, tmp_path / "run.zarr", data=table, **HERE)
    prediction = rayfbnn.predict(tmp_path / "run.zarr", data=table, skip=20)
    mean, factor = np.exp(2 + 0.125), np.sqrt(np.expm1(0.25))
    at = np.abs(x[:, 0]) < 0.5
    assert prediction.table["y_mean"][at].to_numpy() == pytest.approx(mean, rel=0.1)  # 5 sd
    assert prediction.table["y_sd"][at].to_numpy() == pytest.approx(mean * factor, rel=0.16)
    assert prediction.table["y_median"][at].to_numpy() == pytest.approx(np.exp(2), rel=0.08)
    inside = (table["y"] > prediction.table["y_q10"]) & (table["y"] < prediction.table["y_q90"])
    assert abs(inside.mean() - 0.8) < 4 * np.sqrt(0.16 / 1000)
    log_density = -0.5 * np.log(2 * np.pi * np.e * 0.25) - 2
    assert prediction.summary["log_probability"] == pytest.approx(log_density, abs=0.12)
    assert re.search(r"y on a log scale", rayfbnn.show(tmp_path / "run.zarr"))


def test_an_approximation_has_the_evidence_of_the_targets_themselves(tmp_path: Path) -> None:
    """Its predictions, which are linear about modes, are converted as well."""
    table = TRAIN.drop(columns="size").assign(price=TRAIN["price"].fillna(3000.0))
    by_hand = table.assign(price=np.log(table["price"]))
    keys = small(dtype="float64") | {"methods": {"laplace": {"starts": 2, "draws": 50, "steps": 10}}}
    keys["data"] = {"targets": ["price"], "standardize": ["inputs", "targets"]}
    for name, data, transform in (("hand", by_hand, {}), ("log", table, {"transform": {"price": "log"}})):
        keys["data"] |= transform
        rayfbnn.sample(keys, tmp_path / name, data=data, method="laplace", **HERE)
    found, expected = (Store.open(tmp_path / name) for name in ("log", "hand"))
    evidence = fit_summary(expected).log_evidence - by_hand["price"].sum()
    np.testing.assert_allclose(fit_summary(found).log_evidence, evidence, rtol=1e-10)
    tables = [rayfbnn.predict(tmp_path / name, data=TEST).table for name in ("log", "hand")]
    np.testing.assert_allclose(tables[0]["price_q90"], np.exp(tables[1]["price_q90"]))
    assert (tables[0]["price_mean"] > tables[0]["price_median"]).all()
