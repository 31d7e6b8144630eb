"""Closed forms of the Gaussian processes that wide networks converge to, against integrals and each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import LayerSpec, NetworkSpec
from rayfbnn.model.network import Buffers, activate
from tests.support.model.limits import expected_products, limit_covariance
from tests.support.problems import parse

COVARIANCE = np.array([[1.7, 0.6, -0.9], [0.6, 0.8, 0.1], [-0.9, 0.1, 2.3]])


def one_layer(activation: Any, *, units: int = 10, sigma: float = 1.0, inputs: int = 1) -> NetworkSpec:
    priors = parse({"ih0": f"{sigma}", "bh0": f"{sigma}", "ho0": "x1", "bo": "0.1"})
    return NetworkSpec(inputs, 1, (LayerSpec(units, activation),), priors)


def deep(activation: Any, n_layers: int) -> NetworkSpec:
    """A deep network with all sigmas 1.

    Only the first layer sees the input, and only the last leads to the output.
    """
    priors = {"ih0": "1", f"ho{n_layers - 1}": "x1"}
    priors |= {f"bh{layer}": "1" for layer in range(n_layers)}
    priors |= {f"h{layer - 1}h{layer}": "x1" for layer in range(1, n_layers)}
    return NetworkSpec(1, 1, tuple(LayerSpec(5, activation) for _ in range(n_layers)), parse(priors))


@pytest.mark.parametrize("activation", ["identity", "erf"])
def test_expected_products_are_the_integrals(activation: str) -> None:
    """Gauss and Hermite's rule in two dimensions, for smooth units."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    products = expected_products(COVARIANCE, activation)
    for p, q in [(0, 1), (0, 2), (1, 2), (1, 1)]:
        v, c = COVARIANCE[p, p], COVARIANCE[p, q]
        rest = math.sqrt(max(COVARIANCE[q, q] - c * c / v, 0.0))
        at_p = math.sqrt(v) * nodes[:, None] + 0 * nodes
        at_q = c / math.sqrt(v) * nodes[:, None] + rest * nodes
        for values in (at_p, at_q):
            activate(values, activation, buffers=Buffers())
        assert products[p, q] == pytest.approx((weights[:, None] * weights * at_p * at_q).sum(), rel=1e-10)


def test_sin_units_give_the_squared_exponential_covariance() -> None:
    """sqrt(2) sin(sqrt(2) u) with a bias of sigma b tends to exp(-(difference)^2).

    Checked by the integral too.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    v, c, w = 0.5, 0.3, 0.7
    at_q = c / math.sqrt(v) * nodes[:, None] + math.sqrt(w - c * c / v) * nodes
    root = math.sqrt(2)
    values = 2 * np.sin(root * math.sqrt(v) * nodes[:, None]) * np.sin(root * at_q)
    product = expected_products(np.array([[v, c], [c, w]]), "sin")[0, 1]
    assert product == pytest.approx((weights[:, None] * weights * values).sum(), rel=1e-10)
    x = np.linspace(-1, 1, 5)
    limit = expected_products(50 + np.outer(x, x), "sin")
    np.testing.assert_allclose(limit, np.exp(-((x[:, None] - x) ** 2)), rtol=1e-12)


def test_relu_products_are_the_integral() -> None:
    products = expected_products(COVARIANCE, "relu")

    def inner(u: float, v: float, c: float, w: float) -> float:
        """u times E[max(u', 0) | u], times the density of u."""
        mean, sd = c / v * u, math.sqrt(w - c * c / v)
        z = mean / sd
        expected = mean * scipy.special.ndtr(z) + sd * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return float(u * expected * math.exp(-u * u / (2 * v)) / math.sqrt(2 * math.pi * v))

    for p, q in [(0, 1), (0, 2), (1, 2)]:
        arguments = (COVARIANCE[p, p], COVARIANCE[p, q], COVARIANCE[q, q])
        integral, _ = scipy.integrate.quad(inner, 0, 40, args=arguments, epsabs=1e-13)
        assert products[p, q] == pytest.approx(integral, rel=1e-9)
    np.testing.assert_allclose(np.diagonal(products), np.diagonal(COVARIANCE) / 2, rtol=1e-14)


def test_steps_fall_between_two_points_with_the_probability_of_a_cauchy_variable() -> None:
    """Neal (1996) section 2.1.2: a step lies at -a/u, Cauchy of width sigma_a/sigma_u, and moves h by 2."""
    x = np.array([[-3.0], [-0.2], [0.4], [7.0]])
    covariance = limit_covariance(one_layer("step"), x)
    apart = np.abs(np.arctan(x) - np.arctan(x.T)) / math.pi
    # Arcsin near one has only half the digits.
    np.testing.assert_allclose(covariance, 0.01 + 1 - 2 * apart, atol=1e-8)


def test_one_layer_has_the_same_covariance_whatever_its_width() -> None:
    x = np.array([[-1.0, 0.3], [0.2, 0.9], [2.0, -0.4]])
    narrow, wide = (limit_covariance(one_layer("erf", units=n, inputs=2), x) for n in (2, 10_000))
    np.testing.assert_allclose(narrow, wide, rtol=1e-12)


@pytest.mark.parametrize(
    ("activation", "n_layers", "eta"),
    [("erf", 1, 2.0), ("step", 1, 1.0), ("step", 2, 0.5), ("step", 3, 0.25), ("erf", 3, 2.0)],
)
def test_each_layer_of_steps_halves_the_power_of_the_separation(
    activation: str, n_layers: int, eta: float
) -> None:
    """D(x - s/2, x + s/2) ~ s^eta, Neal (1996) eqs. 2.7, 2.8 and section 2.3."""
    logs = []
    for s in (1e-4, 2e-4):
        points = np.array([[0.2 - s / 2], [0.2 + s / 2]])
        k = limit_covariance(deep(activation, n_layers), points)
        logs.append(math.log(k[0, 0] + k[1, 1] - 2 * k[0, 1]))
    assert (logs[1] - logs[0]) / math.log(2) == pytest.approx(eta, abs=0.02)


def test_layers_add_what_leads_into_them() -> None:
    """The sum includes direct connections from the inputs, to the outputs and past a layer."""
    x = np.array([[0.5, -1.0], [0.1, 0.8]])
    priors = parse({"ih0": "0.7", "bh0": "0.3", "h0h1": "x2", "ih1": "0.4", "ho0": "x0.5", "ho1": "x1.5"})
    priors |= parse({"io": "0.2", "bo": "0.1"})
    spec = NetworkSpec(2, 1, (LayerSpec(6, "step"), LayerSpec(3, "erf")), priors)
    products = x @ x.T
    first = expected_products(0.3**2 + 0.7**2 * products, "step")
    second = expected_products(2**2 * first + 0.4**2 * products, "erf")
    expected = 0.1**2 + 0.2**2 * products + 0.5**2 * first + 1.5**2 * second
    np.testing.assert_allclose(limit_covariance(spec, x), expected, rtol=1e-12)


def test_inputs_left_out_do_not_count() -> None:
    x = np.array([[0.5, -1.0], [0.1, 0.8]])
    priors = parse({"ih0": "0.7", "ho0": "x1", "io": "2"})
    spec = NetworkSpec(2, 1, (LayerSpec(3, "erf"),), priors, omitted={"ih0": (1,)})
    first = expected_products(0.7**2 * x[:, :1] @ x[:, :1].T, "erf")
    np.testing.assert_allclose(limit_covariance(spec, x), first + 4 * x @ x.T, rtol=1e-12)


@pytest.mark.parametrize(
    ("priors", "activation", "named"),
    [
        (
            {"ih0": "1", "ho0": "x1"},
            "tanh",
            r"network.hidden\[0\]: the limit has no closed form for tanh units",
        ),
        ({"ih0": "1:2", "ho0": "x1"}, "step", "network.priors.ih0: the limit is a Gaussian process only"),
        ({"ih0": "1", "ho0": "x1:::1"}, "step", "network.priors.ho0: the limit is a Gaussian process only"),
        (
            {"ti": "1", "ih0": "1", "ho0": "x1"},
            "step",
            "network.priors.ti: the limit has no closed form with off",
        ),
    ],
)
def test_networks_without_a_closed_form_are_refused(
    priors: dict[str, str], activation: Any, named: str
) -> None:
    spec = NetworkSpec(1, 1, (LayerSpec(4, activation),), parse(priors))
    with pytest.raises(ConfigError, match=named):
        limit_covariance(spec, np.zeros((2, 1)))
