"""Comparison with exact draws: false alarms are rare as stated, and differences are found and explained."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from rayfbnn.answers.check import check_draws, compare_quantities
from rayfbnn.arrays import Array
from rayfbnn.errors import StoreMismatchError
from rayfbnn.selftest.pivots import ks_distance
from tests.support.store.standin_store import make_data, make_run, make_spec, normal

SPEC = make_spec()


def autocorrelated(seed: int, shape: tuple[int, int], rho: float) -> Array:
    """Stationary Gaussian chains x' = rho x + sqrt(1 - rho^2) n, variance one."""
    noise = normal(seed, shape)
    chains = noise.copy()
    for draw in range(1, shape[1]):
        chains[:, draw] = rho * chains[:, draw - 1] + np.sqrt(1 - rho**2) * noise[:, draw]
    return chains


@pytest.mark.parametrize("rho", [0.6, *(pytest.param(rho, marks=pytest.mark.long) for rho in (0.0, -0.4))])
def test_false_alarms_are_as_rare_as_stated(rho: float) -> None:
    n_repeats, rate = 150, 0.1
    alarms = 0
    for repeat in range(n_repeats):
        pairs = {
            name: (
                autocorrelated(1000 * repeat + n, (8, 250), rho),
                normal(500_000 + 1000 * repeat + n, (1, 500)),
            )
            for n, name in enumerate("abc")
        }
        alarms += not compare_quantities(pairs.items(), false_alarm_rate=rate).ok
    # Binomial(150, 0.1) is above 29 with probability 2e-4; Bonferroni over dependent tests gives fewer.
    assert alarms <= 29


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda x: x + 0.3, "means differ"),
        (lambda x: 1.4 * x, "distributions differ"),
        (lambda x: np.sign(x) * np.abs(x) ** 1.5, "distributions differ"),
    ],
    ids=["shifted", "wider", "heavier tails"],
)
def test_differences_are_found(change: Any, what: str) -> None:
    chains = autocorrelated(1, (16, 250), 0.3)
    exact = normal(2, (1, 4000))
    assert compare_quantities([("x", (chains, exact))], false_alarm_rate=1e-3).ok
    result = compare_quantities([("x", (change(chains), exact))], false_alarm_rate=1e-3)
    assert not result.ok and any(reason.startswith(what) for reason in result.reasons)


def test_kolmogorov_smirnov_distance_is_scipys() -> None:
    a, b = normal(1, (150,)), normal(2, (90,)) * 1.2
    assert ks_distance(a, b) == pytest.approx(scipy.stats.ks_2samp(a, b).statistic, rel=1e-12)


def test_independent_chains_count_as_their_draws() -> None:
    row = compare_quantities(
        [("x", (normal(1, (8, 500)), normal(2, (1, 4000))))], false_alarm_rate=1e-3
    ).table.loc["x"]
    assert 3000 < row["ess"] <= 4000
    standard = row["z"] * np.sqrt(1 / 4000 + 1 / row["ess"])
    assert standard == pytest.approx(row["mean_mcmc"] - row["mean_exact"], rel=0.1)


def test_threshold_is_the_rate_over_all_tests() -> None:
    pairs = {name: (normal(n, (4, 200)), normal(n + 9, (1, 300))) for n, name in enumerate("abcde")}
    assert compare_quantities(pairs.items(), false_alarm_rate=1e-3).threshold == pytest.approx(1e-3 / 10)


def test_few_effective_draws_are_a_reason() -> None:
    result = compare_quantities(
        [("x", (autocorrelated(1, (4, 100), 0.99), normal(2, (1, 400))))], false_alarm_rate=1e-3
    )
    assert any("effective draws below 100: x" in reason for reason in result.reasons)


@pytest.mark.parametrize(
    "what", ["few draws", "few exact draws", "an infinite draw", "an infinite exact draw"]
)
def test_what_cannot_be_tested_is_a_reason_and_has_its_means_alone(what: str) -> None:
    ours, exact = normal(1, (4, 100)), normal(2, (1, 400))
    if what.startswith("few"):
        ours, exact = (ours[:, :3], exact) if what == "few draws" else (ours, exact[:, :3])
    else:
        (ours if what == "an infinite draw" else exact)[0, 1] = np.inf
    result = compare_quantities([("x", (ours, exact))], false_alarm_rate=1e-3)
    assert result.table.loc["x", ["z", "p_mean", "ks", "p_ks", "ess"]].isna().all()
    assert result.table.loc["x", "mean_mcmc"] == ours.mean()
    assert result.reasons == ("too few draws, or values that are not finite: x",)


def pair(**settings: Any) -> tuple[Any, Any]:
    mcmc = make_run(SPEC, n_draws=300)
    exact = make_run(
        make_spec(chains=1, seed=2), n_draws=900, seed=77, kind="exact", path="exact.zarr", **settings
    )
    return mcmc, exact


def test_stores_of_one_distribution_pass_and_quantities_are_on_their_scales() -> None:
    mcmc, exact = pair()
    result = check_draws(mcmc, exact, cases=3)
    assert result.ok, result.reasons
    assert result.table.loc["sigma_noise", "mean_mcmc"] == pytest.approx(
        -0.5 * np.log(mcmc.store.precisions[:, :, -1]).mean()
    )
    assert len(result.table) == 6 + 2 + 2 * 3


def test_noise_precision_with_one_degree_of_freedom_too_few_is_found() -> None:
    mcmc, exact = pair()
    mcmc.store.precisions[:, :, -1] *= 0.8
    result = check_draws(mcmc, exact)
    assert not result.ok and any("sigma_noise" in reason for reason in result.reasons)


def test_json_has_no_nan() -> None:
    mcmc, exact = pair()
    mcmc.store.stats["log_prior"][0, 0] = np.nan
    read = json.loads(check_draws(mcmc, exact).to_json(), parse_constant=pytest.fail)
    assert read["quantities"]["log_prior"]["p_ks"] is None and read["ok"] is False


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"spec": make_spec(seed=2)}, "exact draws"),
        ({"spec": make_spec(temperature=3), "kind": "exact"}, "temperature: was 1.0, now 3.0"),
        ({"spec": SPEC, "data": make_data(SPEC, seed=9), "kind": "exact"}, "training cases differ"),
    ],
    ids=["no exact draws", "another temperature", "other data"],
)
def test_other_draws_are_no_reference(other: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreMismatchError, match=message):
        check_draws(pair()[0], make_run(**other, path="other.zarr"))


def test_scipy_stats_which_is_slow_to_load_is_not() -> None:
    code = "import sys, rayfbnn.answers.check; assert 'scipy.stats' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
