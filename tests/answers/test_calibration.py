"""The places of targets within predictive distributions, and what follows for calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from rayfbnn.answers.measures import Places, labelled, places, reliability
from rayfbnn.answers.predict import predict_from_draws
from tests.support.store.standin_store import (
    OTHER_MODELS,
    counts_by_hand,
    log_hazards_by_hand,
    make_data,
    make_run,
    make_spec,
    outputs_by_hand,
    run_of,
    survival_by_hand,
    uniform,
)


@pytest.mark.parametrize("model", OTHER_MODELS, ids=lambda model: " ".join(map(str, model.values())))
def test_places_are_those_by_hand(model: dict[str, Any]) -> None:
    run, inputs, targets = run_of(model)
    targets[1, -1] = np.nan
    placed = places([run], inputs, targets)
    outputs = outputs_by_hand(run, inputs) if model["kind"] != "survival" else None
    if model["kind"] == "count":
        counts = counts_by_hand(run, inputs)
        low, high = (counts.cdf(ends).mean(axis=0) for ends in (targets - 1, targets))
    elif model["kind"] == "heteroscedastic":
        means, log_precisions = np.split(outputs, 2, axis=2)
        low = high = scipy.stats.norm.cdf(targets, means, np.exp(-log_precisions / 2)).mean(axis=0)
    else:
        log_hazard, points = log_hazards_by_hand(run, inputs), model.get("time_points", [])
        times = np.abs(targets[:, 0])
        alive = [survival_by_hand(t, log_hazard, points)[:, i].mean() for i, t in enumerate(times)]
        low = 1 - np.array(alive)[:, None]
        high = np.where(targets < 0, 1.0, low)
        assert (targets < 0).any()
    low, high = (np.where(np.isnan(targets), np.nan, end) for end in (low, high))
    np.testing.assert_allclose(placed.low, low, atol=1e-12)
    np.testing.assert_allclose(placed.high, high, atol=1e-12)


@pytest.mark.parametrize("noise", ["0.3:4", "0.3:4::5"])
def test_places_of_real_targets_are_those_by_hand(noise: str) -> None:
    run = make_run(make_spec(model__noise=noise, data__standardize='["targets"]'))
    unseen, data = make_data(run.spec, 5, seed=41), run.data
    placed = places([run], unseen.inputs, unseen.targets)
    outputs = outputs_by_hand(run, unseen.inputs)
    columns = run.precision_layout.noise_columns
    sigmas = run.store.precisions.reshape(len(outputs), -1)[:, columns][:, None] ** -0.5
    z = ((unseen.targets - data.target_center) / data.target_scale - outputs) / sigmas
    df = run.spec.model.noise.alphas[2]
    by_hand = (scipy.stats.norm if np.isinf(df) else scipy.stats.t(df)).cdf(z).mean(axis=0)
    np.testing.assert_allclose(placed.low, by_hand, atol=1e-12)
    assert placed.low is placed.high or (placed.low == placed.high).all()


def test_several_stores_are_pooled() -> None:
    first, second = make_run(make_spec()), make_run(make_spec(seed=2), seed=5)
    unseen = make_data(first.spec, 5, seed=41)
    both = places([first, second], unseen.inputs, unseen.targets).low
    of_stores = [places([run], unseen.inputs, unseen.targets).low for run in (first, second)]
    np.testing.assert_allclose(both, np.mean(of_stores, axis=0))


def test_a_place_is_spread_evenly() -> None:
    """One case at 0.2, one from 0.4 to 0.8, and one from 0.5 to 1 as a censored time is."""
    spread = Places(np.array([0.2, 0.4, 0.5]), np.array([0.2, 0.8, 1.0]))
    np.testing.assert_allclose(spread.share_below([0.1, 0.2, 0.6]), [0, 1 / 3, (1 + 0.5 + 0.2) / 3])
    np.testing.assert_allclose(spread.coverage([0.5]), [(0 + 0.35 / 0.4 + 0.25 / 0.5) / 3])
    np.testing.assert_allclose(spread.histogram(2), [(1 + 0.25) / 3, (0.75 + 1) / 3])
    np.testing.assert_allclose(spread.scores, scipy.stats.norm.ppf([0.2, 0.6, 0.75]))


def test_places_of_the_true_distribution_are_calibrated() -> None:
    """Counts of rate 1.5: half of the cases are at 0 or 1, and still 80 % of the mass is inside."""
    n = 4000
    counts = scipy.stats.poisson.ppf(uniform(3, (n,)), 1.5)
    true = Places(scipy.stats.poisson.cdf(counts - 1, 1.5), scipy.stats.poisson.cdf(counts, 1.5))
    z = (true.coverage([0.8])[0] - 0.8) / np.sqrt(0.8 * 0.2 / n)
    assert abs(z) < 4  # spread cases vary less than a binomial share: below 1 in 16,000; seed fixed


def test_a_certain_target_has_a_finite_score() -> None:
    assert Places(np.array([0.0, 1.0]), np.array([0.0, 1.0])).scores.tolist() == [-8.0, 8.0]


def test_missing_targets_have_no_place() -> None:
    nothing = Places(np.full((3, 1), np.nan), np.full((3, 1), np.nan)).of_target(0)
    assert len(nothing.low) == 0


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_labels_are_paired_with_their_probabilities(kind: str) -> None:
    run = make_run(make_spec(kind))
    unseen = make_data(run.spec, 8, seed=41)
    unseen.targets[2, 0] = np.nan
    table = predict_from_draws([run], unseen.inputs).table
    pairs = labelled(run, table, unseen.targets)
    assert len(pairs) == len(run.spec.data_model.probability_columns(run.data.target_names))
    known = ~np.isnan(unseen.targets[:, 0])
    probability, has_label = list(pairs.values())[0 if kind == "binary" else 1]
    np.testing.assert_array_equal(probability, table.iloc[:, 0 if kind == "binary" else 1][known])
    np.testing.assert_array_equal(has_label, unseen.targets[known, 0] == 1)


def test_reliability_by_hand() -> None:
    probability = np.array([0.05, 0.01, 0.55, 0.51, 1.0])
    table = reliability(probability, np.array([False, True, True, True, True]))
    assert table["cases"].tolist() == [2, 2, 1]
    np.testing.assert_allclose(table["predicted"], [0.03, 0.53, 1.0])
    np.testing.assert_allclose(table["observed"], [0.5, 1.0, 1.0])
    assert (table["low"] <= table["predicted"]).all() and (table["high"] >= table["predicted"]).all()
