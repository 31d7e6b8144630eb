"""The verdict that predict gives: for its cases, for all its stores, from some of the draws."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.answers.predict import predict_from_draws, verdict_on_predictions
from tests.support.small import small_spec
from tests.support.store.standin_store import make_data, make_run, make_spec

SPEC = make_spec(chains=8)


def one(seed: int = 11, *, shift: float = 0.0, n_draws: int = 300) -> Any:
    """A run of eight chains, of which half are moved by `shift` in both outputs."""
    run = make_run(SPEC, make_data(SPEC), n_draws=n_draws, seed=seed)
    run.store.positions[::2, :, -2:] += shift
    return run


def test_chains_that_agree_are_enough_for_predictions() -> None:
    run = one()
    verdict = verdict_on_predictions([run], run.data.inputs)
    assert verdict is not None and verdict.ok and verdict.warning == ""


def test_chains_that_predict_other_things_are_not() -> None:
    run = one(shift=20.0)
    verdict = verdict_on_predictions([run], run.data.inputs)
    assert verdict is not None and verdict.grade == "not usable"
    assert verdict.warning.startswith("predictions are not usable: the standard error of the average over 8")


def test_runs_that_disagree_with_each_other_are_not_enough_together() -> None:
    other = one(50)
    other.store.positions[:, :, -2:] += 20
    runs = [one(), other]
    alone = [verdict_on_predictions([run], run.data.inputs) for run in runs]
    together = verdict_on_predictions(runs, runs[0].data.inputs)
    assert all(verdict is not None and verdict.ok for verdict in alone)
    assert together is not None and together.grade == "not usable"
    assert together.error is not None and together.error.chains == 16


def test_runs_of_other_lengths_are_judged_by_the_last_draws_of_both() -> None:
    runs = [one(), one(50, n_draws=120)]
    verdict = verdict_on_predictions(runs, runs[0].data.inputs)
    assert verdict is not None and verdict.ok


def test_the_cases_that_are_predicted_are_those_looked_at() -> None:
    run = one()
    views = run.parameter_layout.views(run.store.positions)
    views["ih0"][...] = 0  # outputs do not depend on the inputs
    views["bh0"][...] = 0
    views["ih0"][::2, :, 0, :] = 3.0  # in half of the chains on the first one, if it is not zero
    views["ho0"][...] = np.abs(views["ho0"]) * 10
    views["bo"][...] = 0
    near, far = np.zeros((5, 2)), np.full((5, 2), 5.0)
    errors = [verdict_on_predictions([run], inputs).error.mean for inputs in (near, far)]  # type: ignore[union-attr]
    assert errors[0] < 1e-9 < 0.1 < errors[1]


def test_draws_that_are_not_of_markov_chains_have_no_verdict() -> None:
    run = make_run(SPEC, kind="exact")
    assert verdict_on_predictions([run], run.data.inputs) is None
    assert "verdict" not in json.loads(predict_from_draws([run], run.data.inputs).to_json())


def test_json_has_the_grade_and_the_error() -> None:
    run = one()
    verdict = verdict_on_predictions([run], run.data.inputs)
    document = json.loads(replace(predict_from_draws([run], run.data.inputs), verdict=verdict).to_json())
    assert set(document["verdict"]) == {"grade", "ok", "error"} and document["verdict"]["ok"] is True


def test_predict_warns_in_one_line_where_draws_are_too_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run.zarr"
    api.sample(small_spec(tmp_path), run, workers=0, progress=False)
    with caplog.at_level(logging.WARNING):
        prediction = api.predict(run, data=tmp_path / "train.csv", skip=8)
    (record,) = caplog.records
    assert "cannot judge the predictions: only 2 draws in each" in record.getMessage()
    assert f"rayfbnn diagnose {run} --for predictions" in record.getMessage()
    assert prediction.verdict is not None and prediction.verdict.grade == "cannot tell"


def test_predictions_and_verdicts_of_chains_meet_nothing_of_ladders(tmp_path: Path) -> None:
    run, data = tmp_path / "run.zarr", tmp_path / "train.csv"
    api.sample(small_spec(tmp_path), run, workers=0, progress=False)
    code = f"""
import sys, rayfbnn
rayfbnn.predict({str(run)!r}, data={str(data)!r})
rayfbnn.diagnose({str(run)!r})
print([name for name in sys.modules if name.startswith("rayfbnn.") and "ladder" in name])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(ast.literal_eval(found.stdout))
    assert not {name for name in names if name.startswith(("rayfbnn.answers", "rayfbnn.draws"))}
