"""The two verdicts on a run, and advice that fits its schedule.

The verdict that predict gives: for its cases, for all its stores, from some of the draws.

Chains in different modes are recognised by their log likelihoods, and only they.
"""

from __future__ import annotations

import ast
import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import studentized_range

from rayfbnn import api
from rayfbnn.answers.diagnostics import Diagnosis, diagnose_draws
from rayfbnn.answers.judging.verdicts import (
    VerdictEvidence,
    _studentized_range,
    judge_hyperparameters,
    mode_sentences,
    modes,
    short_of,
    summarize,
)
from rayfbnn.answers.judging.words import iterations_that_would_do, numbered, rounded_up
from rayfbnn.answers.predict import predict_from_draws, verdict_on_predictions
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import chosen
from tests.support.small import small_spec
from tests.support.store.standin_store import make_data, make_run, make_spec, normal

FIXED = '[{"op": "sample-sigmas"}, {"op": "heatbath"}, {"op": "hybrid", "steps": 7, "stepsize": 0.3}]'
AUTOMATIC = FIXED.replace("0.3", '"auto"')
PHASES = '[{"iterations": 50, "keep": false, "operations": %s}, {"iterations": 400, "operations": %s}]'


UNKNOWN = "cannot judge the predictions"
STUCK = "predictions are not usable: quantities that never change in"


def toml(text: str) -> str:
    """JSON as an override of a configuration takes it."""
    return text.replace('": ', '" = ')


def store_with(operations: str = FIXED, *, n_draws: int = 400, chains: int = 8, **changes: Any) -> Any:
    phases = toml(PHASES % (operations, operations))
    return make_run(make_spec(phase=phases, chains=chains, **changes), n_draws=n_draws)


def judge(run: Any, **settings: Any) -> Diagnosis:
    return diagnose_draws(run, **{"max_rhat": 1.02, **settings})


def with_modes(shift: float, *, chains: int = 8, operations: str = FIXED, **changes: Any) -> Any:
    """A run of which chains 3 and 7 sit elsewhere: their outputs are moved, their likelihood is lower."""
    run = store_with(operations, chains=chains, **changes)
    elsewhere = [chain for chain in (3, 7) if chain < chains]
    run.store.positions[elsewhere, :, -2:] += shift  # the biases of both outputs
    run.store.stats["log_likelihood"][elsewhere] -= 25
    return run


def test_independent_draws_have_converged_in_both() -> None:
    diagnosis = judge(store_with())
    assert diagnosis.predictions.grade == diagnosis.hyperparameters.grade == "converged"
    assert diagnosis.ok and judge(store_with(), decisive="predictions").ok
    assert diagnosis.predictions.advice == diagnosis.hyperparameters.advice == ()
    assert str(diagnosis).endswith("\nok")


def test_hyperparameters_fall_short_alone() -> None:
    run = store_with()
    run.store.stats["log_prior"][2] += 3
    diagnosis = judge(run)
    assert diagnosis.predictions.grade == "converged" and diagnosis.hyperparameters.grade == "not converged"
    assert not diagnosis.ok and judge(run, decisive="predictions").ok
    assert diagnosis.hyperparameters.remarks == (
        "do not interpret these quantities; predictions do not need them and are judged separately",
    )
    assert any(reason.startswith("R-hat above 1.02: log_prior") for reason in diagnosis.reasons)
    assert diagnosis.decided_by == diagnosis.hyperparameters.decided_by == diagnosis.reasons[0]
    assert judge(run, decisive="predictions").decided_by == ""


def test_chains_in_modes_of_like_predictions_are_usable_and_named() -> None:
    run = with_modes(0.5)
    assert not judge(run).ok and judge(run, decisive="predictions").ok
    verdict = judge(run).predictions
    assert verdict.grade == "usable" and verdict.ok and verdict.error is not None
    assert 0 < verdict.error.mean < verdict.error.mean_bound < 0.2
    remarks = " ".join(verdict.remarks)
    assert "the chains sit in different modes; the average gives all chains equal weight" in remarks
    assert "chains 3 and 7 sit in a mode of lower log likelihood" in remarks
    assert "the standard error of the average over 8 chains is" in remarks
    assert "the limit is 20%" in remarks and "the limit is 14%" in remarks


def test_chains_in_modes_of_other_predictions_are_not_usable() -> None:
    diagnosis = judge(with_modes(8.0))
    assert diagnosis.predictions.grade == "not usable" and not diagnosis.predictions.ok
    assert any("chains instead of 8" in advice for advice in diagnosis.predictions.advice)
    assert "the predictions are not usable" in str(diagnosis)


def test_a_drift_below_noise_that_rhat_does_not_see_is_not_converged() -> None:
    run = store_with()
    run.store.positions[:, :, -2:] += 0.42 * np.linspace(-1, 1, 400)[:, None]
    verdict = judge(run).predictions
    assert verdict.error is not None and verdict.error.is_moving
    assert verdict.grade == "not usable" and not judge(run, decisive="all").ok
    assert verdict.decided_by == verdict.reasons[0] and len(verdict.reasons) == 1
    assert verdict.advice[0].startswith("make the run longer")
    few = judge(chosen(run, chains=[0, 1, 2])).predictions  # the movement of three is not judged
    assert few.grade == "converged"


def stuck(chains: list[int], *, shift: float = 0.0) -> Any:
    """A run in which some chains never move, and stay `shift` away from the others."""
    run = store_with()
    run.store.positions[chains] = run.store.positions[0, 0]
    run.store.positions[chains, :, -2:] += shift
    for name in ("log_likelihood", "log_prior"):
        run.store.stats[name][chains] = 0
    return run


def drifting() -> Any:
    run = store_with()
    run.store.positions[:, 200:, -2:] += 30
    return run


def with_noises(factor: float = 6.0) -> Any:
    """A run whose chains agree in the functions, while half of them have a larger noise."""
    run = store_with()
    run.store.precisions[::2, :, run.precision_layout.noise_columns[:1]] /= factor**2
    run.store.stats["log_likelihood"][::2] -= 25
    return run


def infinite() -> Any:
    run = store_with()
    run.store.positions[2, 100:, -2:] = np.inf
    return run


def apart(**changes: Any) -> Any:
    run = store_with(**changes)
    run.store.positions[0, :, -2:] += 30
    return run


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(stuck, [*range(8)]), f"{STUCK} chains 0, 1, 2"),
        (partial(stuck, [5]), f"{STUCK} chain 5: "),
        (partial(stuck, [2, 6], shift=20), f"{STUCK} chains 2 and 6: "),
        (drifting, "predictions are not usable: the predictions still move: their mean changes by "),
        (with_noises, "predictions are not usable: the standard error of the predictive standard deviation"),
        (partial(with_modes, 8.0), "predictions are not usable: the standard error of the average over 8"),
        (infinite, f"{UNKNOWN}: the means or variances predicted by the 8 chains are not all finite"),
        (partial(apart, chains=3), f"{UNKNOWN}: 3 chains are too few"),
        (partial(apart, chains=1), f"{UNKNOWN}: only one chain; R-hat needs at least 2"),
        (partial(apart, n_draws=3), f"{UNKNOWN}: only 3 draws in each chain"),
    ],
    ids=["all stuck", "one stuck", "stuck away", "drift", "sd", "mean", "infinite", "3", "1", "3 draws"],
)
def test_the_reason_that_decides_is_named_first(make: Callable[[], Any], reason: str) -> None:
    diagnosis = judge(make())
    verdict = diagnosis.predictions
    assert verdict.warning.startswith(reason)
    decided_by = verdict.warning.split(": ", 1)[1]
    text = " ".join(str(diagnosis).split())
    assert f"predictions: {verdict.grade} {decided_by}" in text
    assert f"{verdict.grade}</strong></p><ul><li>{escape(decided_by)}" in verdict._repr_html_()
    assert decided_by in (*verdict.remarks, *verdict.reasons)
    assert diagnosis.decided_by == decided_by


@pytest.mark.parametrize("chains", [[5], list(range(8))])
def test_more_chains_are_not_advised_where_chains_never_move(chains: list[int]) -> None:
    advice = " ".join(judge(stuck(chains)).predictions.advice)
    assert "chains instead of" not in advice and "a smaller stepsize of hybrid" in advice


def test_no_number_of_iterations_is_promised_where_chains_are_in_modes() -> None:
    diagnosis = judge(with_modes(0.5))
    assert diagnosis.predictions.iterations is None
    assert any("no number of iterations can be promised" in one for one in diagnosis.predictions.advice)
    assert np.isnan(diagnosis.quantities.loc["log_likelihood", "iterations"])


def test_iterations_that_would_do_follow_from_the_effective_sample_size() -> None:
    run = store_with(n_draws=400)
    few = 0.9 * np.repeat(normal(5, (8, 40)), 10, axis=1) + 0.1 * normal(6, (8, 400))
    run.store.stats["log_prior"][...] = few  # about 320 effective draws
    diagnosis = judge(run, max_rhat=1.05)
    row = diagnosis.quantities.loc["log_prior"]
    worst = min(row["ess_bulk"], row["ess_tail"])
    assert worst < 400
    assert row["iterations"] == rounded_up(400 * 400 / worst)
    assert diagnosis.hyperparameters.iterations == row["iterations"]
    advice = f"continue with: rayfbnn resume run.zarr --iterations {row['iterations']:.0f}"
    assert advice in diagnosis.hyperparameters.advice
    assert diagnosis.quantities.drop("log_prior")["iterations"].isna().all()


@pytest.mark.parametrize(("max_rhat", "factor"), [(1.02, (1.05**2 - 1) / (1.02**2 - 1)), (1.0, np.inf)])
def test_iterations_that_would_do_follow_from_rhat_where_it_asks_for_more(
    max_rhat: float, factor: float
) -> None:
    """1 / (R-hat**2 - 1) grows with the draws, whatever the effective sample size still lacks."""
    spec = store_with().spec
    for ess in (300.0, 1e6):
        row = pd.Series({"rhat": 1.05, "ess_bulk": ess, "ess_tail": 2 * ess})
        needed = iterations_that_would_do(row, spec, 200, max_rhat=max_rhat, min_ess=400)
        if np.isinf(factor):
            assert np.isnan(needed)
        else:
            assert needed == rounded_up(400 + 200 * (factor - 1)) > 600


@pytest.mark.parametrize(("value", "expected"), [(7.2, 8), (401, 410), (1600, 1600), (16010, 17000)])
def test_numbers_are_rounded_up_to_two_digits(value: float, expected: int) -> None:
    assert rounded_up(value) == expected


def divergent(operations: str, **changes: Any) -> str:
    run = store_with(operations, **changes)
    run.store.stats["diverged"][:, :50] = 1
    diagnosis = judge(run)
    assert any("400 updates diverged, in 12.5% of the iterations" in one for one in diagnosis.reasons)
    assert diagnosis.predictions.grade == "usable"
    (advice,) = diagnosis.predictions.advice
    return advice


@pytest.mark.parametrize(
    ("operations", "changes", "advised", "absent"),
    [
        (FIXED, {}, "a smaller stepsize of hybrid (phase[1], currently 0.3)", "float64"),
        (AUTOMATIC, {}, "automatic settings (phase[0].iterations, currently 50)", "smaller stepsize"),
        (FIXED, {"dtype": '"float32"'}, 'dtype = "float64"', "alphas"),
        (FIXED, {"network__priors__bh0": '"1:0.5"'}, "alphas of 1 or more for bh0", "tuning phase"),
    ],
)
def test_advice_on_divergences_names_what_applies(
    operations: str, changes: dict[str, str], advised: str, absent: str
) -> None:
    advice = divergent(operations, **changes)
    assert advised in advice and absent not in advice


def test_longer_trajectories_are_only_advised_where_their_length_is_fixed() -> None:
    fixed, automatic = (
        " ".join(judge(with_modes(0.5, operations=operations)).predictions.advice)
        for operations in (FIXED, FIXED.replace("7", '"auto"'))
    )
    assert "longer trajectories (steps of hybrid in phase[1], currently 7)" in fixed
    assert "longer trajectories" not in automatic


@pytest.mark.parametrize(
    ("units", "weights", "advised"),
    [
        ((6,), ("ih0", "ho0"), "12 instead of 6"),
        ((6, 9), ("ih0", "h0h1", "ho1"), "12 and 18 instead of 6 and 9"),
        ((64,), ("ih0", "ho0"), None),
        ((), ("io",), None),
    ],
)
def test_more_units_are_advised_where_chains_are_in_modes(
    units: tuple[int, ...], weights: tuple[str, ...], advised: str | None
) -> None:
    layers = ", ".join(f'{{ units = {n}, activation = "tanh" }}' for n in units)
    priors = ", ".join(f'{name} = "1:4"' for name in (*weights, "bo"))
    network = {"network__hidden": f"[{layers}]", "network__priors": f"{{ {priors} }}"}
    advice = " ".join(judge(with_modes(0.5, **network)).predictions.advice)
    assert "fewer hidden units" not in advice
    if advised is None:
        assert "hidden units" not in advice
    else:
        assert f"more hidden units ({advised}; the same number of iterations takes about twice" in advice


def test_numbers_just_beyond_their_limit_are_seen_to_be() -> None:
    table = pd.DataFrame(
        {"rhat": [1.0104, 1.2, 1.0], "ess_bulk": [399.7, 500, 80], "ess_tail": [400.0, 399.996, 401]},
        index=["f0", "f1", "f2"],
    )
    assert short_of(table, 1.01, 400) == [
        "R-hat above 1.01: f1 1.200, f0 1.0104",
        "bulk ESS below 400: f2 80, f0 399.7",
        "tail ESS below 400: f1 399.996",
    ]


def test_a_quantity_without_known_statistics_has_not_converged() -> None:
    run = store_with()
    values = summarize([("f0", normal(3, (8, 400)))])
    evidence = VerdictEvidence(
        replace(values, table=values.table.assign(iterations=math.nan)),
        *(8, 400, "", (), run.spec, "run.zarr"),
        max_rhat=1.1,
        min_ess=100,
    )
    assert judge_hyperparameters(evidence).grade == "converged"
    for column in ("rhat", "ess_bulk", "ess_tail"):
        unknown = replace(evidence.summary, table=evidence.summary.table.assign(**{column: math.nan}))
        verdict = judge_hyperparameters(replace(evidence, summary=unknown))
        assert verdict.grade == "not converged" and verdict.reasons == ("R-hat or ESS is not known: f0",)


def test_two_chains_are_enough_to_see_that_hyperparameters_disagree() -> None:
    run = store_with(chains=2)
    run.store.stats["log_prior"][1] += 3
    assert judge(run).hyperparameters.grade == "not converged"
    one = judge(chosen(run, chains=[0])).hyperparameters
    assert one.grade == "cannot tell" and one.decided_by == "only one chain; R-hat needs at least 2"


@pytest.mark.parametrize(("ess", "is_known"), [(400 / 5e5, True), (400 / 2e6, False)])
def test_no_more_than_a_thousand_million_iterations_are_advised(ess: float, is_known: bool) -> None:
    row = pd.Series({"rhat": 1.0, "ess_bulk": ess, "ess_tail": ess})
    needed = iterations_that_would_do(row, make_spec(), 1000, max_rhat=1.01, min_ess=400)
    assert math.isfinite(needed) == is_known


def test_two_chains_that_agree_have_converged() -> None:
    """Few chains are judged by R-hat alone, because the error of their average cannot be told."""
    assert judge(store_with(chains=2, n_draws=1000)).predictions.grade == "converged"


SPEC = make_spec(chains=8)


def one(seed: int = 11, *, n_draws: int = 300) -> Any:
    """A run of eight chains."""
    return make_run(SPEC, make_data(SPEC), n_draws=n_draws, seed=seed)


def test_runs_that_disagree_with_each_other_are_not_enough_together() -> None:
    other = one(50)
    other.store.positions[:, :, -2:] += 20
    runs = [one(), other]
    alone = [verdict_on_predictions([run], run.data.inputs) for run in runs]
    together = verdict_on_predictions(runs, runs[0].data.inputs)
    assert all(verdict is not None and verdict.ok and verdict.warning == "" for verdict in alone)
    assert together is not None and together.grade == "not usable"
    assert together.warning.startswith("predictions are not usable: the standard error of the average over")
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


def autocorrelated(seed: int, shape: tuple[int, int], coefficient: float) -> Array:
    """An autoregressive process of standard deviation one for each chain."""
    values = normal(seed, shape)
    for draw in range(1, shape[1]):
        values[:, draw] = coefficient * values[:, draw - 1] + math.sqrt(1 - coefficient**2) * values[:, draw]
    return values


def test_three_modes_are_told_apart_and_compared_with_the_largest() -> None:
    values = normal(2, (6, 100)) + np.array([0.0, 0, 0, -20, -20, 30])[:, None]
    found = modes(values)
    assert [mode.chains for mode in found] == [(0, 1, 2), (3, 4), (5,)]
    assert [mode.log_likelihood for mode in found] == pytest.approx([0, -20, 30], abs=1)
    lower, higher = mode_sentences(found)
    assert lower.startswith("chains 3 and 4 sit in a mode of lower log likelihood (-19.96 against -0.12")
    assert higher.startswith("chain 5 sits in a mode of higher")


@pytest.mark.parametrize("coefficient", [0.0, 0.9])
def test_chains_of_one_distribution_are_in_one_mode(coefficient: float) -> None:
    """At most one in a hundred is taken apart, also where the autocorrelation time is a fifth of the run."""
    n_runs = 40
    apart = sum(len(modes(autocorrelated(seed, (6, 100), coefficient))) > 1 for seed in range(n_runs))
    assert apart <= 3  # 1 in 1,400 if the rate is one in a hundred


def test_a_difference_below_two_standard_deviations_is_no_mode() -> None:
    values = normal(4, (4, 2000)) + np.array([0.0, 0, 0, 1.5])[:, None]
    assert len(modes(values)) == 1


def test_a_difference_that_chance_allows_to_slow_chains_is_no_mode() -> None:
    """Chains that cross their range once tell little of their mean: 2.4 standard deviations may be chance."""
    slow = np.linspace(-1, 1, 100) + 0.01 * normal(6, (4, 100))
    apart = np.array([0.0, 0, 0, 2.4])[:, None] * slow.std()
    assert len(modes(slow + apart)) == 1
    fast = normal(6, (4, 100))
    assert len(modes(fast + np.array([0.0, 0, 0, 2.4])[:, None])) == 2


def test_chains_that_never_change_are_apart_by_their_values() -> None:
    values = np.repeat(np.array([[1.0], [1.0], [5.0]]), 10, axis=1)
    assert [mode.chains for mode in modes(values)] == [(0, 1), (2,)]


@pytest.mark.parametrize("shape", [(1, 50), (4, 3)])
def test_nothing_is_told_from_one_chain_or_few_draws(shape: tuple[int, int]) -> None:
    assert modes(normal(5, shape)) == ()
    assert mode_sentences(()) == []


def test_many_chains_are_not_all_named() -> None:
    assert numbered([3]) == "chain 3"
    assert numbered(list(range(10))) == "chains 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize("n_chains", [2, 5, 40])
def test_chance_is_that_of_the_studentized_range(n_chains: int) -> None:
    expected = studentized_range.ppf(0.99, n_chains, np.inf)
    assert _studentized_range(n_chains) == pytest.approx(expected, rel=1e-8)
