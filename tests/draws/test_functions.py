"""Functions drawn from the prior: estimates from draws against closed forms, and convergence to Gaussians."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special

pytest.importorskip("zarr", reason="Zarr is not installed")

from rayfbnn import api  # noqa: E402
from rayfbnn.arrays import Array  # noqa: E402
from rayfbnn.draws import outputs  # noqa: E402
from rayfbnn.draws.view import Draws, committed  # noqa: E402
from rayfbnn.errors import ConfigError, DataError  # noqa: E402
from rayfbnn.selftest.pivots import is_exact, ks_p_value  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402
from tests.support.model.limits import expected_products, limit_covariance  # noqa: E402

POINTS = np.array([[-1.5], [-0.2], [0.0], [0.4], [3.0]])


def draw(folder: Path, *, draws: int, hidden: list[tuple[int, str]], seed: int = 1, **priors: str) -> Draws:
    """Draws from the prior of a network with one input and one output; sigmas are 1 by default."""
    last = len(hidden) - 1
    named = {"ih0": "1", f"ho{last}": "x1", "bo": "0.1"} | {f"bh{layer}": "1" for layer in range(last + 1)}
    named |= {f"h{layer - 1}h{layer}": "x1" for layer in range(1, last + 1)}
    raw: dict[str, Any] = {
        "seed": seed,
        "dtype": "float64",
        "draws_per_block": draws,
        "data": {"train": "train.csv", "inputs": ["x"], "targets": ["y"]},
        "model": {"kind": "real", "noise": "0.1"},
        "network": {
            "hidden": [{"units": units, "activation": activation} for units, activation in hidden],
            "priors": named | priors,
        },
        "phase": [{"iterations": 1, "operations": [{"op": "sample-sigmas"}]}],
    }
    (folder / "train.csv").write_text("x,y\n0,0\n1,0\n")
    path = folder / f"{len(list(folder.iterdir()))}.zarr"
    api.prior(RunSpec.from_dict(raw, base_dir=folder), path, draws=draws)
    return committed(Store.open(path))


def z_values(estimate: outputs.EstimatedMeans, expected: Array) -> Array:
    """Differences in standard errors, where the estimate has an error."""
    error = estimate.standard_error
    return (estimate.value - expected)[error > 0] / error[error > 0]


@pytest.mark.parametrize("activation", ["step", "erf", "relu", "sin", "identity"])
def test_covariance_of_functions_is_that_of_the_limit(tmp_path: Path, activation: str) -> None:
    """One hidden layer has the limit's covariance at any width; 8 units, 20,000 functions."""
    run = draw(tmp_path, draws=20_000, hidden=[(8, activation)])
    estimate = outputs.covariance(outputs.network_values(run, POINTS)[:, :, 0])
    expected = limit_covariance(run.spec.network, POINTS)
    assert np.abs(z_values(estimate, expected)).max() < 5  # 15 numbers: 1 in 100,000 if correct
    wrong = limit_covariance(run.spec.network, 1.1 * POINTS)
    assert np.abs(z_values(estimate, wrong)).max() > 5  # an error of 10 % in the input's scale shows


@pytest.mark.parametrize("activation", ["step", "erf"])
def test_covariance_of_hidden_units_is_that_of_the_limit(tmp_path: Path, activation: str) -> None:
    run = draw(tmp_path, draws=1, hidden=[(50_000, activation)])
    values = outputs.hidden_values(run, POINTS, 0)[0].T
    expected = limit_covariance(run.spec.network, POINTS) - 0.01  # without the output's bias
    assert np.abs(z_values(outputs.covariance(values), expected)).max() < 5


@pytest.mark.parametrize(("activation", "scale"), [("step", 3.0), ("erf", 2.0)])
def test_two_wide_layers_have_the_covariance_of_the_limit(
    tmp_path: Path, activation: str, scale: float
) -> None:
    run = draw(tmp_path, draws=2000, hidden=[(150, activation), (5, activation)])
    estimate = outputs.covariance(outputs.network_values(run, POINTS)[:, :, 0])
    network = run.spec.network
    assert np.abs(z_values(estimate, limit_covariance(network, POINTS))).max() < 5
    assert np.abs(z_values(estimate, limit_covariance(network, scale * POINTS))).max() > 5


def test_a_narrow_first_layer_has_another_covariance_than_a_wide_one(tmp_path: Path) -> None:
    run = draw(tmp_path, draws=2000, hidden=[(1, "step"), (5, "step")])
    estimate = outputs.covariance(outputs.network_values(run, POINTS)[:, :, 0])
    assert np.abs(z_values(estimate, limit_covariance(run.spec.network, POINTS))).max() > 5


@pytest.mark.parametrize("activation", ["step", "erf"])
def test_functions_of_many_units_are_gaussian_and_of_one_unit_are_not(
    tmp_path: Path, activation: str
) -> None:
    """Three directions in function space, each scaled by its standard deviation in the limit."""
    directions = np.array([[1.0, 0, 0, 0, 0], [0, 1, 0, -1, 0], [1, -2, 0.5, 2, 1]])

    def p_values(units: int, seed: int, draws: int) -> list[float]:
        run = draw(tmp_path, draws=draws, hidden=[(units, activation)], seed=seed)
        limit = limit_covariance(run.spec.network, POINTS)
        scaled = outputs.network_values(run, POINTS)[:, :, 0] @ directions.T
        scaled /= np.sqrt(np.diagonal(directions @ limit @ directions.T))
        return [ks_p_value(scipy.special.ndtr(values)) for values in scaled.T]

    def of(units: int) -> bool:
        name = f"{activation} functions of {units} units"
        return is_exact(lambda seed, draws: p_values(units, seed, draws), name=name, n_chains=2000)

    assert of(500)
    assert not of(1)


@pytest.mark.parametrize(("layer", "draws", "units"), [(None, 4000, 30), (0, 1, 100_000)])
def test_step_functions_vary_as_brownian_ones_do(
    tmp_path: Path, layer: int | None, draws: int, units: int
) -> None:
    """D(x - s/2, x + s/2) = 4 P(the step is between) holds for functions and for their hidden units."""
    run = draw(tmp_path, draws=draws, hidden=[(units, "step")])
    separations = np.array([0.01, 0.1, 1.0, 4.0])
    estimate = outputs.variation(run, np.array([0.2]), separations, layer=layer)
    between = (np.arctan(0.2 + separations / 2) - np.arctan(0.2 - separations / 2)) / np.pi
    assert np.abs(z_values(estimate, 4 * between)).max() < 4.5  # 4 numbers: 1 in 37,000 if correct


@pytest.mark.parametrize("eta", [1.3, 1.7])
def test_adjustments_make_functions_fractional_brownian(tmp_path: Path, eta: float) -> None:
    """With alpha = eta - 1, Neal (1996) section 2.1.4: D of draws equals the integral, and grows as s^eta."""
    alpha = eta - 1
    run = draw(tmp_path, draws=1, hidden=[(100_000, "erf")], ah0=str(alpha))
    separations = np.array([0.03, 0.1, 0.3, 1.0])
    estimate = outputs.variation(run, np.array([0.2]), separations, layer=0)
    expected = np.array([adjusted_variation(alpha, 0.2, s) for s in separations])
    assert np.abs(z_values(estimate, expected)).max() < 4.5  # 4 numbers: 1 in 37,000 if correct
    small = np.array([1e-3, 1e-4])
    of_small = np.log10([adjusted_variation(alpha, 0.2, s) for s in small])
    assert of_small[0] - of_small[1] == pytest.approx(eta, abs=0.05)


def adjusted_variation(alpha: float, x: float, s: float) -> float:
    """D(x - s/2, x + s/2) of erf units of sigma 1 with a precision tau ~ Gamma(alpha/2, mean 1) for each.

    Given tau the summed inputs have covariance (1 + x_p x_q)/tau; then the integral over log tau.
    """
    points = np.array([x - s / 2, x + s / 2])
    k = 1 + points[:, None] * points

    def integrand(log_tau: float) -> float:
        c = expected_products(k * np.exp(-log_tau), "erf")
        shape = alpha / 2
        log_density = shape * np.log(shape) - scipy.special.gammaln(shape)
        log_density += shape * log_tau - shape * np.exp(log_tau)
        return float((c[0, 0] + c[1, 1] - 2 * c[0, 1]) * np.exp(log_density))

    edges = (-60.0, -30.0, -20.0, -10.0, -5.0, 0.0, 5.0)
    pieces = [scipy.integrate.quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(edges)]
    return float(sum(pieces))


def test_values_do_not_depend_on_the_memory_allowed(tmp_path: Path) -> None:
    run = draw(tmp_path, draws=30, hidden=[(7, "tanh")])
    grid = np.linspace(-2, 2, 41)[:, None]
    ample = outputs.network_values(run, grid)
    frugal = outputs.network_values(run, grid, memory_bytes=1000)
    np.testing.assert_allclose(frugal, ample, rtol=1e-9, atol=1e-14)
    values = outputs.hidden_values(run, grid, 0)
    weights = run.parameter_layout.views(run.positions()[0])
    expected = np.einsum("dpu,duo->dpo", values, weights["ho0"]) + weights["bo"][:, None]
    np.testing.assert_allclose(ample, expected, rtol=1e-12, atol=1e-14)


def test_a_point_is_straddled_along_one_input() -> None:
    low, high = outputs.straddling(np.array([1.0, 2.0]), np.array([0.2, 0.6]), axis=1)
    np.testing.assert_allclose(low, [[1, 1.9], [1, 1.7]])
    np.testing.assert_allclose(high, [[1, 2.1], [1, 2.3]])


def test_estimates_come_with_their_standard_errors(tmp_path: Path) -> None:
    """In 400 samples of 50 values the z-values have a standard deviation near one."""
    run = draw(tmp_path, draws=20_000, hidden=[(30, "erf")])
    values = outputs.network_values(run, POINTS[1:4])[:, :, 0].reshape(400, 50, 3)
    expected = limit_covariance(run.spec.network, POINTS[1:4])
    z = [(e.value - expected) / e.standard_error for e in map(outputs.covariance, values)]
    assert 0.9 < np.std(z) < 1.25


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    run = draw(tmp_path, draws=2, hidden=[(3, "step")])
    with pytest.raises(DataError, match=r"inputs: the shape must be \(points, 1\), got \(4,\)"):
        outputs.network_values(run, np.zeros(4))
    with pytest.raises(ConfigError, match="layer: must be from 0 to 0, got 1"):
        outputs.hidden_values(run, POINTS, 1)
    with pytest.raises(ConfigError, match="axis: must be the number of an input, from 0 to 0, got 1"):
        outputs.variation(run, np.zeros(1), np.ones(1), axis=1)
    with pytest.raises(ConfigError, match="output: must be from 0 to 0, got 2"):
        outputs.variation(run, np.zeros(1), np.ones(1), output=2)
