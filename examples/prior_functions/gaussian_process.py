"""The Gaussian processes that networks converge to as their layers grow, if a closed form exists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import NetworkSpec, destination


def limit_covariance(network: NetworkSpec, inputs: Array) -> Array:
    """Return the covariance of one output, (n_points, n_points), if all hidden layers are infinitely wide.

    All parameters are Gaussian with fixed sigmas. Let K^l(p, q) be the covariance of the summed input of a
    unit of layer l at two points:

        K^l = sigma_b^2 + sigma_I^2 x_p.x_q + sum_k n_k sigma_k^2 C^k,   C^k = E[a(u_p) a(u_q)], u ~ N(0, K^k)

    over the inputs and the earlier layers k that lead into it; Neal (1996) eqs. 2.3, 2.4, applied layer by
    layer. For one hidden layer, this is the covariance for any number of units, not only in the limit.
    Raises ConfigError if the limit has no closed form here.

    inputs  (n_points, n_inputs)   as the network sees them
    """
    _check(network)
    xp = array_namespace(inputs)
    inputs = xp.asarray(inputs, dtype=xp.float64)
    products: dict[str, Array] = {}
    layers = [f"h{number}" for number in range(len(network.hidden))]
    for layer in (*layers, "o"):
        summed = xp.zeros((len(inputs), len(inputs)))
        for group in network.groups():
            if destination(group.name) != layer:
                continue
            if not group.is_weights:
                summed += 1 / group.mean_precision
            elif group.name[0] == "i":
                seen = inputs[:, [column for column in range(network.inputs) if column not in group.omitted]]
                summed += seen @ seen.T / group.mean_precision
            else:
                summed += group.shape[0] / group.mean_precision * products[_source(group.name)]
        products[layer] = summed
        if layer != "o":
            products[layer] = expected_products(summed, network.hidden[layers.index(layer)].activation)
    return products["o"]


def expected_products(covariance: Array, activation: str) -> Array:
    """Return E[a(u_p) a(u_q)], (n_points, n_points), for Gaussian u of mean zero with this covariance.

    Let c be the covariance of u_p and u_q, v and w the variances, r = c / sqrt(v w), and t = arccos r:

        identity  c
        step      2/pi arcsin r                                  orthant probability of two normals
        erf       2/pi arcsin(2c / sqrt((1 + 2v)(1 + 2w)))       Williams (1997), "Computing with infinite
                                                                 networks"
        relu      sqrt(v w) (sin t + (pi - t) cos t) / (2 pi)    Cho and Saul (2009), "Kernel methods for
                                                                 deep learning"
        sin       exp(2c - v - w) - exp(-2c - v - w)             of sqrt(2) sin(sqrt(2) u), by characteristic
                                                                 functions
    """
    xp = array_namespace(covariance)
    variances = xp.diagonal(covariance)
    v, w = variances[:, None], variances[None, :]
    return _PRODUCTS[activation](covariance, v, w)


def _step(c: Array, v: Array, w: Array) -> Array:
    return 2 / math.pi * _arcsin(c / array_namespace(c).sqrt(v * w))


def _erf(c: Array, v: Array, w: Array) -> Array:
    return 2 / math.pi * _arcsin(2 * c / array_namespace(c).sqrt((1 + 2 * v) * (1 + 2 * w)))


def _relu(c: Array, v: Array, w: Array) -> Array:
    xp = array_namespace(c)
    scale = xp.sqrt(v * w)
    angle = math.pi / 2 - _arcsin(c / scale)
    return scale * (xp.sin(angle) + (math.pi - angle) * xp.cos(angle)) / (2 * math.pi)


def _sin(c: Array, v: Array, w: Array) -> Array:
    xp = array_namespace(c)
    return xp.exp(2 * c - v - w) - xp.exp(-2 * c - v - w)


def _identity(c: Array, v: Array, w: Array) -> Array:
    return c


_PRODUCTS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "identity": _identity,
    "step": _step,
    "erf": _erf,
    "relu": _relu,
    "sin": _sin,
}


def _arcsin(correlation: Array) -> Array:
    """Return the arcsin of a correlation, which rounding may have made larger than one."""
    xp = array_namespace(correlation)
    return xp.arcsin(xp.clip(correlation, -1.0, 1.0))


def _source(group: str) -> str:
    """Return the hidden layer that a group of weights comes from, "h<l>" (h2 for the group ho2)."""
    ho = re.fullmatch(r"ho(\d+)", group)
    return f"h{ho[1]}" if ho else group[: group.rindex("h")]


def _check(network: NetworkSpec) -> None:
    """Raise ConfigError if the network has no limit in closed form here."""
    for number, layer in enumerate(network.hidden):
        if layer.activation not in _PRODUCTS or layer.product is not None:
            known = ", ".join(_PRODUCTS)
            what = f"{layer.activation} units" if layer.product is None else "a product of layers"
            raise ConfigError(
                f"network.hidden[{number}]: the limit has no closed form for {what}, only for {known} units"
            )
    for name in network.adjustments:
        raise ConfigError(
            f"network.priors.{name}: the limit has no closed form with adjustments; leave them out"
        )
    for name in network.connections:
        raise ConfigError(
            f"network.connections.{name}: the limit has no closed form with connections; leave this out"
        )
    for group in network.groups():
        if group.name[0] == "t":
            raise ConfigError(
                f"network.priors.{group.name}: the limit has no closed form with offsets; leave them out"
            )
        is_plain = group.prior.mixture is None and group.prior.rectified is None
        if any(math.isfinite(alpha) for alpha in group.prior.alphas) or not is_plain:
            raise ConfigError(
                f"network.priors.{group.name}: the limit is a Gaussian process only if sigmas are fixed "
                'and parameters are Gaussian; give only a width, such as "1" or "x1"'
            )
