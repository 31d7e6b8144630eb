"""The page of code in docs/serving.md predicts from an exported file what `predict` does from the store.

Predictors answer for every data model as `predict` does; quantiles and samples are of the same mixture.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.answers import draw_files as exporting
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from tests.support.data.tables import FULL, mixed_table, table_keys
from tests.support.pages import ROOT, block_named
from tests.support.small import small_spec
from tests.support.store.fits import MODELS, spec_of

HERE: dict[str, Any] = {"workers": 0, "progress": False}
NETWORKS: dict[str, dict[str, Any]] = {
    "every connection": {
        "hidden": [{"units": 3, "activation": "sigmoid"}, {"units": 4, "activation": "softplus"}],
        "priors": {
            "ti": "0.5", "ih0": "0.7:3:4", "bh0": "0.7:3", "th0": "0.3", "ih1": "0.5:3", "h0h1": "x1:3",
            "bh1": "0.7", "th1": "0.2", "ho0": "x1:3:4", "ho1": "x1:3", "io": "0.5:3", "bo": "1",
        },
    },
    "layers of groups": {
        "hidden": [
            {"units": 4, "activation": "softmax", "groups": "i % 2"},
            {"units": 4, "activation": "normalize", "groups": "i // 2"},
            {"units": 3, "activation": "tanh"},
            {"units": 3, "activation": "sin", "product": 2},
        ],
        "priors": {
            "ih0": "0.7:3:4", "bh0": "1:3", "ah0": "3", "ih1": "1", "h0h2": "0.5:3", "h1h2": "1", "th2": "1",
            "bh2": "1", "h0h3": "x1:3:2", "ho3": "x1:3", "bo": "1", "ao": "5",
        },
        "omit": {"ih0": ["x1"]},
    },
    "configured connections": {
        "hidden": [{"units": 4, "activation": "relu"}, {"units": 3, "activation": "softplus0"}],
        "priors": {"ih0": "0.7:3", "bh0": "1:3", "h0h1": "0.5:3", "bh1": "1", "ho1": "x1:3", "bo": "1"},
        "connections": {
            "h0h1": {"generator": "conv1d", "size": 2, "channels": 2, "filters": 3, "window": 2},
            "bh1": {"generator": "channels", "size": 3},
        },
    },
    "linear": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
    "biases alone": {"hidden": [], "priors": {"bo": "1"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page of code defines."""
    text = block_named(ROOT / "docs" / "serving.md", "name: numpy-page")
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.M))
    assert imported == {"json", "math", "numpy", "warnings"}
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def compare(page: dict[str, Any], store: Path, cases: Path, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    """Assert that what the page predicts from all draws is what `predict` says."""
    file = rayfbnn.export(store, out=store.parent / "model.npz", max_mcse=0)
    table = rayfbnn.predict(store, data=cases).table
    opened = Store.open(store)
    description, arrays = page["load"](file)
    assert all(values.dtype.kind in "fU" for values in arrays.values())
    result = page["predict"](description, arrays, opened.data.inputs, probabilities=(0.1, 0.5, 0.99))
    names = opened.data.target_names

    def same(values: Any, columns: list[str]) -> None:
        expected = table[columns].to_numpy()
        np.testing.assert_allclose(np.reshape(values, expected.shape), expected, rtol=rtol, atol=atol)

    if "probabilities" in result:
        return same(result["probabilities"], opened.spec.data_model.probability_columns(names))
    same(result["mean"], [f"{name}_mean" for name in names])
    if "sd" in result:
        same(result["sd"], [f"{name}_sd" for name in names])
    for p, points in result.get("quantiles", {}).items():
        column = {0.1: "q10", 0.5: "median", 0.99: "q99"}[p]
        same(points, [f"{name}_{column}" for name in names])
    for time, curve in result.get("survival", {}).items():
        same(curve, [f"{name}_survival_{time:.6g}" for name in names])
    return None


@pytest.mark.parametrize("name", MODELS)
def test_the_page_predicts_every_data_model(name: str, tmp_path: Path, page: dict[str, Any]) -> None:
    rayfbnn.sample(spec_of(name, tmp_path, dtype="float64"), tmp_path / "run.zarr", **HERE)
    compare(page, tmp_path / "run.zarr", tmp_path / "train.csv")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_page_evaluates_every_kind_of_network(name: str, tmp_path: Path, page: dict[str, Any]) -> None:
    """Two targets and both standardisations, in draws from the prior: they are far apart."""
    tables = small_spec(tmp_path, dtype="float64").to_dict()
    tables["network"] = NETWORKS[name]
    tables["model"]["noise"] = "0.3:3:4"
    tables["data"] |= {"standardize": ["inputs", "targets"], "train": str(tmp_path / "train.csv")}
    (tmp_path / "train.csv").write_text(
        "x1,x2,y,z\n" + "\n".join(f"{n / 7},{n * n % 5},{n % 4 * 10},{100 + n % 3}" for n in range(9)) + "\n"
    )
    tables["data"]["targets"] = ["y", "z"]
    rayfbnn.prior(tables, tmp_path / "run.zarr", draws=8)
    compare(page, tmp_path / "run.zarr", tmp_path / "train.csv")


def test_float32_runs_agree_to_their_rounding(tmp_path: Path, page: dict[str, Any]) -> None:
    rayfbnn.sample(small_spec(tmp_path), tmp_path / "run.zarr", **HERE)
    compare(page, tmp_path / "run.zarr", tmp_path / "train.csv", rtol=1e-4, atol=1e-5)
    assert np.load(tmp_path / "model.npz")["weights_0_1"].dtype == np.float32


def test_the_page_encodes_columns_of_text_and_missing_values(tmp_path: Path, page: dict[str, Any]) -> None:
    table = mixed_table()
    keys = table_keys(**FULL)
    keys |= {"dtype": "float64", "model": {"kind": "class"}}
    table["y"] = np.array(["no", "yes", "maybe"])[np.arange(12) % 3]
    rayfbnn.sample(keys, tmp_path / "run.zarr", data=table, **HERE)
    description, arrays = page["load"](
        rayfbnn.export(tmp_path / "run.zarr", out=tmp_path / "model.npz", max_mcse=0)
    )
    assert description["labels"] == {"y": ["maybe", "no", "yes"]}
    texts = table.astype(dict.fromkeys(("color", "smoker", "size"), str))
    cases = texts.astype(object).where(texts.notna(), None).to_dict("records")
    inputs = page["encode"](description, cases)
    np.testing.assert_array_equal(inputs, Store.open(tmp_path / "run.zarr").data.inputs)
    expected = rayfbnn.predict(tmp_path / "run.zarr", data=table).table
    p = page["predict"](description, arrays, inputs)["probabilities"]
    np.testing.assert_allclose(p, expected[["p_maybe", "p_no", "p_yes"]], rtol=1e-6)
    with pytest.raises(ValueError, match="mauve"):
        page["encode"](description, [cases[0] | {"color": "mauve"}])
    with pytest.raises(ValueError, match="age: missing, as in no training case"):
        page["encode"](description, [cases[0] | {"age": None}])


def test_the_description_says_what_the_file_is(tmp_path: Path, page: dict[str, Any]) -> None:
    rayfbnn.sample(small_spec(tmp_path), tmp_path / "run.zarr", **HERE)
    file = rayfbnn.export(tmp_path / "run.zarr", out=tmp_path / "model.npz", draws=20)
    description, arrays = page["load"](file)
    assert (description["format"], description["format_version"]) == ("rayfbnn model", 1)
    assert (description["inputs"], description["targets"]) == (["x1", "x2"], ["y"])
    assert description["model"] == {"kind": "real", "noise_df": None}
    assert {name: values.shape for name, values in arrays.items()} == {
        "weights_0_1": (20, 2, 3), "bias_1": (20, 3), "weights_1_2": (20, 3, 1), "bias_2": (20, 1),
        "sigma_noise": (20, 1), "input_center": (2,), "input_scale": (2,), "target_center": (1,),
        "target_scale": (1,),
    }  # fmt: skip


def test_the_share_that_is_written_grows_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long export has a line with the time left now and then; each array is written in parts."""
    monkeypatch.setattr(exporting, "_MODEL_BYTES", 64)
    path = tmp_path / "run.zarr"
    rayfbnn.sample(small_spec(tmp_path), path, **HERE)
    shares: list[float] = []
    run = committed(Store.open(path))
    exporting.export(run, np.arange(run.n_draws), tmp_path / "model.npz", shares.append)
    assert len(shares) > 20 and shares == sorted(shares) and shares[-1] == 1 and shares[0] < 0.2


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rayfbnn.sample(small_spec(tmp_path), tmp_path / "run.zarr", **HERE)
    erf = small_spec(tmp_path, network__hidden=[{"units": 3, "activation": "erf"}])
    rayfbnn.prior(erf, tmp_path / "prior.zarr", draws=5)
    before = sorted(tmp_path.iterdir())
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("run.zarr", {"out": "model.npy"}, r"out: must end in \.npz"),
        ("run.zarr", {"out": "none/model.npz"}, "there is no folder"),
        ("run.zarr", {"out": "run.zarr/model.npz"}, "out: .*lies inside the store"),
        ("run.zarr", {"draws": 4}, "draws: must be at least 5, one for each chain, got 4"),
        ("run.zarr", {"max_mcse": -1}, "max_mcse: must be above 0"),
        ("prior.zarr", {}, "erf units cannot be exported"),
    ]
    for store, settings, message in refused:
        with pytest.raises(ConfigError, match=message):
            out = tmp_path / settings.pop("out", "model.npz")
            rayfbnn.export(tmp_path / store, out=out, **settings)
    monkeypatch.setattr(exporting, "MOST_BYTES", 500.0)
    with pytest.raises(ConfigError, match="above the limit of 5e-07 GB; take at most 13"):
        rayfbnn.export(tmp_path / "run.zarr", out=tmp_path / "model.npz", max_mcse=0)
    assert sorted(tmp_path.iterdir()) == before


N_SAMPLES = 3000


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a data model, and a folder with its training file and a run."""
    name, folder = request.param, tmp_path_factory.mktemp("model")
    rayfbnn.sample(spec_of(name, folder), folder / "run.zarr", **HERE)
    return name, folder


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    rayfbnn.sample(spec_of("real", folder), folder / "run.zarr", **HERE)
    return folder / "run.zarr"


def test_all_draws_give_the_answers_of_predict(run: tuple[str, Path]) -> None:
    folder = run[1]
    prediction = rayfbnn.predict(folder / "run.zarr", data=folder / "train.csv")
    predictor = rayfbnn.load(folder / "run.zarr", max_mcse=0)
    assert predictor.n_draws == prediction.summary["draws"] == 50
    found = predictor.predict(folder / "train.csv")
    pd.testing.assert_frame_equal(found.table, prediction.table, rtol=1e-5, atol=1e-6)
    inputs = Store.open(folder / "run.zarr").data.inputs
    alone = pd.concat([predictor.predict(row).table for row in inputs], ignore_index=True)
    columns = list(alone.columns)  # an array has no targets, and so no errors
    pd.testing.assert_frame_equal(alone, prediction.table[columns], rtol=1e-5, atol=1e-6)


def test_quantiles_and_samples_are_those_of_the_table(run: tuple[str, Path]) -> None:
    name, folder = run
    predictor = rayfbnn.load(folder / "run.zarr", max_mcse=0)
    inputs = Store.open(folder / "run.zarr").data.inputs[:4]
    table = predictor.predict(inputs).table
    model = predictor._held.spec.data_model
    columns = model.probability_columns(predictor.target_names) or ["y_mean"]
    np.testing.assert_allclose(predictor.mean(inputs), table[columns], rtol=1e-5)
    samples = predictor.sample(inputs, N_SAMPLES, seed=3)
    assert samples.shape == (N_SAMPLES, 4, 1)
    if name in ("binary", "class"):
        labels = [1] if name == "binary" else [0, 1, 2]
        shares = np.stack([(samples[:, :, 0] == label).mean(axis=0) for label in labels], axis=1)
        np.testing.assert_allclose(shares, table[columns], atol=5 * 0.5 / np.sqrt(N_SAMPLES))
        with pytest.raises(ConfigError, match="quantiles: .* targets are labels"):
            predictor.quantiles(inputs, [0.5])
        return
    probabilities = {"y_q90": 0.9, "y_median": 0.5, "y_q01": 0.01}
    quantiles = predictor.quantiles(inputs, list(probabilities.values()))
    assert quantiles.shape == (3, 4, 1)
    in_parts = rayfbnn.load(folder / "run.zarr", max_mcse=0, max_memory=3e3)
    parts = in_parts.quantiles(inputs, [0.9, 0.5, 0.01])
    np.testing.assert_allclose(parts, quantiles, rtol=1e-5)
    np.testing.assert_allclose(quantiles[:, :, 0].T, table[list(probabilities)], rtol=1e-9)
    below = [(samples[:, :, 0] <= table[column].to_numpy()).mean(axis=0) for column in probabilities]
    error = [5 * np.sqrt(p * (1 - p) / N_SAMPLES) for p in probabilities.values()]
    if name.startswith("count"):  # a quantile of counts may have more below it
        assert all(
            (share >= p - e).all() for share, p, e in zip(below, probabilities.values(), error, strict=True)
        )
    else:
        for share, p, e in zip(below, probabilities.values(), error, strict=True):
            np.testing.assert_allclose(share, p, atol=e)


def test_a_sample_is_joint_over_cases_and_depends_on_the_seed(real_run: Path) -> None:
    """Twice the same case: all but the noise is shared within a sample."""
    store = Store.open(real_run)
    twice = store.data.inputs[[0, 0]] * 5  # far from the training cases, where functions differ most
    predictor = rayfbnn.load(real_run, max_mcse=0)
    samples = predictor.sample(twice, 400, seed=1)[:, :, 0]
    table = rayfbnn.predict(real_run, data=twice).table
    noise = store.read_precisions()[:, :, store.precision_layout.noise_columns] ** -1.0
    share = 1 - noise.mean() * store.data.target_scale[0] ** 2 / table["y_sd"][0] ** 2
    assert np.corrcoef(samples.T)[0, 1] == pytest.approx(share, abs=5 / np.sqrt(400))
    np.testing.assert_array_equal(predictor.sample(twice, 400, seed=1)[:, :, 0], samples)
    assert (predictor.sample(twice, 400, seed=2)[:, :, 0] != samples).all()


def test_probabilities_that_are_none_are_refused(real_run: Path) -> None:
    with pytest.raises(ConfigError, match="quantiles: must lie between 0 and 1, such as 0.9, got 90"):
        rayfbnn.load(real_run).quantiles([[0.0, 1.0]], [90])
