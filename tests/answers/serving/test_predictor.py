"""Predictors that hold draws in memory: answers of `predict` from no more draws and memory than asked.

Draws are thinned by the same errors, however few cases are looked at together.
"""

from __future__ import annotations

import logging
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.answers import predictor
from rayfbnn.answers.predictor import Predictor, thin
from rayfbnn.draws.outputs import outputs_by_case
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import spread
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.reduce.effective import mcse_mean
from rayfbnn.store.store import Store
from tests.support.data.tables import FULL, mixed_table, table_keys
from tests.support.marks import some_long
from tests.support.small import small_spec
from tests.support.store.standin_store import make_data, make_run, make_spec, normal

HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", **HERE)
    return folder


def test_the_draws_are_evenly_spaced_in_every_chain(finished: Path) -> None:
    predictor = rayfbnn.load(finished / "run.zarr", draws=17)
    assert predictor.n_draws == 15  # three of each of five chains
    assert np.isnan(predictor.mcse)
    draws = [0, 5, 9]
    run = committed(Store.open(finished / "run.zarr"))
    held = predictor._held
    np.testing.assert_array_equal(held.positions(), run.positions()[:, draws])
    np.testing.assert_array_equal(held.precisions(), run.precisions()[:, draws])
    assert rayfbnn.load(finished / "run.zarr", draws=10_000).n_draws == 50
    assert rayfbnn.load(finished / "run.zarr", draws=10, skip=8).n_draws == 10


def test_no_more_draws_are_taken_than_the_error_needs() -> None:
    """Independent draws: the error of n draws of a mean is its standard deviation over the root of n."""
    spec = make_spec(chains=8)
    run = make_run(spec, n_draws=500)
    few, more = thin(run, draws=None, max_mcse=0.05), thin(run, draws=None, max_mcse=0.02)
    assert few.mcse <= 0.05 and more.mcse <= 0.02
    assert 13 <= len(few.numbers) < len(more.numbers) < 500
    everything = thin(run, draws=None, max_mcse=0)
    assert len(everything.numbers) == 500
    expected = everything.mcse * np.sqrt(500 / len(few.numbers))
    assert expected / 1.4 < few.mcse < 1.4 * expected  # errors are estimated to some ten per cent


def test_a_run_with_too_few_draws_gives_all_and_says_so(
    finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        predictor = rayfbnn.load(finished / "run.zarr", max_mcse=1e-6)
    assert predictor.n_draws == 50 and predictor.mcse > 1e-6
    assert "with all draws, above 1e-06; resume with more iterations" in caplog.text
    assert "50 draws, Monte Carlo error" in repr(predictor)


def test_chains_that_disagree_do_not_take_all_draws() -> None:
    """Most of the error is between the chains, and stays however many draws of each are taken."""
    run = make_run(make_spec(chains=8), n_draws=500)
    part = run.parameter_layout.slices["bo"]
    run.store.positions[:, :, part] += 10 * normal(3, (8, 1, 2))
    thinning = thin(run, draws=None, max_mcse=0.05)
    assert 13 <= len(thinning.numbers) < 250
    everything = thin(run, draws=None, max_mcse=0)
    assert 0.2 < thinning.mcse <= 1.05 * everything.mcse
    assert thinning.mcse_of_all == everything.mcse > 0.05


def test_tables_are_encoded_as_by_predict(tmp_path: Path) -> None:
    table = mixed_table()
    rayfbnn.sample(table_keys(**FULL), tmp_path / "run.zarr", data=table, **HERE)
    predictor = rayfbnn.load(tmp_path / "run.zarr", max_mcse=0)
    expected = rayfbnn.predict(tmp_path / "run.zarr", data=table).table
    pd.testing.assert_frame_equal(predictor.predict(table).table, expected, rtol=1e-5)
    assert predictor.columns == ("age", "color", "smoker", "size", "bmi")
    row = table[list(predictor.columns)].iloc[3].tolist()
    alone = predictor.predict(row).table
    pd.testing.assert_frame_equal(alone, expected.iloc[[3]][list(alone)].reset_index(drop=True), rtol=1e-5)
    with pytest.raises(DataError, match="unknown|level"):
        predictor.predict([[20.0, "mauve", True, "S", 21.0]])


@pytest.mark.parametrize("kind", some_long(["real", "binary"], ["real"]))
def test_many_rows_take_no_more_memory_than_asked(kind: str) -> None:
    """The outputs of 2000 rows in all 800 draws are 26 MB, in float64."""
    spec = make_spec(kind)
    run = make_run(spec, n_draws=200)
    predictor = Predictor(run, thin(run, draws=None, max_mcse=0))
    inputs = normal(5, (2000, 2))
    tracemalloc.start()
    table = predictor.predict(inputs, max_memory=6e6).table
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(table) == 2000
    # The table in parts, put together, and columns that are being made.
    assert most < 6e6 + 3 * table.memory_usage().sum()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"draws": 0}, "draws: must be at least 1, got 0"),
        ({"draws": 4}, "draws: must be at least 5, one for each chain, got 4"),
        ({"max_mcse": float("nan")}, "max_mcse: must be above 0"),
        ({"max_memory": 0}, "max_memory: must be a number of bytes"),
        ({"skip": 10}, "skip: must be below 10"),
    ],
)
def test_load_refuses_bad_arguments(finished: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        rayfbnn.load(finished / "run.zarr", **settings)


def test_a_predictor_refuses_inputs_of_another_shape(finished: Path) -> None:
    predictor = rayfbnn.load(finished / "run.zarr")
    assert predictor.columns == ("x1", "x2") and predictor.target_names == ("y",)
    with pytest.raises(DataError, match=r"inputs: the shape must be \(cases, 2\), got \(1, 3\)"):
        predictor.predict([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="max_memory"):
        predictor.predict([1.0, 2.0], max_memory=-1)


def slow_run(n_draws: int = 300) -> Draws:
    """A run of chains that mix slowly."""
    spec = make_spec()
    run = make_run(spec, make_data(spec, n_cases=30), n_draws=n_draws)
    positions = run.store.positions  # type: ignore[attr-defined]
    for draw in range(1, n_draws):
        positions[:, draw] = 0.9 * positions[:, draw - 1] + 0.4 * positions[:, draw]
    return run


def plain_error(run: Draws, n_wanted: int) -> float:
    """The largest error at 20 cases, from an array of all of them."""
    data = run.data
    inputs = data.standardized(data.inputs[np.unique(np.linspace(0, 29, 20).round().astype(int))])
    means = outputs_by_case(run, inputs, memory_bytes=1e8)
    flat = means.reshape(*means.shape[:2], -1)
    noise = (noise_sigmas(run).reshape(1, -1, run.total) ** 2).mean(axis=2)
    sd = np.sqrt(noise + flat.var(axis=2))
    return float((mcse_mean(means[..., spread(run.n_draws, n_wanted)]) / sd).max())


@pytest.mark.parametrize("max_mcse", [0.02, 0.08, 0.15, 0.3])
@pytest.mark.parametrize("cases_bytes", [1.0, 1e9])
def test_the_first_number_of_draws_that_is_enough_is_taken(
    max_mcse: float, cases_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor, "_CASES_BYTES", cases_bytes)
    run = slow_run()
    thinning = thin(run, draws=None, max_mcse=max_mcse)
    of_all, wanted = plain_error(run, 300), 25
    while wanted < 300 and plain_error(run, wanted) > max(max_mcse, 1.05 * of_all):
        wanted = math.ceil(1.25 * wanted)
    assert len(thinning.numbers) == min(wanted, 300)
    assert thinning.mcse == pytest.approx(plain_error(run, len(thinning.numbers)), rel=1e-9)
    assert thinning.mcse_of_all == pytest.approx(of_all, rel=1e-9)


def test_a_given_number_of_draws_is_taken_with_its_error() -> None:
    run = slow_run()
    thinning = thin(run, draws=200, max_mcse=0.05)
    assert len(thinning.numbers) == 50
    assert thinning.mcse == pytest.approx(plain_error(run, 50), rel=1e-9)
