"""Count targets: Poisson variables with the network's output as the logarithm of the rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.cases import without_missing
from rayfbnn.model.likelihood.data_model import DataModel, Misfit, TargetRange, error_rate
from rayfbnn.streams import Purpose, Streams

_MAX_LOG_RATE_OF_SUMS = math.log(1e300)  # SciPy's incomplete gamma function is NaN from 3e305
_MAX_LOG_RATE = math.log(1e15)  # limit for draws: much larger whole numbers are not exact in float64


@dataclass(frozen=True)
class CountTargets(DataModel):
    """Whole numbers from 0, with a Poisson distribution of mean exp(v)."""

    kind = "count"
    usual_bias = 10.0  # rates may be of any size
    usual_iterations = 15_000
    settings = {"dispersion": "a dispersion"}
    quantile_scale = "whole"
    has_modes = True
    has_exposure = True
    compiled_name = "count"

    @classmethod
    def from_spec(cls, model: ModelSpec) -> CountTargets:
        return cls()

    def target_range(self, targets: Array) -> TargetRange:
        return TargetRange((targets == np.floor(targets)) & (targets >= 0), "a whole number of at least 0")

    def target_rows(self, targets: Array) -> Array:
        """Return rows of counts, followed by rows of -log y!, (..., 2 n_targets, n_cases)."""
        xp = array_namespace(targets)
        counts = without_missing(targets.swapaxes(-1, -2)).astype(xp.float64)
        log_factorials = special_functions(counts).gammaln(counts + 1.0)
        return xp.ascontiguousarray(xp.concatenate([counts, -log_factorials], axis=-2), dtype=xp.float64)

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return log P(y | v) = y v - exp(v) - log y!, and its derivative y - exp(v)."""
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        n_targets = rows.shape[-2] // 2
        y, rate = rows[..., :n_targets, :], xp.exp(v)
        # xp.where: with v = -inf and y = 0 the target has probability one, and the product would be NaN
        return xp.where(y > 0, y * v, 0.0) - rate + rows[..., n_targets:, :], y - rate

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        xp = array_namespace(outputs)
        return xp.exp(outputs.astype(xp.float64))

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        return draw_counts(outputs, streams)

    def largest_terms(self, rows: Array) -> Array:
        """Return the terms at v = log y: y log y - y - log y!."""
        xp = array_namespace(rows)
        n_targets = rows.shape[-2] // 2
        y = rows[..., :n_targets, :]
        return y * xp.log(xp.maximum(y, 1.0)) - y + rows[..., n_targets:, :]

    def typical_curvature(self, targets: Array) -> Array:
        """Return -d2/dv2 log P = exp(v) at a rate of the size of the counts, (..., n_targets).

        (sum of counts + 1) / (number of observed counts); the 1 keeps it positive if all counts are zero.
        """
        xp = array_namespace(targets)
        n_observed = xp.maximum((~xp.isnan(targets)).sum(axis=-2), 1)
        return (xp.nan_to_num(targets).sum(axis=-2) + 1) / n_observed

    def function_names(self, target_names: Sequence[str]) -> list[str]:
        return [f"log_rate_{name}" for name in target_names]

    def moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return the rate twice, since it is both the mean and the variance of a Poisson distribution."""
        with np.errstate(over="ignore"):
            rates = np.exp(outputs.astype(np.float64))
        return rates, rates

    def distribution(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        """Return sums over draws of P(Y <= k) and of P(Y = k) at counts k."""
        rates = np.exp(np.minimum(outputs.astype(np.float64), _MAX_LOG_RATE_OF_SUMS))
        k = values[:, :, None]
        cdf = special_functions(rates).gammaincc(k + 1, rates).sum(axis=2)
        return np.stack([cdf, self.mass(outputs, noise_sigmas, values), np.full_like(cdf, np.nan)])

    def mass(self, outputs: Array, noise_sigmas: Array, counts: Array) -> Array:
        return mass_sums(outputs, counts[:, :, None])

    def errors(
        self, columns: dict[str, Array], targets: Array, target_names: Sequence[str]
    ) -> dict[str, Array]:
        modes = np.stack([columns[f"{name}_mode"] for name in target_names], axis=1)
        wrong_modes = {"error_rate": error_rate(modes != targets, targets)}
        return super().errors(columns, targets, target_names) | wrong_modes

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
        if misfit in ("too narrow", "outliers", "varying"):
            return [
                "counts vary more than a Poisson distribution allows; use dispersion ="
                ' "0.3:0.5": model = { kind = "count", dispersion = "0.3:0.5" }'
            ]
        if misfit == "too wide":
            return [
                "counts vary less than a Poisson distribution allows; model them as real numbers:"
                ' model = { kind = "real", noise = "0.2:0.5" }'
            ]
        return super().remedies(misfit, name, is_positive=is_positive)


def draw_counts(log_rates: Array, streams: Streams) -> Array:
    """Draw counts with rates limited to 1e15, by inversion of the distribution function, as `log_rates`."""
    xp = array_namespace(log_rates)
    rate = xp.exp(xp.minimum(log_rates, _MAX_LOG_RATE))
    return quantile(streams.uniform(Purpose.TARGET_VALUE, log_rates.shape[1:]), rate)


def quantile(probability: Array, rate: Array) -> Array:
    """Return the smallest k with P(Y <= k) >= probability for a Poisson variable Y, in the shape of `rate`.

    The bisection starts about 40 standard deviations on both sides of the rate.
    """
    xp = array_namespace(rate)
    above_rate = special_functions(rate).gammaincc
    reach = 40 * xp.sqrt(rate) + 40
    low, high = xp.maximum(xp.floor(rate - reach), -1.0), xp.ceil(rate + reach)
    while bool((high - low > 1).any()):
        middle = xp.floor((low + high) / 2)
        # P(Y <= k) = Q(k + 1, rate), the regularised upper incomplete gamma function
        is_enough = above_rate(xp.maximum(middle, 0.0) + 1, rate) >= probability
        is_enough &= middle >= 0
        high = xp.where(is_enough, middle, high)
        low = xp.where(is_enough, low, middle)
    return high


_LARGE = 1e4  # above this count, two terms of Stirling's series are accurate to 1 / (360 k**3)


def mass_sums(log_rates: Array, counts: Array) -> Array:
    """Return the sums over draws of the probabilities of counts, (...).

    log_rates (..., n_draws); counts (..., 1)
    """
    v = np.minimum(log_rates.astype(np.float64), _MAX_LOG_RATE_OF_SUMS)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):  # k = 0
        log_k = np.log(counts)
        d = v - log_k
        log_mass = np.where(counts > 0, _at_best(counts) + counts * (d - np.expm1(d)), -np.exp(v))
    return np.asarray(np.exp(log_mass).sum(axis=-1))


def count_constants(counts: Array) -> Array:
    """Return log(k) and the probability of k if the rate is k, (2, ...); for 0 those of 1."""
    k = np.maximum(counts, 1.0)
    return np.stack([np.log(k), np.exp(_at_best(k))])


def _at_best(k: Array) -> Array:
    """Return the log probability of a count k if the rate is k; by Stirling's series for large ones."""
    import scipy.special

    exact = k * np.log(k) - k - scipy.special.gammaln(k + 1)
    stirling = -0.5 * np.log(2 * np.pi * k) - 1 / (12 * k)
    return np.where(k == 0, 0.0, np.where(k < _LARGE, exact, stirling))
