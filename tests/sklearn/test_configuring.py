"""The parameters of an estimator become a configuration, whose defaults are those of rayfbnn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfbnn.data import read_training
from rayfbnn.errors import ConfigError
from rayfbnn.sklearn import BayesianNetworkRegressor
from rayfbnn.sklearn.configuring import configuration
from rayfbnn.spec import RunSpec

TABLE = pd.DataFrame(np.random.default_rng(3).normal(size=(20, 5)), columns=["a", "b", "c", "d", "y"])
TABLE["same"] = 3.0
DATA = {"data": {"inputs": ["a", "b"], "targets": ["y"]}, "model": {"kind": "real"}}


def resolved(table: pd.DataFrame = TABLE, workers: int = 1, **parameters: Any) -> RunSpec:
    every = BayesianNetworkRegressor(**parameters).get_params(deep=False)
    kinds = ("real", "heteroscedastic", "count", "binary", "class")
    spec = configuration(every, table, targets=["y"], kinds=kinds, seed=5, workers=workers)
    return read_training(spec, table)[0]


def priors(**parameters: Any) -> dict[str, str]:
    return dict(resolved(**parameters).network_keys.priors)


def test_without_parameters_it_is_the_default_one() -> None:
    keys = {"data": {"targets": ["y"], "exclude": ["same"]}, "model": {"kind": "real"}, "seed": 5}
    assert resolved() == read_training(RunSpec.from_dict(keys), TABLE)[0]
    assert resolved().encoding is not None and resolved().input_names == ("a", "b", "c", "d")


def test_default_values_that_are_given_change_nothing() -> None:
    written = resolved(
        hidden_layer_sizes=(8,), activation="tanh", input_width=0.5, linear_width=1, output_width=4.0,
        alpha=4, relevance=4.0, noise="0.2:0.5", iterations=np.int64(10_000), chains=8,
    )  # fmt: skip
    assert written == resolved()


@pytest.mark.parametrize("kind", ["real", "heteroscedastic", "count", "binary", "class"])
def test_one_default_that_is_given_leaves_the_others(kind: str) -> None:
    """The default priors depend on the data model, and are written out as soon as one of them is named."""
    table = TABLE.assign(y=np.arange(20) % (3 if kind == "class" else 2))
    spec = {"model": {"kind": kind}}
    assert resolved(table, spec=spec, alpha=4) == resolved(table, spec=spec)


def test_priors_by_number_and_in_the_notation_of_fbm() -> None:
    assert priors() == {"ih0": "0.25:4:4", "bh0": "1:4", "ho0": "x4:4", "io": "0.5:2:4", "bo": "1"}
    changed = priors(input_width=1, alpha=np.float64(3), relevance=2, output_width=0.5, linear_width=0)
    assert changed == {"ih0": "0.5:3:2", "bh0": "1:3", "ho0": "x0.5:3", "bo": "1"}
    assert priors(relevance=np.inf) == priors() | {"ih0": "0.25:4", "io": "0.5:2"}
    assert priors(priors={"ih": "0.7:3", "io": "-", "bo": 2}) == {
        "ih0": "0.7:3", "bh0": "1:4", "ho0": "x4:4", "bo": "2",
    }  # fmt: skip
    both = resolved(linear_width=2, priors={"ih": "0.7:3"})
    assert both.data.standardize == ("inputs", "targets") and both.model_keys.noise == "0.2:0.5"
    assert both.phase == resolved().phase


def test_hidden_layers() -> None:
    two = resolved(hidden_layer_sizes=[6, 3], activation="relu")
    assert [(layer.units, layer.activation) for layer in two.network.hidden] == [(6, "relu"), (3, "relu")]
    assert resolved(activation="relu").network.hidden[0].units == 8
    assert resolved(hidden_layer_sizes=np.int64(5)).network.hidden[0].activation == "tanh"
    linear = resolved(hidden_layer_sizes=())
    assert linear.network.hidden == () and set(linear.network_keys.priors) == {"io", "bo"}


MANY = pd.concat([TABLE] * 13, ignore_index=True)  # 260 cases, which have another default network


def test_the_layers_for_many_cases_stay_beside_what_is_named() -> None:
    def layers(**parameters: Any) -> list[tuple[int, str]]:
        return [(layer.units, str(layer.activation)) for layer in resolved(MANY, **parameters).network.hidden]

    assert layers() == layers(output_width=4.0) == layers(spec=RunSpec.from_dict(DATA)) == [(16, "tanh")] * 2
    assert resolved(MANY, output_width=4.0) == resolved(MANY)
    assert layers(activation="relu") == layers(activation="relu", alpha=3) == [(16, "relu")] * 2
    assert layers(hidden_layer_sizes=(8,)) == [(8, "tanh")]


def test_a_base_has_the_rest(tmp_path: Path) -> None:
    base = {
        "data": {"train": "gone.csv", "targets": ["z"], "inputs": ["a", "b"]},
        "model": {"kind": "count"},
        "network": {"priors": {"ih0": "1:3", "ho0": "x1:3", "bo": "1"}},
        "dtype": "float64",
        "chains": 3,
        "seed": 11,
    }
    path = tmp_path / "run.toml"
    path.write_text(RunSpec.from_dict(base).to_toml())
    counts = TABLE.assign(y=1.0)
    for spec in (base, RunSpec.from_dict(base), path):
        result = resolved(counts, spec=spec, chains=4, priors={"bo": "3"}, iterations=77)
        assert (result.chains, result.seed, result.dtype) == (4, 11, "float64")
        assert result.input_names == ("a", "b") and result.data.train is None
        assert result.network_keys.priors == {"ih0": "1:3", "ho0": "x1:3", "bo": "3"}
        assert result.phase[-1].iterations == 77 and result.model_keys.kind == "count"
    assert resolved(counts, spec=base, random_state=1).seed == 5
    with pytest.raises(ConfigError, match="alpha: changes the default priors, but spec has network.priors"):
        resolved(counts, spec=base, alpha=3)
    assert base["data"]["train"] == "gone.csv"  # type: ignore[index]


def test_chains_are_divided_among_processes() -> None:
    assert resolved(workers=3).chains_per_batch == 3
    assert resolved(workers=20, chains=4).chains_per_batch == 1
    assert resolved(workers=3, spec={"chains_per_batch": 8}).chains_per_batch == 8
    ladders = {"ladder": {}, "device": "gpu"}
    assert resolved(workers=2, chains=6, spec=ladders).chains_per_batch == 4  # an even number
    assert resolved(workers=4, chains=4, spec={"ladder": {}}).chains_per_batch == 2
