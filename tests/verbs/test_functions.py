"""The verb `function_values`: the functions of draws, by the path of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.draws.quantities import quantities
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.store.store import Store
from tests.support.data.tables import FULL, mixed_table, table_keys
from tests.support.small import small_spec


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
