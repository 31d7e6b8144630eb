"""Answers from ladders in phases: those that predict weigh them as `predict` does, and all others say not."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.answers.judging.fit import verdict_on_fit
from rayfbnn.answers.judging.fit_evidence import evidence_left_out
from rayfbnn.answers.judging.ladder_verdict import pooled_by_evidence
from rayfbnn.draws.view import Draws, committed
from rayfbnn.reporting.reported_run import ReportedCases, read_run
from rayfbnn.store.store import Store
from tests.support.small import small_spec, write_train
from tests.support.store.ladder_runs import ladder_spec, run_in_phases, run_ladders

_ALIKE = "all ladders count alike here, while `predict` weighs them by exp(log Z)"
_WEIGHED = "phases remain, so its ladders count by exp(log Z)"


@pytest.fixture(scope="module")
def in_phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phases")
    spec = ladder_spec(folder, settings={"annealing": 4, "adaptation": 8}, iterations=60)
    write_train(folder, n_cases=24)  # enough for a verdict on fit
    run_in_phases(folder / "run.zarr", spec, gap=1.0)
    return folder / "run.zarr"


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreeing")
    run_ladders(folder / "run.zarr", ladder_spec(folder, settings={"adaptation": 24}, iterations=60))
    return folder / "run.zarr"


def weighed(path: Path) -> Draws:
    (run,), _ = pooled_by_evidence([committed(Store.open(path))])
    return run


def test_a_predictor_and_a_model_weigh_phases(
    in_phases: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, n_weighed = in_phases.parent / "train.csv", weighed(in_phases).total
    assert 120 < n_weighed < 240
    expected = api.predict(in_phases, data=data).table["y_mean"]
    caplog.clear()
    predictor = api.load(in_phases)
    assert caplog.text.count(_WEIGHED) == 1 and predictor.n_draws == n_weighed
    assert np.allclose(predictor.predict(data).table["y_mean"], expected, rtol=1e-5)
    model = np.load(api.export(in_phases, out=tmp_path / "model.npz"))
    assert n_weighed in [n for name in model.files for n in model[name].shape[:1]]
    sklearn = pytest.importorskip("rayfbnn.sklearn.base")
    assert np.allclose(sklearn._predictor(in_phases).predict(data).table["y_mean"], expected, rtol=1e-5)


def test_leaving_cases_out_weighs_phases(in_phases: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("arviz_stats")
    pytest.importorskip("xarray_einstats")
    assert api.loo(in_phases).n_samples == weighed(in_phases).total
    assert _WEIGHED in caplog.text


def test_tables_and_groups_have_all_ladders_alike_and_say_so(
    in_phases: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for call in (
        lambda: api.export(in_phases, out=tmp_path / "draws.csv", variables="lp"),
        lambda: api.to_datatree(in_phases, groups=["posterior"]),
    ):
        caplog.clear()
        call()
        assert _ALIKE in caplog.text and "ladders 1 and 3" in caplog.text
    assert len((tmp_path / "draws.csv").read_text().splitlines()) == 1 + 240


def test_ladders_that_agree_are_neither_weighed_nor_warned_of(
    agreeing: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("arviz_stats")
    assert weighed(agreeing).n_chains == 4
    with caplog.at_level(logging.WARNING):
        assert api.load(agreeing, max_mcse=0).n_draws == 240
        api.export(agreeing, out=tmp_path / "draws.csv", variables="lp")
        api.to_datatree(agreeing, groups=["posterior"])
        assert api.loo(agreeing).n_samples == 240
    assert "phases remain" not in caplog.text


def test_a_check_and_a_comparison_say_that_ladders_count_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ladder_spec(tmp_path, settings={"annealing": 4, "adaptation": 8}, iterations=60)
    write_train(tmp_path, n_cases=4)
    run = tmp_path / "run.zarr"
    run_in_phases(run, spec, gap=1.0)
    api.reject(spec, tmp_path / "exact.zarr", draws=20)
    result = api.check(run, tmp_path / "exact.zarr")
    assert not result.ok and _ALIKE in caplog.text
    caplog.clear()
    chains = small_spec(tmp_path, methods={"laplace": {"starts": 2, "steps": 20, "draws": 20}})
    write_train(tmp_path, n_cases=4)
    comparison = api.compare(
        chains,
        tmp_path / "compared",
        data=tmp_path / "train.csv",
        methods="laplace",
        exact=run,
        workers=0,
        progress=False,
    )
    assert _ALIKE in caplog.text and not comparison.ok


def test_the_fit_is_judged_by_the_draws_that_predict(in_phases: Path) -> None:
    run = committed(Store.open(in_phases))
    cases = ReportedCases.chosen_from(run.data.inputs, run.data.targets, "", is_held_out=False)
    reported = read_run("run", run, cases, lambda what: None)
    expected, alike = (evidence_left_out([one]).places["y"].low for one in (weighed(in_phases), run))
    np.testing.assert_array_equal(reported.left_out["y"].low, expected)
    assert np.abs(expected - alike).max() > 0.01
    diagnosis = api.diagnose(in_phases)
    assert diagnosis.fit is not None
    of_weighed = verdict_on_fit([weighed(in_phases)], predictions=diagnosis.predictions)  # type: ignore[union-attr]
    assert diagnosis.fit == of_weighed and of_weighed.remarks


def test_verdicts_on_ladders_do_not_speak_of_chains(in_phases: Path) -> None:
    diagnosis = api.diagnose(in_phases, fit=False)
    for verdict in (diagnosis.predictions, diagnosis.hyperparameters):  # type: ignore[union-attr]
        assert not [line for line in (*verdict.reasons, *verdict.remarks) if "chain" in line]
    assert "ladders 0, 1, 2 and 3" in diagnosis.predictions.decided_by  # type: ignore[union-attr]
