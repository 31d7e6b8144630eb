"""`predict` with some of the draws, and what it says about which draws were used.

The verb `function_values`: the functions of draws, by the path of a store.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.answers import predict as answer
from rayfbnn.answers.diagnostics import Diagnosis
from rayfbnn.answers.predict import Prediction
from rayfbnn.draws.quantities import quantities
from rayfbnn.draws.subsets import chosen, with_draws
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.store.store import Store
from tests.support.data.tables import FULL, mixed_table, table_keys
from tests.support.small import small_spec

ALL: dict[str, Any] = {"skipped": 0, "chain_numbers": None}
HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of five chains of ten draws."""
    folder = tmp_path_factory.mktemp("finished")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", **HERE)
    return folder


def predict(folder: Path, **options: Any) -> Prediction:
    return rayfbnn.predict(folder / "run.zarr", data=folder / "train.csv", **options)


def test_some_draws_are_evenly_spaced_and_counted(finished: Path) -> None:
    prediction = predict(finished, draws=17)
    assert (prediction.summary["draws"], prediction.summary["of_draws"]) == (15, 50)
    run = with_draws(committed(Store.open(finished / "run.zarr")), np.array([0, 5, 9]))
    expected = answer.predict_from_draws([run], run.data.inputs, run.data.targets).table
    pd.testing.assert_frame_equal(prediction.table, expected, rtol=1e-5, atol=1e-6)
    used = json.loads(prediction.to_json())["stores"]
    assert used == [{"path": str(finished / "run.zarr"), "chains": 5, "committed": 10, "used": 3, **ALL}]


def test_all_draws_are_used_unless_fewer_are_asked_for(finished: Path) -> None:
    prediction = predict(finished, skip=4)
    assert prediction.summary["draws"] == 30 and "of_draws" not in prediction.summary
    assert prediction.stores[0].committed == 10 and prediction.stores[0].used == 6
    assert predict(finished, max_mcse=1e-9).summary["draws"] == 50  # none is small enough


def test_chosen_chains_and_last_draws_are_used_and_named(finished: Path) -> None:
    prediction = predict(finished, chains=[0, 2], last=4)
    run = chosen(committed(Store.open(finished / "run.zarr")), chains=[0, 2], last=4)
    np.testing.assert_array_equal(run.stat("energy"), _energies(finished)[[0, 2], -4:])
    expected = answer.predict_from_draws([run], run.data.inputs, run.data.targets).table
    pd.testing.assert_frame_equal(prediction.table, expected, check_exact=True)
    assert json.loads(prediction.to_json())["stores"] == [
        {
            "path": str(finished / "run.zarr"),
            "chains": 2,
            "committed": 10,
            "used": 4,
            "skipped": 6,
            "chain_numbers": [0, 2],
        }
    ]
    assert predict(finished, chains=[0, 2], draws=6).summary["of_draws"] == 20


def _energies(folder: Path) -> np.ndarray:
    return np.asarray(zarr.open_group(folder / "run.zarr", mode="r")["sample_stats/statistics"])[..., 1]


def test_the_shell_says_which_chains_and_draws(finished: Path) -> None:
    options = ["--chains", "2,0", "--last", "4"]
    arguments = [str(finished / "run.zarr"), "--data", str(finished / "train.csv"), *options]
    result = CliRunner().invoke(cli.app, ["predict", *arguments])
    assert result.exit_code == 0
    assert "\nchains            0, 2\n" in result.stdout
    assert "\nskipped           6 of 10 draws of each chain\n" in result.stdout
    assert CliRunner().invoke(cli.app, ["predict", *arguments, "--chains", "0;2"]).exit_code == 2
    diagnosed = CliRunner().invoke(cli.app, ["diagnose", str(finished / "run.zarr"), *options, "--json"])
    assert json.loads(diagnosed.stdout)["thresholds"]["min_draws"] == 4


def test_a_diagnosis_of_chosen_chains_calls_them_by_their_numbers(finished: Path) -> None:
    diagnosis = rayfbnn.diagnose(finished / "run.zarr", chains=[1, 4])
    assert isinstance(diagnosis, Diagnosis)
    assert {chain for mode in diagnosis.modes for chain in mode.chains} == {1, 4}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_mcse": -0.01}, "max_mcse"),
        ({"max_mcse": float("nan")}, "max_mcse"),
        ({"max_mcse": float("inf")}, "max_mcse"),
        ({"draws": 0}, "draws"),
        ({"draws": -3}, "draws"),
        ({"draws": 4}, "draws: must be at least 5, one for each chain, got 4"),
        ({"draws": 10, "max_mcse": 0.1}, "either draws or max_mcse"),
        ({"workers": -1}, "workers"),
        ({"last": 2.5}, "last: must be a whole number"),
        ({"last": 11}, "last: must be from 1 to 10"),
        ({"chains": [0, 5]}, "chains: .* has 5 chains, numbered from 0 to 4, got 5"),
        ({"chains": [1.5]}, "chains: must be a whole number"),
    ],
)
def test_impossible_numbers_of_draws_are_refused(
    finished: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        predict(finished, out=finished / "p.csv", **options)
    assert not (finished / "p.csv").exists()


def test_a_store_that_grows_is_predicted_from_what_was_committed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rayfbnn.sample(small_spec(tmp_path), tmp_path / "run.zarr", **HERE)
    before = predict(tmp_path)
    computed = answer.predict_from_draws

    def while_it_grows(*arguments: Any, **options: Any) -> Prediction:
        rayfbnn.resume(tmp_path / "run.zarr", iterations=20, **HERE)
        return computed(*arguments, **options)

    monkeypatch.setattr(answer, "predict_from_draws", while_it_grows)
    meanwhile = predict(tmp_path)
    monkeypatch.undo()
    assert Store.open(tmp_path / "run.zarr").committed_draws > 10
    pd.testing.assert_frame_equal(meanwhile.table, before.table, check_exact=True)
    assert meanwhile.stores == before.stores and meanwhile.stores[0].committed == 10
    assert predict(tmp_path).summary["draws"] > 50


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "run.zarr"
    rayfbnn.sample(table_keys(**FULL), path, data=mixed_table(), workers=0, progress=False)
    return path


def test_values_are_those_that_diagnose_judges(run: Path) -> None:
    values = rayfbnn.function_values(run, data=mixed_table())
    store = Store.open(run)
    judged = quantities(committed(store), cases=store.data.n_cases)
    assert values.dims == ("chain", "draw", "case", "function")
    assert values.sizes["case"] == store.data.n_cases
    for case in range(store.data.n_cases):
        one = values.sel(function="y", case=case).to_numpy()
        np.testing.assert_allclose(one, judged[f"y[{case}]"], rtol=1e-5)


def test_their_average_is_the_predictive_mean(run: Path) -> None:
    table = mixed_table()
    mean = rayfbnn.function_values(run, data=table).mean(("chain", "draw"))[:, 0]
    np.testing.assert_allclose(mean, rayfbnn.predict(run, data=table).table["y_mean"], rtol=1e-5)


def test_draws_are_evenly_spaced_and_end_with_the_last(run: Path) -> None:
    every = rayfbnn.function_values(run, data=mixed_table())
    some = rayfbnn.function_values(run, data=mixed_table(), draws=2)
    assert some.sizes["draw"] == 2
    np.testing.assert_array_equal(some[:, -1], every[:, -1])
    assert rayfbnn.function_values(run, data=mixed_table(), skip=1).sizes["draw"] == every.sizes["draw"] - 1


PIECES: dict[str, Any] = {"kind": "survival", "hazard": "piecewise", "time_points": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("model", "targets", "names"),
    [
        ({"kind": "binary"}, [0, 1], ["p_y"]),
        ({"kind": "class", "classes": 3}, [0, 1, 2], ["p_0", "p_1", "p_2"]),
        (PIECES, [0.2, 0.7, -1.5], ["log_hazard_0", "log_hazard_1", "log_hazard_2"]),
    ],
)
def test_functions_have_the_names_of_what_they_are(
    tmp_path: Path, model: dict[str, Any], targets: list[float], names: list[str]
) -> None:
    spec = small_spec(tmp_path, model=model)
    table = pd.read_csv(tmp_path / "train.csv")
    table["y"] = np.resize(targets, len(table))
    table.to_csv(tmp_path / "train.csv", index=False)
    rayfbnn.prior(spec, tmp_path / "prior.zarr", draws=3)
    values = rayfbnn.function_values(tmp_path / "prior.zarr", data=tmp_path / "train.csv")
    assert values["function"].values.tolist() == names
    if model["kind"] == "class":
        np.testing.assert_allclose(values.sum("function"), 1)


def test_wrong_arguments_are_refused_by_name(run: Path) -> None:
    with pytest.raises(ConfigError, match="draws: must be at least 1, got 0"):
        rayfbnn.function_values(run, data=mixed_table(), draws=0)
    with pytest.raises(DataError, match="age"):
        rayfbnn.function_values(run, data=mixed_table().drop(columns="age"))
