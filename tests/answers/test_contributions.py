"""What layers contribute to the outputs equals brute force over all draws, and adds up to the outputs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import functions_at
from rayfbnn.errors import ConfigError
from rayfbnn.model.layout import ParameterLayout
from tests.support.small import small_spec
from tests.support.store.fits import fit_spec
from tests.support.store.standin_store import (
    OTHER_MODELS,
    PIECEWISE,
    endless,
    log_hazards_by_hand,
    make_data,
    make_run,
    make_spec,
    run_of,
)

LOG_ODDS = {"binary": ["log_odds_y1", "log_odds_y2"], "class": ["logit_0", "logit_1", "logit_2"]}
WITH_INPUTS = {"network__priors__io": "0.5"}
HERE: dict[str, Any] = {"workers": 0, "progress": False}


def unseen(run: Any) -> Array:
    """Inputs that no draw has seen, (9, 2)."""
    return make_data(run.spec, 9, seed=41).inputs


def columns_of(run: Any, inputs: Array, **settings: Any) -> pd.DataFrame:
    """The columns that contributions add to the table of predictions."""
    with_them = predict_from_draws([run], inputs, contributions=True, **settings).table
    without = predict_from_draws([run], inputs, **settings).table
    pd.testing.assert_frame_equal(with_them[list(without)], without)
    return with_them.drop(columns=list(without))


def by_hand(run: Any, inputs: Array) -> dict[str, Array]:
    """The contributions in each draw on the networks' scale, (n_chains, n_draws, n_cases, n_outputs)."""
    x = (inputs - run.data.input_center) / run.data.input_scale
    w = ParameterLayout.from_network(run.spec.network).views(run.store.positions)
    hidden = np.tanh(np.einsum("ni,cdih->cdnh", x, w["ih0"]) + w["bh0"][:, :, None])
    of_layer = np.einsum("cdnh,cdho->cdno", hidden, w["ho0"])
    of_inputs = {"inputs": np.einsum("ni,cdio->cdno", x, w["io"])} if "io" in w else {}
    return {"h0": of_layer, **of_inputs, "bias": w["bo"][:, :, None] + np.zeros_like(of_layer)}


@pytest.mark.parametrize("kind", LOG_ODDS)
def test_columns_are_mean_and_standard_deviation_over_draws(kind: str) -> None:
    run = make_run(make_spec(kind, **WITH_INPUTS))
    inputs = unseen(run)
    table = columns_of(run, inputs)
    expected = {}
    for output, name in enumerate(LOG_ODDS[kind]):
        for source, values in by_hand(run, inputs).items():
            expected[f"{name}_from_{source}_mean"] = values[..., output].mean(axis=(0, 1))
            expected[f"{name}_from_{source}_sd"] = values[..., output].std(axis=(0, 1))
    pd.testing.assert_frame_equal(table, pd.DataFrame(expected), rtol=1e-12)


@pytest.mark.parametrize("standardize", ['["inputs"]', '["inputs", "targets"]'])
def test_real_targets_have_them_in_units_of_the_file_with_the_shift_in_the_bias(standardize: str) -> None:
    run = make_run(make_spec(data__standardize=standardize, **WITH_INPUTS))
    inputs = unseen(run)
    table = predict_from_draws([run], inputs, contributions=True).table
    terms = by_hand(run, inputs)
    terms["bias"] = terms["bias"] + run.data.target_center / run.data.target_scale
    for target, name in enumerate(("y1", "y2")):
        scale = run.data.target_scale[target]
        for source, values in terms.items():
            of_target = scale * values[..., target]
            np.testing.assert_allclose(
                table[f"{name}_from_{source}_mean"], of_target.mean((0, 1)), rtol=1e-11
            )
            np.testing.assert_allclose(table[f"{name}_from_{source}_sd"], of_target.std((0, 1)), rtol=1e-11)
        total = sum(table[f"{name}_from_{source}_mean"] for source in terms)
        np.testing.assert_allclose(total, table[f"{name}_mean"], rtol=1e-12)


@pytest.mark.parametrize(
    "model", OTHER_MODELS, ids=lambda model: "-".join(map(str, list(model.values())[:2]))
)
def test_means_add_up_to_those_of_the_functions_of_a_run(model: dict[str, Any]) -> None:
    standardize = '["inputs", "targets"]' if model["kind"] == "heteroscedastic" else '["inputs"]'
    run, inputs, _ = run_of(model, data__standardize=standardize)
    table = columns_of(run, inputs)
    expected = functions_at(run, inputs).mean(axis=(0, 1))
    names = run.spec.data_model.function_names(run.data.target_names)
    for number, name in enumerate(names):
        total = table[f"{name}_from_h0_mean"] + table[f"{name}_from_bias_mean"]
        np.testing.assert_allclose(total, expected[:, number], rtol=1e-10, atol=1e-12)
    assert len(table.columns) == 2 * 2 * len(names)


def test_each_piece_of_a_hazard_has_contributions_at_its_own_time() -> None:
    run, inputs, _ = run_of(PIECEWISE)
    table = columns_of(run, inputs)
    bias = ParameterLayout.from_network(run.spec.network).views(run.store.positions)["bo"].reshape(-1, 1, 1)
    of_layer = log_hazards_by_hand(run, inputs) - bias  # (n_draws, n_cases, n_pieces)
    for piece in range(4):
        column = f"log_hazard_{piece}_from_h0"
        np.testing.assert_allclose(table[f"{column}_mean"], of_layer[..., piece].mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(table[f"{column}_sd"], of_layer[..., piece].std(axis=0), rtol=1e-10)


def test_the_shift_is_a_bias_without_spread_where_the_network_has_no_biases_of_outputs() -> None:
    raw = make_spec(data__standardize='["targets"]').to_dict()
    del raw["network"]["priors"]["bo"]
    run = make_run(rayfbnn.RunSpec.from_dict(raw))
    table = columns_of(run, unseen(run))
    assert (table["y1_from_bias_mean"] == run.data.target_center[0]).all()
    assert (table["y1_from_bias_sd"] == 0).all()
    raw["data"]["standardize"] = []
    run = make_run(rayfbnn.RunSpec.from_dict(raw))
    assert list(columns_of(run, unseen(run))) == [
        f"{name}_from_h0_{column}" for name in ("y1", "y2") for column in ("mean", "sd")
    ]


def test_a_contribution_that_varies_little_about_a_large_mean_keeps_its_digits() -> None:
    run = make_run(make_spec())
    spread = run.store.positions[..., -2].std()
    run.store.positions[..., -2] += 1e7  # the bias of y1
    in_blocks = columns_of(run, unseen(run), memory_bytes=1.0)
    np.testing.assert_allclose(in_blocks["y1_from_bias_sd"], spread, rtol=1e-7)


def test_columns_do_not_depend_on_the_memory_allowed() -> None:
    run = make_run(make_spec(**WITH_INPUTS))
    inputs = unseen(run)
    whole = columns_of(run, inputs)
    for memory_bytes in (1.0, 2e4):
        in_pieces = columns_of(run, inputs, memory_bytes=memory_bytes)
        pd.testing.assert_frame_equal(in_pieces, whole, rtol=1e-9)


def test_memory_is_bounded_whatever_the_number_of_draws() -> None:
    memory_bytes = 8e6
    draws_at_all_cases = (
        8 * 2 * 2 * 4 * 3000 * 300
    )  # of 2 sources, 2 targets, 4 chains, 3,000 draws, 300 cases
    assert draws_at_all_cases > 14 * memory_bytes
    run = endless(make_run(make_spec("binary", draws_per_block=50)), 3000)
    inputs = make_data(run.spec, 300, seed=41).inputs
    predict_from_draws([run], inputs[:2], contributions=True)  # imports are not the reduction's memory
    tracemalloc.start()
    try:
        predict_from_draws([run], inputs, contributions=True, memory_bytes=memory_bytes)
        assert tracemalloc.get_traced_memory()[1] < memory_bytes
    finally:
        tracemalloc.stop()


def test_pooled_stores_contribute_as_their_draws_do_together() -> None:
    first, second = (make_run(make_spec(seed=seed), n_draws=10 * seed, seed=seed) for seed in (1, 2))
    inputs = unseen(first)
    pooled = predict_from_draws([first, second], inputs, contributions=True).table
    of_layer = np.concatenate([by_hand(run, inputs)["h0"].reshape(-1, 9, 2) for run in (first, second)])
    np.testing.assert_allclose(pooled["y2_from_h0_mean"], of_layer[..., 1].mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(pooled["y2_from_h0_sd"], of_layer[..., 1].std(axis=0), rtol=1e-11)


def test_a_target_with_the_name_of_a_contribution_is_refused() -> None:
    spec = make_spec(data__targets='["y1", "y1_from_h0"]')
    run = make_run(spec)
    with pytest.raises(ConfigError, match="contributions: the table already has a column y1_from_h0_mean"):
        predict_from_draws([run], unseen(run), contributions=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.csv, a run of it in run.zarr, and in linear.zarr an approximation with linear predictions."""
    folder = tmp_path_factory.mktemp("contributions")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", **HERE)
    rayfbnn.sample(fit_spec(folder, "laplace"), folder / "linear.zarr", method="laplace", **HERE)
    return folder


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_file_has_them_after_the_predictions(folder: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"new{suffix}"
    result = CliRunner().invoke(
        cli.app,
        ["predict", f"{folder}/run.zarr", f"--data={folder}/train.csv", f"--out={out}", "--contributions"],
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert list(table)[-4:] == [
        f"y_from_{source}_{column}" for source in ("h0", "bias") for column in ("mean", "sd")
    ]
    total = table["y_from_h0_mean"] + table["y_from_bias_mean"]
    np.testing.assert_allclose(total, table["y_mean"], rtol=1e-5)  # the run is in float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run.zarr",), "contributions: needs a file for the table of predictions; give one with --out"),
        (
            ("linear.zarr", "--out", "new.csv"),
            "linear.zarr are linear about the modes, so its layers have no separate contributions",
        ),
    ],
)
def test_where_there_are_none_the_exit_code_is_2_and_no_file_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    result = CliRunner().invoke(cli.app, ["predict", *arguments, "--data", "train.csv", "--contributions"])
    assert result.exit_code == 2 and message in result.stderr
    assert sorted(folder.iterdir()) == before
