"""The verdict on fit of a mean that misses something: its power, its words, and its false alarms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special

import rayfbnn
from rayfbnn.answers.judging.fit import FitVerdict, judge_fit
from rayfbnn.answers.judging.fit_evidence import FitEvidence, JudgedTarget
from rayfbnn.answers.judging.fit_tests import (
    MEAN,
    PRODUCTS,
    LabelCases,
    NumberCases,
    calibrated,
    features,
    has_order,
    joint_p,
    labels_have_order,
    normal_scores,
)
from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.binary import BinaryTargets
from rayfbnn.model.likelihood.real import RealTargets
from tests.support.model.linear import LinearModel, problem

N_CASES = 200
UNITS = "more hidden units or another hidden layer"
NOISE = 'model = { kind = "heteroscedastic" }'
RIGHT_WORDS = {
    "curve": ("the mean of y misses a curve in x1: targets are", "a transformed x1 as another input"),
    "product": (
        "the mean of y misses a product of x1 and x2: targets are",
        "the product of x1 and x2 as another",
    ),
    "trend": ("the mean of y misses a trend over the rows: targets are", "when each row was measured"),
}


def verdicts(missed: str, seed: int, n_cases: int = N_CASES, **changes: Any) -> list[FitVerdict]:
    """Return the verdicts on training cases and on test cases of an exact linear model."""
    rng = np.random.default_rng([11, seed])
    x, y = problem(missed, n_cases, rng, **changes)
    y += x[:, 2:] @ rng.normal(size=x.shape[1] - 2)  # the other weights are as the prior has them
    model = LinearModel(x[:n_cases], y[:n_cases])
    evidences = model.left_out(rng), model.at(x[n_cases:], y[n_cases:], rng)
    return [judge_fit([evidence], RealTargets(math.inf), is_positive={}) for evidence in evidences]


@pytest.mark.parametrize("missed", RIGHT_WORDS)
def test_a_mean_that_misses_something_is_found_and_named(missed: str) -> None:
    """The seeds are fixed; docs/diagnostics.md has the power of more problems."""
    reason, remedy = RIGHT_WORDS[missed]
    for of_cases in zip(*(verdicts(missed, seed) for seed in range(6)), strict=True):
        found = [fit for fit in of_cases if fit.grade == "misfit"]
        assert len(found) >= (4 if missed == "trend" else 6)
        named = [fit for fit in found if fit.reasons[0].startswith(reason) and remedy in fit.advice[0]]
        assert len(named) >= len(found) - 1
        assert not any(NOISE in advice for fit in named for advice in fit.advice)


@pytest.mark.long
@pytest.mark.parametrize(("n_cases", "n_problems"), [(50, 400), (200, 200), (1000, 30)])
@pytest.mark.parametrize("n_inputs", [2, 10])
def test_false_alarms_are_rare(n_cases: int, n_problems: int, n_inputs: int) -> None:
    every = [verdicts("nothing", seed, n_cases, n_inputs=n_inputs) for seed in range(n_problems)]
    for of_cases in zip(*every, strict=True):
        n_alarms = sum(fit.grade == "misfit" for fit in of_cases)
        assert n_alarms <= 0.05 * n_problems + 3 * np.sqrt(0.05 * 0.95 * n_problems)  # 1 in 700


def test_false_alarms_are_rare_in_few_cases() -> None:
    for of_cases in zip(*(verdicts("nothing", seed, 50) for seed in range(40)), strict=True):
        assert sum(fit.grade == "misfit" for fit in of_cases) <= 6  # more: 1 in 300; seeds fixed


def test_a_spread_that_varies_as_well_is_named_second() -> None:
    rng = np.random.default_rng(12)
    x, y = problem("curve", N_CASES, rng)
    y += 0.5 * x[:, 0] ** 2 + np.where(x[:, 1] > 0, 1.3, 0) * rng.normal(size=len(y))
    fit = judge_fit([LinearModel(x, y).left_out(rng)], RealTargets(math.inf), is_positive={})
    kinds = [reason.split(" of y ")[0] for reason in fit.reasons]
    assert kinds.index("the mean") < kinds.index("the spread")
    assert fit.advice[0].startswith(UNITS) and any(NOISE in advice for advice in fit.advice[1:])


def test_two_things_that_the_mean_misses_are_named_one_after_the_other() -> None:
    rng = np.random.default_rng(13)
    x, y = problem("curve", N_CASES, rng)
    fit = judge_fit(
        [LinearModel(x, y + x[:, 0] * x[:, 1]).left_out(rng)], RealTargets(math.inf), is_positive={}
    )
    assert {reason.split(":")[0] for reason in fit.reasons} >= {
        "the mean of y misses a curve in x1",
        "the mean of y misses a product of x1 and x2",
    }


def sampled(
    folder: Path, y: Array, x: Array, seed: int, model: dict[str, Any]
) -> tuple[FitVerdict, FitVerdict]:
    """Return the verdicts on training and test cases of a short run of a network without hidden units."""
    operations = [
        {"op": "sample-sigmas"},
        {"op": "heatbath"},
        {"op": "hybrid", "steps": 10, "stepsize": 0.4, "stepsize_jitter": -1.1},
    ]
    spec = {
        "seed": seed,
        "chains": 4,
        "dtype": "float64",
        "data": {"targets": ["y"], "inputs": ["x1", "x2"]},
        "model": model,
        "network": {"hidden": [], "priors": {"io": "1", "bo": "3"}},
        "phase": [
            {"iterations": 40, "keep": False, "operations": operations},
            {"iterations": 80, "operations": operations},
        ],
    }
    table = pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "y": y})
    path = folder / f"{seed}.zarr"
    rayfbnn.sample(spec, path, data=table[: len(y) // 2], workers=0, progress=False)
    of_training = rayfbnn.diagnose(path).fit
    of_test = rayfbnn.predict(path, data=table[len(y) // 2 :]).fit
    assert of_training is not None and of_test is not None
    return of_training, of_test


def test_five_runs_of_a_linear_network_name_the_input_of_a_missed_curve(tmp_path: Path) -> None:
    for seed in range(5):
        x, y = problem("curve", N_CASES, np.random.default_rng([14, seed]))
        for fit in sampled(tmp_path, y, x, seed, {"kind": "real", "noise": "0.5:0.5"}):
            assert fit.grade == "misfit"
            assert fit.reasons[0].startswith("the mean of y misses a curve in x1")
            assert fit.advice[0].startswith(UNITS) and "x1" in fit.advice[0]
            assert not any(NOISE in advice for advice in fit.advice)


def test_a_logistic_network_that_misses_a_curve_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(15)
    x = rng.normal(size=(2 * N_CASES, 2))
    p = scipy.special.expit(x[:, 0] - x[:, 1] / 2 + x[:, 0] ** 2 - 1)
    y = (rng.uniform(size=len(p)) < p).astype(float)
    for fit in sampled(tmp_path, y, x, 1, {"kind": "binary"}):
        assert fit.grade == "misfit"
        assert fit.reasons[0].startswith(
            "P(y = 1) misses a curve in x1: the share of cases with the label is"
        )
        assert "percentage points below predictions where x1 is near its median" in fit.reasons[0]
        assert "a transformed x1 as another input" in fit.advice[0]


def test_log_odds_that_miss_a_product_or_a_trend_are_found() -> None:
    rng = np.random.default_rng(16)
    x, rows = rng.normal(size=(400, 2)), np.linspace(-1.5, 1.5, 400)
    inputs = {"x1": x[:, 0], "x2": x[:, 1]}
    for missed, name in [(x[:, 0] * x[:, 1], "a product of x1 and x2"), (rows, "a trend over the rows")]:
        true = rng.uniform(size=400) < scipy.special.expit(missed)
        probability = np.full(400, 0.5)
        drawn = rng.uniform(size=(999, 400)) < probability
        cases = LabelCases(np.concatenate([true[None], drawn]), probability, 0.0, inputs, has_order=True)
        evidence = FitEvidence(True, 400, 400, 0, 0, (JudgedTarget("y", "P(y = 1)", cases),))
        fit = judge_fit([evidence], BinaryTargets(), is_positive={})
        assert fit.grade == "misfit" and fit.reasons[0].startswith(f"P(y = 1) misses {name}:")


def cases_of(rng: np.random.Generator, n_rows: int = 400, **changes: Any) -> NumberCases:
    places, x = rng.uniform(size=(n_rows, 60)), rng.normal(size=(60, 2))
    covariates = {"the predicted value": x[:, 0] + x[:, 1], "x1": x[:, 0], "x2": x[:, 1]}
    return replace(
        NumberCases(places, places, places, covariates, frozenset(["x1", "x2"]), has_order=True), **changes
    )


def test_the_order_of_cases_matters_only_for_the_trend() -> None:
    cases, order = cases_of(np.random.default_rng(17)), np.random.default_rng(18).permutation(60)
    covariates = {name: values[order] for name, values in cases.covariates.items()}
    other = replace(
        cases,
        low=cases.low[:, order],
        high=cases.high[:, order],
        place=cases.place[:, order],
        covariates=covariates,
    )
    for test, of_other in zip(cases.tests(), other.tests(), strict=True):
        is_trend = test.of == "a trend over the rows"
        assert np.allclose(test.p, of_other.p, rtol=1e-6) is not is_trend, test.of


def test_the_joint_p_value_is_exact_among_replicates() -> None:
    """Each row takes the place of the targets in turn: the ranks are 1 to the number of rows."""
    tests = [calibrated(test) for test in cases_of(np.random.default_rng(19), n_rows=40).tests()]
    found = []
    for row in range(40):
        order = [row, *(other for other in range(40) if other != row)]
        found.append(joint_p([replace(test, p=test.p[order]) for test in tests]))
    assert sorted(found) == pytest.approx((np.arange(40) + 1) / 40)


def test_what_replicates_share_weakens_a_test() -> None:
    rng = np.random.default_rng(20)
    z = 3 * rng.normal(size=500)
    test = cases_of(rng, n_rows=2).tests()[0]
    wide = calibrated(replace(test, p=2 * scipy.special.ndtr(-np.abs(z))))
    assert ((wide.p <= 0.05).mean()) == pytest.approx(0.05, abs=0.03)
    alone = replace(test, p=np.array([1e-9]))
    assert calibrated(alone) is alone


def test_a_case_that_pulls_the_predicted_value_weakens_its_slope_alone() -> None:
    cases = cases_of(np.random.default_rng(21), n_rows=2)
    for free, pulled in zip(cases.tests(), replace(cases, pull=3.0).tests(), strict=True):
        if free.kind == MEAN and "the predicted value" in free.of:
            assert pulled.p[0] > free.p[0]
        else:
            assert pulled.p[0] == free.p[0]
        assert pulled.p[1] == free.p[1]


def test_removed_features_leave_nothing_of_themselves() -> None:
    cases = cases_of(np.random.default_rng(22), n_rows=5)
    name = "a curve in x2"
    (curve,) = [feature for feature in cases.features() if feature.name == name]
    scores = normal_scores(cases.without([name]).place)
    np.testing.assert_allclose(scores @ curve.values, 0, atol=1e-9)
    assert (scores.std(axis=1) >= 1 - 1e-9).all()


def test_few_leading_inputs_have_products() -> None:
    """The seventh and the second of eight inputs lead, and a constant input has no product of its own."""
    x = np.random.default_rng(23).normal(size=(100, 8))
    inputs = {f"x{number}": column for number, column in enumerate(x.T, 1)}
    products = [
        feature.of
        for feature in features(inputs, 5 * x[:, 6] + 5 * x[:, 1], has_order=False)
        if feature.group == PRODUCTS
    ]
    assert len(products) == 10 and ("x2", "x7") in products


def test_inputs_of_two_values_and_constants_have_slopes_alone() -> None:
    inputs = {"two": np.arange(30) % 2.0, "one": np.ones(30), "three": np.arange(30) % 3.0}
    found = {feature.name for feature in features(inputs, None, has_order=False) if feature.values.any()}
    assert found == {"a slope in two", "a slope in three", "a curve in three", "a product of two and three"}


@pytest.mark.parametrize(
    ("targets", "is_mixed"),
    [
        (np.random.default_rng(24).normal(size=100), True),
        (np.linspace(-5, 5, 100) + np.random.default_rng(25).normal(size=100), True),
        (np.arange(100.0), False),
        (-np.arange(100.0), False),
        (np.repeat([3.0, 4.0, 5.0], 30), False),
        (np.concatenate([np.arange(50.0), np.arange(60.0)]), False),
        (np.zeros(50), False),
    ],
)
def test_rows_that_are_sorted_by_the_target_have_no_trend(targets: Array, is_mixed: bool) -> None:
    assert has_order(targets) is is_mixed


def test_rows_that_are_grouped_by_label_have_no_trend() -> None:
    labels = np.repeat([0, 2, 1], 40)
    assert not any(labels_have_order(labels == label) for label in range(3))
    assert labels_have_order(np.random.default_rng(26).uniform(size=120) < np.linspace(0.05, 0.95, 120))
