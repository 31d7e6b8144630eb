"""Real targets with noise that depends on the inputs: a second set of outputs is the log precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.likelihood.data_model import DataModel, Misfit
from rayfbnn.model.likelihood.real import component_sums
from rayfbnn.streams import Purpose, Streams

_LOG_2_PI = math.log(2 * math.pi)
_MAX_LOG_PRECISION = 680.0  # limit for the absolute value; variances are then between 1e-296 and 1e296


@dataclass(frozen=True)
class HeteroscedasticTargets(DataModel):
    """Gaussian targets. The outputs are the mean v of each target, then the log precision s of its noise.

    noise_floor  smallest standard deviation of the noise: 1/tau = noise_floor**2 + exp(-s)
    """

    kind = "heteroscedastic"
    usual_bias = 3.0  # a log precision of 4.6 means a noise standard deviation of 0.1
    usual_iterations = 10_000
    settings = {"noise_floor": "one"}
    is_real = True
    compiled_name = "heteroscedastic"
    has_exponential_moments = True

    noise_floor: float = 0.0

    @classmethod
    def from_spec(cls, model: ModelSpec) -> HeteroscedasticTargets:
        return cls(model.noise_floor)

    @property
    def compiled_setting(self) -> float:
        """Return the log of the smallest variance; without a floor, a number too low to affect a variance."""
        return 2 * math.log(self.noise_floor) if self.noise_floor > 0 else -1e6

    def n_outputs(self, n_targets: int) -> int:
        return 2 * n_targets

    def output_names(self, target_names: Sequence[str]) -> tuple[str, ...]:
        return (*target_names, *(f"log_precision_{name}" for name in target_names))

    def log_precision(self, s: Array) -> Array:
        """Return log tau of the noise given the outputs s; without a floor this is s itself."""
        floor = self.noise_floor
        if floor == 0:
            return s
        return s - array_namespace(s).logaddexp(0.0, s + 2 * math.log(floor))

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return log densities (log tau - tau (y - v)**2 - log 2 pi)/2 and their derivatives by v and s.

        d/dv = tau (y - v);   d/ds = g (1 - tau (y - v)**2)/2,  g = d log tau/ds = 1/(1 + floor**2 exp(s))
        """
        xp = array_namespace(outputs)
        outputs = outputs.astype(xp.float64)
        n_targets = rows.shape[-2]
        v, s = outputs[:, :n_targets], outputs[:, n_targets:]
        log_tau = self.log_precision(s)
        residual = rows - v
        slope = xp.exp(log_tau) * residual
        z = slope * residual
        gradient = xp.concatenate([slope, 0.5 * xp.exp(log_tau - s) * (1 - z)], axis=1)
        return 0.5 * (log_tau - z - _LOG_2_PI), gradient

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        n_targets = outputs.shape[1] // 2
        v, s = outputs[:, :n_targets], outputs[:, n_targets:]
        values = streams.normal(Purpose.TARGET_VALUE, v.shape[1:])
        return v + values * array_namespace(outputs).exp(-0.5 * self.log_precision(s))

    def largest_terms(self, rows: Array) -> Array:
        """Return -log floor - log(2 pi)/2; infinite without a floor."""
        floor = self.noise_floor
        value = -math.log(floor) - 0.5 * _LOG_2_PI if floor > 0 else math.inf
        return array_namespace(rows).full(rows.shape, value)

    @property
    def why_unbounded(self) -> str | None:
        if self.noise_floor > 0:
            return None
        return (
            "model.noise_floor: missing; without it the density of a target is unbounded, and no proposal"
            " can be accepted; give the smallest standard deviation of the noise, such as 0.01"
        )

    def typical_curvature(self, targets: Array) -> Array:
        """Return -d2/dv2 at a precision of 1/variance of the targets, then -d2/ds2 = 1/2, (..., 2 n_targets).

        1/2 is the mean of -d2/ds2 over y. If all observed values of a target are equal, the precision is one.
        """
        xp = array_namespace(targets)
        is_observed = ~xp.isnan(targets)
        n = xp.maximum(is_observed.sum(axis=-2), 1)
        values = xp.nan_to_num(targets)
        mean = values.sum(axis=-2) / n
        variance = (is_observed * (values - mean[..., None, :]) ** 2).sum(axis=-2) / n
        precision = 1 / xp.where(variance > 0, variance, 1.0)
        return xp.concatenate([precision, xp.full_like(precision, 0.5)], axis=-1)

    def output_units(self, center: Array, scale: Array) -> tuple[Array, Array]:
        """Return the factors and constants for the means, then for the log precisions."""
        factor = np.concatenate([scale, np.ones(len(scale))])
        return factor, np.concatenate([center, -2 * np.log(scale)])

    def moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return the first half of the outputs as means, and the variances given by the second half."""
        means, sigmas = self._means_and_sigmas(outputs)
        return means, np.square(sigmas)

    def exported_settings(self, training_targets: Array) -> dict[str, float]:
        return {"noise_floor": self.noise_floor}

    def distribution(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        means, sigmas = self._means_and_sigmas(outputs)
        return component_sums(values[:, :, None], means, sigmas)

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
        if misfit == "skewed" and is_positive:
            return [f'a log scale: data.transform = {{ {name} = "log" }}']
        if misfit == "outliers":
            return ['t noise: model = { kind = "real", noise = "0.2:0.5::4" }']
        return super().remedies(misfit, name, is_positive=is_positive)

    def _means_and_sigmas(self, outputs: Array) -> tuple[Array, Array]:
        """Return means and noise standard deviations, (n_cases, n_targets, n_draws) each."""
        means, log_precisions = np.split(outputs, 2, axis=1)
        log_tau = self.log_precision(log_precisions.astype(np.float64))
        return means, np.exp(-0.5 * np.clip(log_tau, -_MAX_LOG_PRECISION, _MAX_LOG_PRECISION))
