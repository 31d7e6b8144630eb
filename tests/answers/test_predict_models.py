"""Predictions of counts, survival times and heteroscedastic targets equal brute force over all draws.

Harrell's C-index against all pairs one by one, and its standard error against the jackknife.
"""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats

from rayfbnn.answers.measures import MEASURES, Concordance, concordance
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import quantities
from rayfbnn.model.likelihood.count import mass_sums
from rayfbnn.reduce.effective import mcse_mean
from rayfbnn.reduce.search import QuantileSearch, most_probable
from tests.support.store.standin_store import (
    DISPERSED,
    N_TEST,
    PIECEWISE,
    MemoryStore,
    counts_by_hand,
    log_hazards_by_hand,
    normal,
    outputs_by_hand,
    run_of,
    survival_by_hand,
    uniform,
)

QUANTILES = {"median": 0.5, "q01": 0.01, "q10": 0.1, "q90": 0.9, "q99": 0.99}


def by_chain(run: MemoryStore, values: Array) -> Array:
    """Reshape values (draws of all chains, n_cases) for mcse_mean."""
    return values.T.reshape(-1, run.n_chains, run.n_draws)


@pytest.mark.parametrize("model", [{"kind": "count"}, DISPERSED], ids=["Poisson", "with dispersion"])
def test_counts(model: dict[str, Any]) -> None:
    run, inputs, targets = run_of(model)
    prediction = predict_from_draws([run], inputs, targets)
    table = prediction.table
    counts, rates = counts_by_hand(run, inputs), np.exp(outputs_by_hand(run, inputs))
    k = np.arange(3000.0)
    masses = counts.pmf(k[:, None, None, None]).mean(axis=1)  # (n_counts, n_cases, n_targets)
    log_joint, expected_errors = np.zeros(rates.shape[:2]), np.zeros((N_TEST, 2))
    for target, name in enumerate(("y1", "y2")):
        rate = rates[:, :, target]
        np.testing.assert_allclose(table[f"{name}_mean"], rate.mean(axis=0), rtol=1e-12)
        variance = rate.var(axis=0) + counts.var()[:, :, target].mean(axis=0)
        np.testing.assert_allclose(table[f"{name}_sd"], np.sqrt(variance), rtol=1e-12)
        np.testing.assert_allclose(table[f"{name}_mean_mcse"], mcse_mean(by_chain(run, rate)), rtol=1e-9)
        for case in range(N_TEST):
            mass = masses[:, case, target]
            assert mass.sum() > 0.999
            assert table[f"{name}_mode"][case] == mass.argmax()
            expected_errors[case, target] = 1 - mass.max()
            for column, p in QUANTILES.items():
                assert table[f"{name}_{column}"][case] == np.searchsorted(mass.cumsum(), p)
        log_joint += counts.logpmf(targets)[:, :, target]
    expected = scipy.special.logsumexp(log_joint, axis=0) - math.log(len(rates))
    np.testing.assert_allclose(table["log_probability"], expected, rtol=1e-10)
    modes, medians = table[["y1_mode", "y2_mode"]].to_numpy(), table[["y1_median", "y2_median"]].to_numpy()
    np.testing.assert_array_equal(table["error_rate"], (modes != targets).mean(axis=1))
    np.testing.assert_allclose(table["expected_error_rate"], expected_errors.mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(table["absolute_error"], np.abs(medians - targets).sum(axis=1))
    assert set(prediction.summary) >= {"squared_error", "absolute_error", "error_rate", "log_probability"}


def mixture_quantiles(log_rates: Array, probabilities: list[float]) -> Array:
    """The quantiles of mixtures of Poisson distributions, (n_cases, n_probabilities)."""
    model = run_of({"kind": "count"})[0].spec.data_model
    mean, variance = np.exp(log_rates).mean(axis=1), np.exp(log_rates).var(axis=1)
    sd = np.sqrt(mean + variance)
    search = QuantileSearch(probabilities, mean[:, None], sd[:, None], scale="whole")
    for guesses_of_round in search.rounds():
        for guesses in guesses_of_round:
            at = log_rates[guesses.cases][:, None]
            sums = [model.distribution(at, np.zeros((1, 0, 1)), values) for values in guesses.values]
            search.improve(guesses, np.stack(sums, axis=1), log_rates.shape[1])
    return search.values[:, :, 0].T


def mixture_modes(log_rates: Array, low: Array, high: Array) -> Array:
    return most_probable(lambda k: mass_sums(log_rates, k[..., None]) / log_rates.shape[1], low, high)[0]


def test_the_mode_of_wide_counts_is_found() -> None:
    log_rates = np.log(np.array([[2e5 + 0.5, 2.1e5, 2.2e5, 5e5]]))
    low, high = mixture_quantiles(log_rates, [0.01, 0.99]).T
    k = np.arange(low[0], high[0] + 1)
    mass = scipy.stats.poisson.pmf(k[:, None], np.exp(log_rates)).mean(axis=1)
    assert mixture_modes(log_rates, low, high)[0] == k[mass.argmax()]


@pytest.mark.parametrize("log_rate", [37.0, 40.0, 50.0])
def test_counts_beyond_the_whole_numbers_of_float64(log_rate: float) -> None:
    """At such rates a Poisson distribution is almost exactly Gaussian, and its mode is its rate."""
    log_rates, rate = np.full((1, 3), log_rate), math.exp(log_rate)
    quantiles = mixture_quantiles(log_rates, [0.01, 0.5, 0.99])
    z = (quantiles[0] - rate) / math.sqrt(rate)
    np.testing.assert_allclose(z, scipy.special.ndtri([0.01, 0.5, 0.99]), atol=1e-4)
    mode = mixture_modes(log_rates, quantiles[:, 0], quantiles[:, 2])
    assert abs(mode[0] - rate) < 1e-3 * math.sqrt(rate)


def test_rates_count_as_1e300_at_most() -> None:
    log_rates = np.array([[-1.0, -1.0, 500.0, 705.0, 800.0]])
    quantiles = mixture_quantiles(log_rates, [0.1, 0.5, 0.99])
    np.testing.assert_allclose(quantiles, [[0, math.exp(500), 1e300]], rtol=1e-12)
    assert mixture_modes(log_rates, quantiles[:, 0], quantiles[:, 2])[0] == 0


def test_counts_of_a_vague_prior_are_predicted() -> None:
    run, inputs, _ = run_of({"kind": "count"})
    run.store.positions *= 100
    table = predict_from_draws([run], inputs[:2]).table  # quantiles this large take two seconds per case
    assert (table["y1_q99"] > 2**53).any() and (table["y1_q01"] == 0).all()


@pytest.mark.parametrize("floor", [{}, {"noise_floor": 0.2}], ids=["no floor", "floor"])
def test_heteroscedastic_targets(floor: dict[str, float]) -> None:
    run, inputs, targets = run_of(
        {"kind": "heteroscedastic", **floor}, data__standardize='["inputs", "targets"]'
    )
    prediction = predict_from_draws([run], inputs, targets)
    table, data = prediction.table, run.data
    outputs = outputs_by_hand(run, (inputs - data.input_center) / data.input_scale)
    scale, center = data.target_scale, data.target_center
    means = outputs[:, :, :2] * scale + center
    sigmas = np.sqrt(floor.get("noise_floor", 0.0) ** 2 + np.exp(-outputs[:, :, 2:])) * scale
    for target, name in enumerate(("y1", "y2")):
        f, s = means[:, :, target], sigmas[:, :, target]
        np.testing.assert_allclose(table[f"{name}_mean"], f.mean(axis=0), rtol=1e-12)
        variance = f.var(axis=0) + (s**2).mean(axis=0)
        np.testing.assert_allclose(table[f"{name}_sd"], np.sqrt(variance), rtol=1e-11)
        np.testing.assert_allclose(table[f"{name}_mean_mcse"], mcse_mean(by_chain(run, f)), rtol=1e-9)
        for column, p in QUANTILES.items():
            q = table[f"{name}_{column}"].to_numpy()
            np.testing.assert_allclose(scipy.stats.norm.cdf(q, f, s).mean(axis=0), p, atol=1e-9)
    log_joint = scipy.stats.norm.logpdf(targets, means, sigmas).sum(axis=2)
    expected = scipy.special.logsumexp(log_joint, axis=0) - math.log(len(means))
    np.testing.assert_allclose(table["log_probability"], expected, rtol=1e-10)
    values = quantities(run, cases=N_TEST, inputs=inputs)
    np.testing.assert_allclose(values["y2[1]"].ravel(), means[:, 1, 1], rtol=1e-10)
    log_precision = outputs[:, 1, 2] - 2 * np.log(scale[0])
    np.testing.assert_allclose(values["log_precision_y1[1]"].ravel(), log_precision, rtol=1e-10)


def test_heteroscedastic_targets_of_a_vague_prior_are_predicted() -> None:
    run, inputs, _ = run_of({"kind": "heteroscedastic"})
    run.store.positions *= 1000
    assert np.abs(outputs_by_hand(run, inputs)[:, :, 2:]).max() > 1500  # beyond exp
    assert np.isfinite(predict_from_draws([run], inputs).table).all(axis=None)


@pytest.mark.parametrize(
    "model", [{"kind": "survival", "hazard": "constant"}, PIECEWISE], ids=["constant", "pieces"]
)
def test_survival_times(model: dict[str, Any]) -> None:
    run, inputs, targets = run_of(model)
    targets[0] = 0.4 if model is PIECEWISE else targets[0]
    prediction = predict_from_draws([run], inputs, targets)
    table, points = prediction.table, list(model.get("time_points", []))
    log_hazard = log_hazards_by_hand(run, inputs)

    def survival(time: float, case: int) -> float:
        return float(survival_by_hand(time, log_hazard, points)[:, case].mean())

    shown = points or np.quantile(np.abs(run.data.targets), [0.25, 0.5, 0.75]).tolist()
    for time in shown:
        expected = survival_by_hand(time, log_hazard, points).mean(axis=0)
        np.testing.assert_allclose(table[f"y1_survival_{time:.6g}"], expected, rtol=1e-10)
    # Integrals of S(t) and 2 t S(t), in log time because hazards differ by orders of magnitude.
    grid = np.linspace(math.log(1e-9), math.log(1e9), 40_001)
    curve = np.stack([survival_by_hand(time, log_hazard, points).mean(axis=0) for time in np.exp(grid)])
    mean = scipy.integrate.simpson(curve * np.exp(grid)[:, None], x=grid, axis=0)
    square = scipy.integrate.simpson(2 * curve * np.exp(2 * grid)[:, None], x=grid, axis=0)
    np.testing.assert_allclose(table["y1_mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(table["y1_sd"], np.sqrt(square - mean**2), rtol=1e-4)
    for case in range(N_TEST):
        for column, p in QUANTILES.items():
            assert survival(table[f"y1_{column}"][case], case) == pytest.approx(1 - p, abs=1e-7)
    if not points:
        np.testing.assert_allclose(
            table["y1_mean_mcse"], mcse_mean(by_chain(run, np.exp(-log_hazard[:, :, 0]))), rtol=1e-9
        )
    for case, time in enumerate(targets[:, 0]):
        density = survival_by_hand(abs(time), log_hazard, points)[:, case]
        if time > 0:
            piece = int(np.searchsorted(points, time)) if points else 0  # a boundary ends its piece
            density = density * np.exp(log_hazard[:, case, piece])
        assert table["log_probability"][case] == pytest.approx(math.log(density.mean()), rel=1e-9)
    is_censored = targets[:, 0] < 0
    assert (table["squared_error"].isna() == is_censored).all() and is_censored.any()
    errors = np.abs(table["y1_median"] - targets[:, 0])[~is_censored]
    assert prediction.summary["absolute_error"] == pytest.approx(errors.mean())
    pairs = [(one, other) for one in range(N_TEST) for other in range(N_TEST) if 0 < targets[one, 0]]
    pairs = [(one, other) for one, other in pairs if targets[one, 0] < abs(targets[other, 0])]
    medians = table["y1_median"]
    in_order = [medians[one] < medians[other] for one, other in pairs]
    assert len(pairs) > 3 and prediction.summary["c_index"] == pytest.approx(np.mean(in_order))
    assert json.loads(prediction.to_json()) == prediction.summary
    values = quantities(run, cases=N_TEST, inputs=inputs)
    name = "log_hazard_2[1]" if points else "log_hazard[1]"
    np.testing.assert_allclose(values[name].ravel(), log_hazard[:, 1, 2 if points else 0], rtol=1e-10)


def test_cases_that_cannot_be_compared_have_no_c_index() -> None:
    run, inputs, targets = run_of(PIECEWISE)
    summary = predict_from_draws([run], inputs, -np.abs(targets)).summary
    assert "c_index" not in summary and "y1_rmse" not in summary and "log_probability" in summary
    of_one = predict_from_draws([run], inputs[:1], np.abs(targets[:1])).summary
    assert "c_index" not in of_one


@pytest.mark.parametrize("kind", ["heteroscedastic", "count", "survival"])
def test_targets_that_are_numbers_have_a_root_mean_squared_error(kind: str) -> None:
    run, inputs, targets = run_of({"kind": kind} | ({"hazard": "constant"} if kind == "survival" else {}))
    prediction = predict_from_draws([run], inputs, targets)
    observed = targets[:, 0] > 0 if kind == "survival" else np.ones(len(targets), dtype=bool)
    differences = (prediction.table["y1_mean"] - targets[:, 0])[observed]
    assert prediction.summary["y1_rmse"] == pytest.approx(math.sqrt((differences**2).mean()))
    assert prediction.summary["y1_rmse_se"] > 0


@pytest.mark.parametrize("model", [{"kind": "survival", "hazard": "constant"}, PIECEWISE])
def test_times_of_a_vague_prior_are_predicted(model: dict[str, Any]) -> None:
    run, inputs, _ = run_of(model)
    run.store.positions *= 1000
    assert np.abs(log_hazards_by_hand(run, inputs)).max() > 710  # beyond exp
    with np.errstate(all="raise", under="ignore"):
        table = predict_from_draws([run], inputs).table
    assert np.isfinite(table).all(axis=None)
    assert (table["y1_q01"] < 1e-100).any() and (table["y1_q99"] > 1e100).any()


@pytest.mark.parametrize("model", [{"kind": "count"}, DISPERSED, PIECEWISE, {"kind": "heteroscedastic"}])
def test_predictions_do_not_depend_on_the_memory(model: dict[str, Any]) -> None:
    run, inputs, targets = run_of(model)
    whole = predict_from_draws([run], inputs, targets).table
    for memory_bytes in (1, 20_000):
        some = predict_from_draws([run], inputs, targets, memory_bytes=memory_bytes).table
        np.testing.assert_allclose(some, whole, rtol=1e-9)
    of_targets = set(MEASURES) - {"expected_error_rate"}
    assert list(predict_from_draws([run], inputs).table) == [name for name in whole if name not in of_targets]


def pair_by_pair(times: Array, predicted: Array) -> tuple[float, int]:
    """The sum over comparable pairs, and their number."""
    total, n_pairs = 0.0, 0
    for one, other in combinations(range(len(times)), 2):
        if np.isnan([times[one], times[other], predicted[one], predicted[other]]).any():
            continue
        sooner, later = sorted((one, other), key=lambda case: (abs(times[case]), times[case] < 0))
        if times[sooner] < 0:
            continue
        if abs(times[sooner]) == abs(times[later]) and times[later] > 0:
            continue
        n_pairs += 1
        total += float(predicted[sooner] < predicted[later]) + 0.5 * (predicted[sooner] == predicted[later])
    return total, n_pairs


def made(seed: int, n: int, *, n_times: int = 10**6, n_values: int = 10**6, censored: float = 0.4) -> Array:
    """Times of which some are censored, and predictions; few distinct times or values give ties."""
    times = np.ceil(uniform(seed, (n,)) * n_times)
    predicted = np.floor((0.5 * times / n_times + uniform(seed + 1, (n,))) * n_values)
    return np.where(uniform(seed + 2, (n,)) < censored, -times, times), predicted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ties", [{}, {"n_times": 7}, {"n_values": 4}, {"n_times": 5, "n_values": 3}])
def test_the_index_is_that_of_all_pairs(seed: int, ties: dict[str, int]) -> None:
    for n in (2, 3, 17, 64, 130):
        times, predicted = made(10 * seed, n, **ties)
        total, n_pairs = pair_by_pair(times, predicted)
        found = concordance(times, predicted)
        if n_pairs == 0:
            assert found is None
            continue
        assert found is not None and found.n_pairs == n_pairs
        assert found.index == pytest.approx(total / n_pairs, rel=1e-12)


def test_perfect_and_reversed_orders_are_1_and_0() -> None:
    times = np.array([3.0, 1.0, -4.0, 2.0])
    assert concordance(times, np.abs(times)) == Concordance(1.0, 0.0, 6)
    assert concordance(times, -np.abs(times)) == Concordance(0.0, 0.0, 6)
    assert concordance(times, np.ones(4)) == Concordance(0.5, 0.0, 6)


def test_censored_cases_are_compared_only_with_events_before_them() -> None:
    """The second case may have outlived the third, and nobody knows."""
    times, predicted = np.array([1.0, -2.0, 3.0]), np.array([1.0, 9.0, 2.0])
    found = concordance(times, predicted)
    assert found is not None and (found.index, found.n_pairs) == (1.0, 2)
    equal = concordance(np.array([2.0, -2.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert equal is not None and (equal.index, equal.n_pairs) == (0.5, 2)
    assert concordance(np.array([-1.0, -2.0]), np.array([1.0, 2.0])) is None


def test_infinite_medians_are_equal_and_missing_values_are_left_out() -> None:
    times = np.array([1.0, 2.0, math.nan, 3.0, 4.0])
    found = concordance(times, np.array([math.inf, math.inf, 1.0, math.nan, math.inf]))
    assert found is not None and (found.index, found.n_pairs) == (0.5, 3)


def test_the_standard_error_is_about_that_of_the_jackknife() -> None:
    times, predicted = made(3, 200)
    found = concordance(times, predicted)
    without = [concordance(np.delete(times, case), np.delete(predicted, case)) for case in range(200)]
    indices = np.array([one.index for one in without if one is not None])
    jackknife = math.sqrt(199 / 200 * np.square(indices - indices.mean()).sum())
    assert found is not None and found.error == pytest.approx(jackknife, rel=0.03)


def test_many_cases_need_no_pairs() -> None:
    """Twenty thousand cases have two hundred million pairs."""
    n = 20_000
    times, predicted = np.arange(1.0, n + 1), np.arange(1.0, n + 1) + 3 * normal(5, (n,))
    found = concordance(times, predicted)
    assert found is not None and found.n_pairs == n * (n - 1) // 2 and 0.99 < found.index < 1
