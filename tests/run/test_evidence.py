"""The verb `evidence`: its numbers, its refusals, and the files that it writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
from typer.testing import CliRunner

import rayfbnn
from rayfbnn.cli import app
from rayfbnn.errors import ConfigError, SamplingError
from rayfbnn.kernels import choose
from tests.support.small import make_store, small_spec
from tests.support.store.ladder_runs import ladder_keys, ladder_spec, run_in_phases, run_ladders

LINEAR: dict[str, Any] = {
    "chains": 60,
    "chains_per_batch": 25,
    "dtype": "float64",
    "model__noise": "0.5",
    "network": {"hidden": [], "priors": {"io": "0.8", "bo": "0.5"}},
    "phase": [
        {"iterations": 1, "operations": [{"op": "heatbath"}, {"op": "hybrid", "steps": 8, "stepsize": 0.4}]}
    ],
}


def exact_log_density(folder: Path, *, standardized: bool = False) -> float:
    """Log density of the targets in train.csv, y ~ Normal(0, sigma**2 + X V X') as the network sees them."""
    x1, x2, y = np.loadtxt(folder / "train.csv", delimiter=",", skiprows=1).T
    scale = y.std() if standardized else 1.0
    y = (y - y.mean()) / scale if standardized else y
    inputs = np.array([(x - x.mean()) / x.std() for x in (x1, x2)]).T
    covariance = 0.25 * np.eye(len(y)) + 0.64 * inputs @ inputs.T + 0.25
    return float(scipy.stats.multivariate_normal(cov=covariance).logpdf(y)) - len(y) * math.log(scale)


@pytest.mark.parametrize("standardized", [False, True])
def test_evidence_of_a_linear_network_is_that_of_its_gaussian_targets(
    tmp_path: Path, standardized: bool
) -> None:
    columns = ["inputs", "targets"] if standardized else ["inputs"]
    spec = small_spec(tmp_path, **LINEAR, data__standardize=columns)
    estimate = rayfbnn.evidence(spec, temperatures=400, power=3, progress=False)
    assert estimate.standard_error < 0.3
    exact = exact_log_density(tmp_path, standardized=standardized)
    assert abs(estimate.log_marginal_likelihood - exact) < 3 * estimate.standard_error  # seed fixed


def test_without_phases_the_estimate_is_that_of_the_gaussian_targets_too(tmp_path: Path) -> None:
    estimate = rayfbnn.evidence(
        small_spec(tmp_path, **{**LINEAR, "phase": None}), temperatures=400, power=3, progress=False
    )
    assert estimate.standard_error < 0.3
    exact = exact_log_density(tmp_path)
    assert abs(estimate.log_marginal_likelihood - exact) < 3 * estimate.standard_error  # seed fixed


def exact_log_probability(counts: Any, dispersion: tuple[float, float] | None) -> float:
    """Log probability of counts of a mean exp(b), b ~ N(0, 1), with dispersion of a width and an alpha."""
    b = np.linspace(-6, 6, 241)
    log_prior = scipy.stats.norm.logpdf(b) + math.log(b[1] - b[0])
    if dispersion is None:
        terms = scipy.stats.poisson.logpmf(counts[:, None], np.exp(b)).sum(axis=0)
        return float(scipy.special.logsumexp(terms + log_prior))
    width, alpha = dispersion
    x = np.linspace(-25, 12, 741)  # log r
    r, gamma = np.exp(x)[:, None], scipy.stats.gamma(alpha / 2, scale=2 / alpha / width**2)
    of_shape = (gamma.logpdf(np.exp(x)) + x + math.log(x[1] - x[0]))[:, None]
    share = r / (r + np.exp(b))
    terms = sum(scipy.stats.nbinom.logpmf(count, r, share) for count in counts)
    return float(scipy.special.logsumexp(terms + of_shape + log_prior))


@pytest.mark.parametrize("dispersion", ["none", "0.5:2"])
def test_evidence_of_counts_of_one_mean_is_that_by_quadrature(tmp_path: Path, dispersion: str) -> None:
    counts = np.array([0, 7, 1, 0, 2, 12, 0, 3, 1, 5])
    rows = [f"{number},{count}" for number, count in enumerate(counts)]
    (tmp_path / "train.csv").write_text("x1,y\n" + "\n".join(rows) + "\n")
    keys = {
        "chains": 100,
        "chains_per_batch": 50,
        "dtype": "float64",
        "data": {"train": "train.csv", "inputs": ["x1"], "targets": ["y"]},
        "model": {"kind": "count", "dispersion": dispersion},
        "network": {"hidden": [], "priors": {"bo": "1"}},
    }
    spec = rayfbnn.RunSpec.from_dict(keys, base_dir=tmp_path)
    estimate = rayfbnn.evidence(spec, temperatures=200, power=3, progress=False)
    assert estimate.standard_error < 0.2
    exact = exact_log_probability(counts, None if dispersion == "none" else (0.5, 2.0))
    assert abs(estimate.log_marginal_likelihood - exact) < 3.5 * estimate.standard_error  # seed fixed


def test_evidence_does_not_depend_on_the_batches(tmp_path: Path) -> None:
    estimates = [
        rayfbnn.evidence(
            small_spec(tmp_path, **{**LINEAR, "chains": 7, "chains_per_batch": n}),
            temperatures=5,
            progress=False,
        )
        for n in (2, 7)
    ]
    assert estimates[0] == estimates[1]


def test_trajectories_are_those_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choose.VARIABLE, raising=False)
    spec = small_spec(tmp_path, **{**LINEAR, "chains": 4})
    chosen, calls = choose.advance_for, 0

    def counted(posterior: Any) -> Any:
        advance, name = chosen(posterior)

        def watched(*arrays: Any, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            return advance(*arrays, **settings)

        return watched, name

    monkeypatch.setattr(choose, "advance_for", counted)
    estimate = rayfbnn.evidence(spec, temperatures=9, progress=False)
    assert calls == 2 * 8  # at the start and along the path, at temperatures between 0 and 1
    monkeypatch.setenv(choose.VARIABLE, "plain")
    plain = rayfbnn.evidence(spec, temperatures=9, progress=False)
    assert plain.log_marginal_likelihood == pytest.approx(estimate.log_marginal_likelihood, rel=1e-9)


def test_missing_targets_do_not_count(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, **LINEAR, data__standardize=["inputs", "targets"])
    whole = rayfbnn.evidence(spec, temperatures=30, progress=False)
    lines = (tmp_path / "train.csv").read_text().splitlines()
    lines[1] = lines[1].rsplit(",", 1)[0] + ","
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    less = rayfbnn.evidence(spec, temperatures=30, progress=False)
    assert math.isfinite(less.log_marginal_likelihood)
    assert less.log_marginal_likelihood != whole.log_marginal_likelihood


def test_evidence_of_ladders_is_that_of_annealing(tmp_path: Path) -> None:
    spec = ladder_spec(tmp_path, settings={"adaptation": 60, "warmup": 30}, iterations=250)
    path = tmp_path / "ladders.zarr"
    run_ladders(path, spec)
    estimate = rayfbnn.evidence(path, runs=150, temperatures=60, progress=False)
    assert estimate.ladders is not None and estimate.ladders.level.startswith("noise")
    keys = {key: value for key, value in ladder_keys().items() if key not in ("ladder", "iterations")}
    spec = rayfbnn.RunSpec.from_dict(keys, base_dir=tmp_path)
    annealed = rayfbnn.evidence(spec, runs=300, temperatures=300, progress=False)
    error = math.hypot(estimate.standard_error, annealed.standard_error)
    assert error < 0.3
    assert abs(estimate.log_marginal_likelihood - annealed.log_marginal_likelihood) < 3 * error  # seed fixed
    text = estimate.to_text()
    assert f"from the prior to {estimate.ladders.level}" in text and "in 4 ladders" in text


def test_evidence_of_phases_is_that_of_the_heaviest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "phases.zarr"
    run_in_phases(path, ladder_spec(tmp_path, iterations=200), gap=30.0)
    estimate = rayfbnn.evidence(path, runs=20, temperatures=5, progress=False)
    assert estimate.ladders is not None and estimate.ladders.ladders == (0, 2)
    assert abs(estimate.ladders.log_ratio) < 1  # made up: 0 in these, and -30 in the others
    assert "phases remain, and the estimate is that of the heaviest: ladders 0 and 2" in caplog.text
    caplog.clear()
    assert rayfbnn.evidence(path, runs=2, temperatures=1, progress=False).effective_runs <= 2
    assert "not to be trusted: 2 runs are worth" in caplog.text
    assert "ladders with a larger ladder.hot, such as 1" in caplog.text


def test_stores_without_ladders_and_settings_of_a_store_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "chains.zarr", small_spec(tmp_path, **LINEAR))
    with pytest.raises(ConfigError, match=r"spec: .*chains.zarr is not a run with \[ladder\]"):
        rayfbnn.evidence(tmp_path / "chains.zarr", progress=False)
    run_ladders(tmp_path / "ladders.zarr", ladder_spec(tmp_path, iterations=2))
    with pytest.raises(SamplingError, match="only 2 draws in each ladder"):
        rayfbnn.evidence(tmp_path / "ladders.zarr", progress=False)
    with pytest.raises(ConfigError, match="set: that of the store .* is fixed, got"):
        rayfbnn.evidence(tmp_path / "ladders.zarr", set=["chains=8"], progress=False)


DYNAMIC = [{"iterations": 1, "operations": [{"op": "dynamic", "steps": 3, "stepsize": 0.1}]}]


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"runs": 1}, "runs: a standard error needs at least 2 runs"),
        ({"chains": 1}, {}, "chains: a standard error needs at least 2 runs"),
        ({"temperature": 2}, {}, "temperature: the marginal likelihood is .*, got 2"),
        ({"phase": DYNAMIC}, {}, "needs exact updates .* got dynamic; use hybrid"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    spec = small_spec(tmp_path, **{**LINEAR, **settings})
    with pytest.raises(ConfigError, match=message):
        rayfbnn.evidence(spec, progress=False, **options)


def test_the_command_prints_one_json_object(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(small_spec(tmp_path, **LINEAR).to_toml())
    arguments = ["evidence", str(path), "--temperatures", "4", "--set", "chains=3"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert {"log_marginal_likelihood", "standard_error", "effective_runs", "runs", "path"} <= set(printed)
    assert printed["runs"] == 3
    assert [row[0] for row in printed["path"]] == [(j / 4) ** 4 for j in (1, 2, 3, 4)]
    text = CliRunner().invoke(app, arguments).stdout
    assert text.startswith(f"log marginal likelihood {printed['log_marginal_likelihood']:.6g} +- ")
