"""Counts with an exposure: their likelihood and predictions, and the messages about the column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.answers.effects import columns_of
from rayfbnn.answers.measures import places
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import posterior_of
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.model.layout import ParameterLayout
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.pages import ROOT, block_named
from tests.support.small import small

HERE: dict[str, Any] = {"workers": 0, "progress": False}


def table_of(n_cases: int, seed: int) -> pd.DataFrame:
    """Two inputs, days from 0.5 to 30, and claims at a rate of exp(-1 + 0.5 x1) a day; one is missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_cases, 2))
    days = np.exp(rng.uniform(np.log(0.5), np.log(30), size=n_cases))
    claims = rng.poisson(days * np.exp(-1 + 0.5 * x[:, 0])).astype(float)
    claims[3] = np.nan
    return pd.DataFrame({"x1": x[:, 0], "days": days, "x2": x[:, 1], "claims": claims})


TRAIN, TEST = table_of(30, 1), table_of(12, 2)


def keys_of(**data: Any) -> dict[str, Any]:
    keys = small(dtype="float64", model={"kind": "count"})
    del keys["phase"][0]["operations"][0]  # there is no noise to sample
    keys["data"] = {"targets": ["claims"], "standardize": ["inputs"], "exposure": "days"} | data
    return keys


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run.zarr"
    rayfbnn.sample(keys_of(), path, data=TRAIN, **HERE)
    return path


def drawn(path: Path) -> Draws:
    return committed(Store.open(path))


def rates_by_hand(run: Draws, table: pd.DataFrame) -> Array:
    """Days times exp of the network written out, (draws of all chains, n_cases)."""
    x = table[["x1", "x2"]].to_numpy()
    x = (x - run.data.input_center[:2]) / run.data.input_scale[:2]
    w = ParameterLayout.from_network(run.spec.network).views(run.positions())
    hidden = np.tanh(np.einsum("ni,cdih->cdnh", x, w["ih0"]) + w["bh0"][:, :, None])
    outputs = np.einsum("cdnh,cdho->cdno", hidden, w["ho0"]) + w["bo"][:, :, None]
    return table["days"].to_numpy() * np.exp(outputs[..., 0]).reshape(-1, len(table))


def test_the_exposure_has_no_weights_and_its_logarithm_is_an_input(store: Path) -> None:
    run = drawn(store)
    assert run.data.input_names == ("x1", "x2", "log(days)")
    np.testing.assert_array_equal(run.data.inputs[:, 2], np.log(TRAIN["days"]))
    assert (run.data.input_center[2], run.data.input_scale[2]) == (0, 1)
    groups = {group.name: group for group in run.spec.network.groups()}
    assert groups["ih0"].shape == (2, 3) and groups["ih0"].omitted == (2,)
    assert [column.name for column in columns_of(run)] == ["x1", "x2"]


def test_the_likelihood_is_that_of_exposure_times_rate(store: Path) -> None:
    run = drawn(store)
    posterior = posterior_of(run)
    positions = run.positions().reshape(-1, posterior.n_parameters)
    precisions = run.precisions().reshape(len(positions), -1)
    is_known = TRAIN["claims"].notna().to_numpy()
    rates = rates_by_hand(run, TRAIN)[:, is_known]
    expected = scipy.stats.poisson.logpmf(TRAIN["claims"][is_known], rates).sum(axis=1)
    np.testing.assert_allclose(posterior.log_likelihood(positions, precisions), expected, rtol=1e-10)
    stored = run.store.read_stat("log_likelihood", slice(None), slice(None), committed=run.n_draws)
    np.testing.assert_allclose(stored.ravel(), expected, rtol=1e-10)


def test_the_gradient_is_the_central_difference(store: Path) -> None:
    run = drawn(store)
    posterior = posterior_of(run)
    position, precisions = run.positions()[:1, 0], run.precisions()[:1, 0]
    gradient = posterior.potential_and_gradient(position, precisions)[1]
    for number in range(posterior.n_parameters):
        step = np.zeros_like(position)
        step[0, number] = 1e-5
        ends = [posterior.potential(position + sign * step, precisions)[0] for sign in (1, -1)]
        assert gradient[0, number] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-5)


def test_predictions_are_those_of_the_mixture(store: Path) -> None:
    run = drawn(store)
    prediction = rayfbnn.predict(store, data=TEST, contributions=True)
    table, rates = prediction.table, rates_by_hand(run, TEST)
    np.testing.assert_allclose(table["claims_mean"], rates.mean(axis=0), rtol=1e-10)
    sd = np.sqrt(rates.var(axis=0) + rates.mean(axis=0))
    np.testing.assert_allclose(table["claims_sd"], sd, rtol=1e-10)
    k = np.arange(3000)
    for case in range(len(TEST)):
        mass = scipy.stats.poisson.pmf(k[:, None], rates[None, :, case]).mean(axis=1)
        assert table["claims_q90"][case] == np.searchsorted(mass.cumsum(), 0.9)
        assert table["claims_mode"][case] == mass.argmax()
    log_densities = scipy.stats.poisson.logpmf(TEST["claims"], rates)
    expected = scipy.special.logsumexp(log_densities, axis=0) - np.log(len(rates))
    np.testing.assert_allclose(table["log_probability"], np.where(TEST["claims"].isna(), np.nan, expected))
    parts = [name for name in table if "_from_" in name and name.endswith("_mean")]
    np.testing.assert_allclose(table[parts].sum(axis=1), np.log(rates).mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(table["log_rate_claims_from_exposure_mean"], np.log(TEST["days"]))
    x, y = run.data.inputs, run.data.targets
    placed = places([run], x, y)
    cdf = scipy.stats.poisson.cdf(TRAIN["claims"], rates_by_hand(run, TRAIN)).mean(axis=0)
    np.testing.assert_allclose(placed.high[:, 0], np.where(TRAIN["claims"].isna(), np.nan, cdf), rtol=1e-8)


def test_predictors_loo_and_samples_use_the_exposure(store: Path, tmp_path: Path) -> None:
    run, table = drawn(store), rayfbnn.predict(store, data=TEST).table
    predictor = rayfbnn.load(store, max_mcse=0)
    assert predictor.columns == ("x1", "x2", "days")
    np.testing.assert_allclose(predictor.mean(TEST)[:, 0], table["claims_mean"], rtol=1e-10)
    array = TEST[["x1", "x2", "days"]].to_numpy()
    np.testing.assert_allclose(predictor.mean(array)[:, 0], table["claims_mean"], rtol=1e-10)
    samples = predictor.sample(TEST, 4000, seed=1)[:, :, 0]
    error = samples.std(axis=0) / np.sqrt(4000)
    assert (np.abs(samples.mean(axis=0) - table["claims_mean"]) < 5 * error).all()
    densities = scipy.stats.poisson.logpmf(TRAIN["claims"], rates_by_hand(run, TRAIN))
    tree = rayfbnn.to_datatree(store, groups=["log_likelihood"])
    by_draw = np.delete(densities, 3, axis=1).reshape(run.n_chains, run.n_draws, -1)
    np.testing.assert_allclose(tree["log_likelihood/targets"], by_draw, rtol=1e-10)
    assert np.isfinite(rayfbnn.loo(store, workers=0).elpd)
    names: dict[str, Any] = {}
    exec(block_named(ROOT / "docs" / "serving.md", "name: numpy-page"), names)
    description, arrays = names["load"](rayfbnn.export(store, out=tmp_path / "model.npz", max_mcse=0))
    assert (description["format_version"], description["added_input"]) == (2, 2)
    inputs = names["encode"](description, TEST.to_dict("records"))
    result = names["predict"](description, arrays, inputs)
    np.testing.assert_allclose(result["mean"][:, 0], table["claims_mean"], rtol=1e-6)
    np.testing.assert_allclose(result["sd"][:, 0], table["claims_sd"], rtol=1e-6)


def test_the_rate_is_recovered(tmp_path: Path) -> None:
    """Under one rate for all cases with a flat prior, it has the posterior Gamma(sum y, sum days)."""
    rng = np.random.default_rng(4)
    days = rng.uniform(1, 20, size=200)
    table = {"x": rng.normal(size=200), "days": days, "y": rng.poisson(0.7 * days)}
    keys = {
        "seed": 2, "chains": 8, "dtype": "float64",
        "data": {"targets": ["y"], "exposure": "days"}, "model": {"kind": "count"},
        "network": {"hidden": [], "priors": {"bo": "100"}},
        "phase": [{"iterations": 500, "operations": [
            {"op": "heatbath"}, {"op": "hybrid", "steps": 5, "stepsize": 0.4}]}],
    }  # fmt: skip
    rayfbnn.sample(keys, tmp_path / "run.zarr", data=table, **HERE)
    rates = np.exp(drawn(tmp_path / "run.zarr").positions()[:, 100:, 0]).ravel()
    n, total = table["y"].sum(), days.sum()
    assert abs(rates.mean() - n / total) < 6 * np.sqrt(n) / total / np.sqrt(500)
    assert rates.std() == pytest.approx(np.sqrt(n) / total, rel=0.15)
    mean = rayfbnn.predict(tmp_path / "run.zarr", data={"x": [0, 0], "days": [1.0, 10.0]}).table["y_mean"]
    assert mean[1] == pytest.approx(10 * mean[0], rel=1e-10)


@pytest.mark.parametrize("method", ["laplace", "bbb"])
def test_approximations_use_the_exposure(method: str, tmp_path: Path) -> None:
    settings = {
        "laplace": {"starts": 2, "draws": 20, "steps": 8},
        "bbb": {"starts": 2, "draws": 20, "steps": 20},
    }
    keys = keys_of() | {"methods": {method: settings[method]}}
    rayfbnn.sample(keys, tmp_path / "run.zarr", data=TRAIN, method=method, **HERE)
    twice = TEST.assign(days=2 * TEST["days"])
    means = [
        rayfbnn.predict(tmp_path / "run.zarr", data=table).table["claims_mean"] for table in (TEST, twice)
    ]
    np.testing.assert_allclose(means[1], 2 * means[0], rtol=1e-8)


def test_parts_of_the_cases_carry_their_exposure(tmp_path: Path, store: Path) -> None:
    keys = keys_of(parts=3, shuffle=False)
    keys["phase"] = [{"iterations": 4, "operations": [
        {"op": "sample-sigmas"}, {"op": "heatbath"},
        {"op": "hybrid", "steps": 6, "stepsize": 0.2, "partitions": 3, "order": "cyclic"}]}]  # fmt: skip
    whole = keys_of()
    whole["phase"] = keys["phase"]
    for name, tables in (("parts", keys), ("whole", whole)):
        rayfbnn.sample(tables, tmp_path / name, data=TRAIN, **HERE)
    runs = [drawn(tmp_path / name) for name in ("parts", "whole")]
    np.testing.assert_allclose(runs[0].positions(), runs[1].positions(), rtol=1e-7, atol=1e-9)


def test_a_resumed_run_has_the_draws_of_a_longer_one(store: Path, tmp_path: Path) -> None:
    keys = keys_of()
    keys["phase"][-1]["iterations"] = 6
    rayfbnn.sample(keys, tmp_path / "run.zarr", data=TRAIN, **HERE)
    rayfbnn.resume(tmp_path / "run.zarr", iterations=10, workers=0, progress=False)
    np.testing.assert_array_equal(drawn(tmp_path / "run.zarr").positions(), drawn(store).positions())


def test_show_says_what_the_exposure_does(store: Path) -> None:
    text = rayfbnn.show(store)
    assert "Network: 2 inputs - 3 tanh - 1 output" in text
    assert "input days: its logarithm is added to the outputs" in text
    assert "an exposure" in text  # why array code runs


@pytest.mark.parametrize(
    ("days", "message"),
    [
        ([1.0, 0.0, 2.0], "data: row 2, column days: an exposure must be a number above 0, got 0; correct"),
        ([1.0, 2.0, -3.0], "data: row 3, column days: an exposure must be a number above 0, got -3"),
        ([1.0, None, 2.0], "data: row 2, column days: an exposure must be a number above 0, got 'nan'"),
        (["1", "many", "2"], "data: row 2, column days: an exposure must be a number above 0, got 'many'"),
        (None, r"data: no column named days, the exposure \(data.exposure\); give each case its exposure"),
    ],
)
def test_a_wrong_exposure_is_named(days: Any, message: str, store: Path, tmp_path: Path) -> None:
    table = {"x1": [0.0, 1.0, 0.5], "x2": [1.0, 0.0, 2.0], "claims": [1, 0, 3]}
    if days is not None:
        table["days"] = days
    with pytest.raises(DataError, match=message):
        rayfbnn.sample(keys_of(), tmp_path / "run.zarr", data=table, **HERE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=message):
        rayfbnn.predict(store, data=table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"targets": ["claims"], "exposure": "claims"}},
            'data.exposure: "claims" is also an input or',
        ),
        ({"data": {"targets": ["claims"], "exposure": 3}}, "data.exposure: must be the name of a column"),
        (
            {"model": {"kind": "binary"}},
            'data.exposure: only counts have an exposure, got "days" with model.kind',
        ),
    ],
)
def test_wrong_keys_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunSpec.from_dict(keys_of() | changes)


def test_offsets_of_the_inputs_cannot_be_combined_with_an_exposure(tmp_path: Path) -> None:
    keys = keys_of()
    keys["network"]["priors"]["ti"] = "1"
    with pytest.raises(ConfigError, match="data.exposure: cannot be combined with offsets of the inputs"):
        rayfbnn.sample(keys, tmp_path / "run.zarr", data=TRAIN, **HERE)


def test_the_key_can_be_set_in_the_shell(tmp_path: Path) -> None:
    TRAIN.to_csv(tmp_path / "train.csv", index=False)
    text = '[data]\ntrain = "train.csv"\ntargets = ["claims"]\n[model]\nkind = "count"\n'
    (tmp_path / "run.toml").write_text(text)
    file = str(tmp_path / "run.toml")
    shown = CliRunner().invoke(cli.app, ["show", file, "--set", "data.exposure=days"])
    assert shown.exit_code == 0 and "(the exposure)" in shown.output
    wrong = CliRunner().invoke(cli.app, ["show", file, "--set", "data.exposure=day"])
    assert wrong.exit_code == 2
