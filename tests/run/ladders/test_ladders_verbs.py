"""Verbs on configurations and stores of ladders: what they say, and what they refuse by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.errors import StoreError
from rayfbnn.run.estimate import usual_settings
from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from rayfbnn.timing.forecast import forecast as forecast_of
from tests.support.small import make_store, write_train
from tests.support.store.ladder_runs import ladder_keys, ladder_spec


def test_show_describes_the_levels_the_sides_and_the_phases(tmp_path: Path) -> None:
    text = api.show(ladder_spec(tmp_path))
    assert "Ladder: 4 ladders of 4 levels: noise, held at one value at each level" in text
    assert "from chains: ladders 0, 2, ... (2), each from a chain of its own" in text
    assert "phase 4: 12 iterations in rounds (1), each with new levels" in text
    assert "batches of 2 ladders, with 8 chains at all levels" in text and "leapfrog steps: " in text
    write_train(tmp_path)
    lines = (tmp_path / "train.csv").read_text().splitlines()
    rows = [f"{line.rpartition(',')[0]},{number % 2}" for number, line in enumerate(lines[1:])]
    (tmp_path / "classes.csv").write_text("\n".join([lines[0], *rows]) + "\n")
    classes = ladder_keys(model={"kind": "binary"}, data__train="classes.csv")
    assert "powers of the likelihood" in api.show(RunSpec.from_dict(classes, base_dir=tmp_path))


def test_bench_times_the_levels_of_a_batch_together(tmp_path: Path) -> None:
    spec = ladder_spec(tmp_path)
    result = api.bench(spec, progress=False)
    assert {row.chains for row in result.rows} == {2 * 4}  # ladders of a batch, and levels
    estimate = result.estimate
    assert estimate is not None and estimate.least == estimate.most
    resolved = make_store(tmp_path / "run.zarr", spec).spec
    of_ladder = sum(usual_settings(resolved).steps)
    of_chain = 16  # gradients of the first trajectories of the default schedule
    warmup = sum(phase.iterations for phase in resolved.phase[:2])
    expected = 2 * (warmup + 5) * of_chain + (2 * 5 + 4 * (12 + 9)) * of_ladder
    assert estimate.least.gradient_evaluations == expected
    assert "the whole run: " in str(result)


def test_a_forecast_times_levels_and_chains(tmp_path: Path) -> None:
    spec = ladder_spec(tmp_path, iterations=10**6)
    made = make_store(tmp_path / "run.zarr", spec)
    forecast = forecast_of(spec, made.data, workers=2)
    assert forecast is not None and forecast.workers == 2
    assert forecast.before_draws < forecast.seconds / 1000  # 60 iterations against a million
    automatic = ladder_spec(tmp_path, iterations=10**6, settings={"levels": "auto"})
    assert forecast_of(automatic, made.data, workers=2) is not None


def test_the_prior_of_a_configuration_with_ladders_is_drawn_as_usual(tmp_path: Path) -> None:
    api.prior(ladder_spec(tmp_path), tmp_path / "prior.zarr", draws=5)
    store = Store.open(tmp_path / "prior.zarr")
    assert store.committed_draws == 5 and not [name for name in store.hierarchy.plans if "ladder" in name]


def test_status_says_what_ladders_are_doing_and_predict_waits_for_them(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", ladder_spec(tmp_path))
    stages = {}
    for last in (2, 45, 50, 62, 69):
        with store.lock(), InProcess() as executor:
            for _ in run_rounds(store, executor, last=last):
                pass
        status = api.status(tmp_path / "run.zarr")
        stages[last] = status.stage
        if last == 50:
            text = str(status)
            assert "adapting levels, round 1 of 1" in text and "\nladders " in text
            with pytest.raises(StoreError, match="no draws are committed yet; run `resume` on it first$"):
                api.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv")
    words = ("warming up", "annealing", "adapting levels, round 1 of 1", "sampling", "complete")
    assert tuple(stages.values()) == words
    assert "complete, 9 draws of each ladder" in str(api.status(tmp_path / "run.zarr"))


def test_lines_of_progress_name_ladders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = ladder_spec(tmp_path)
    api.sample(spec, tmp_path / "run.zarr", workers=0)
    lines = capsys.readouterr().err
    assert "% done, " in lines and "run.zarr: complete, 9 draws of each ladder\n" in lines
    assert "chains" not in lines
    shown = api.show(tmp_path / "run.zarr")
    assert "4 ladders, 9 draws each" in shown and "  ladders 2-3: iteration 69 of 69" in shown


def test_an_estimator_fits_ladders_and_continues_them(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from rayfbnn.sklearn import BayesianNetworkRegressor

    keys = ladder_keys()
    spec = {name: keys[name] for name in ("chains", "ladder", "network", "model", "iterations")}
    inputs = np.linspace(-1, 1, 24).reshape(12, 2)
    for iterations in (None, 12):
        model = BayesianNetworkRegressor(
            spec=spec, store=tmp_path / "run.zarr", iterations=iterations, warm_start=True, n_jobs=1
        )
        model.fit(inputs, inputs.sum(axis=1))
    assert model.predict(inputs).shape == (12,)
    assert Store.open(tmp_path / "run.zarr").committed_draws == 12
