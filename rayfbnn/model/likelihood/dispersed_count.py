"""Counts that vary more than Poisson's: their rates are multiplied by Gamma variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import DISPERSION, ModelSpec
from rayfbnn.model.likelihood.count import CountTargets, draw_counts
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.target_records import Misfit
from rayfbnn.streams import Purpose, Streams

# Shapes beyond these count as these. At 1e12 no count below a million shows the difference to Poisson's, and
# the numbers of the compiled code in single precision stay finite.
_LEAST_SHAPE, _MOST_SHAPE = 1e-12, 1e12
_FROM_SERIES = 100.0  # from here on, three terms of Stirling's series are accurate to 1e-17


@dataclass(frozen=True)
class DispersedCountTargets(CountTargets):
    """Whole numbers from 0 with a negative binomial distribution of mean exp(v).

    A count is Poisson with rate exp(v) g, where g ~ Gamma(shape r, rate r) differs from case to case and from
    target to target. g has mean 1 and variance sigma**2 = 1/r, and the count has variance
    exp(v) + sigma**2 exp(2 v). The shape is the precision that governs a target: `noise` holds shapes r, and
    `noise_sigmas` standard deviations sigma = r**-1/2 of the relative rate. g is integrated out everywhere.

    width  of the prior of sigma
    """

    width: float = 0.3
    governed_by = DISPERSION

    @classmethod
    def from_spec(cls, model: ModelSpec) -> DispersedCountTargets:
        assert model.dispersion is not None
        return cls(model.dispersion.width)

    @property
    def in_words(self) -> str:
        return "count with dispersion"

    @property
    def compiled_name(self) -> str:
        return "dispersed count"

    def bounded(self, noise: Array) -> Array:
        return shapes_of(noise)

    def compiled_shapes(self, sigmas: Array) -> Array:
        from rayfbnn.model.mixtures.negative_binomial import shape_constants

        return np.ascontiguousarray(shape_constants(shapes_of(sigmas**-2.0)))

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return log P(y | v) with its constants, and its derivative by v.

        With x = v - log r
            log P = y v - (y + r) log(1 + exp(x)) + log Gamma(y + r)/(Gamma(r) r**y y!)
            d/dv  = y - (y + r) exp(x)/(1 + exp(x))
        """
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        n_targets, r = rows.shape[-2] // 2, shapes_of(noise)[:, :, None]
        y, total = rows[..., :n_targets, :], rows[..., :n_targets, :] + r
        x = v - xp.log(r)
        e = xp.exp(-abs(x))
        # log(1 + exp(x)) and its derivative; for large r both are as accurate as exp(v)/r
        excess = xp.maximum(x, 0.0) + xp.log1p(e)
        slope = xp.where(x < 0, e, 1.0) / (1 + e)
        # xp.where: with v = -inf and y = 0 the target has probability one, and the product would be NaN
        terms = xp.where(y > 0, y * v, 0.0) - total * excess
        return terms + log_gamma_ratio(y, r) + rows[..., n_targets:, :], y - total * slope

    def density_of_shapes(
        self, outputs: Array, rows: Array, weights: Array | None
    ) -> Callable[[Array], Array]:
        """Return sums over cases of -(y + r) log(1 + exp(v)/r) + log Gamma(y + r)/(Gamma(r) r**y).

        If all chains have the same counts, the second part is computed once for all cases with one count. It
        would otherwise take most of the time.
        """
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        with np.errstate(over="ignore"):
            means = xp.exp(v)
            is_large = not bool(xp.isfinite(means / _LEAST_SHAPE).all())
        y = rows[..., : rows.shape[-2] // 2, :]
        w = xp.ones_like(y) if weights is None else weights
        levels = [_levels(y[j], w[j]) for j in range(len(y))] if y.ndim == 2 else None

        def density(shapes: Array) -> Array:
            r = shapes_of(shapes)
            by_case = r[:, :, None]
            excess = xp.log1p(means / by_case)
            if is_large:  # exp(v)/r overflows, and log(1 + exp(v)/r) = v - log r
                excess = xp.where(xp.isinf(excess), v - xp.log(by_case), excess)
            total = -((y + by_case) * excess * w).sum(axis=2)
            if levels is None:
                return total + (log_gamma_ratio(y, by_case) * w).sum(axis=2)
            of_levels = [
                (log_gamma_ratio(values, r[:, j, None]) * sizes).sum(axis=1)
                for j, (values, sizes) in enumerate(levels)
            ]
            return total + xp.stack(of_levels, axis=1)

        return density

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        """Return (y + r) s (1 - s) with s = exp(v)/(r + exp(v)), which is never negative."""
        xp = array_namespace(outputs)
        n_targets, r = rows.shape[-2] // 2, shapes_of(noise)[:, :, None]
        e = xp.exp(-abs(outputs.astype(xp.float64) - xp.log(r)))
        return (rows[..., :n_targets, :] + r) * e / (1 + e) ** 2

    def curvature_given(self, typical: Array, noise: Array) -> Array:
        """Return the mean of -d2/dv2 over counts with a mean of the size of the targets, 1/(1/mean + 1/r)."""
        return 1 / (1 / typical + 1 / shapes_of(noise))

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        """Draw the rates exp(v) g, and then counts with these rates."""
        xp = array_namespace(outputs)
        r = xp.broadcast_to(shapes_of(noise)[:, :, None], outputs.shape)
        log_gamma = streams.log_gamma(r, Purpose.TARGET_VALUE, outputs.shape[1:], index=1)
        return draw_counts(outputs + log_gamma - xp.log(r), streams)

    def moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return the mean m = exp(v) and the variance m + (sigma m)**2."""
        means, _ = super().moments(outputs, noise_sigmas)
        with np.errstate(over="ignore"):
            return means, means + np.square(noise_sigmas * means)

    def distribution(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        from rayfbnn.model.mixtures.negative_binomial import distribution_sums

        cdf, mass = distribution_sums(outputs, shapes_of(noise_sigmas**-2.0), values[:, :, None])
        return np.stack([cdf, mass, np.full_like(cdf, np.nan)])

    def mass(self, outputs: Array, noise_sigmas: Array, counts: Array) -> Array:
        from rayfbnn.model.mixtures.negative_binomial import mass_sums

        return mass_sums(outputs, shapes_of(noise_sigmas**-2.0), counts[:, :, None])

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
        """Return a wider prior for counts that vary more than this one expects, and else those of counts."""
        if misfit in ("too narrow", "outliers"):
            width = max(1.0, 3 * self.width)
            wider = f'a wider prior of the dispersion of {name}, such as dispersion = "{width:g}:0.5"'
            return [wider, *DataModel.remedies(self, misfit, name, is_positive=is_positive)]
        if misfit == "varying":
            return DataModel.remedies(self, misfit, name, is_positive=is_positive)
        return super().remedies(misfit, name, is_positive=is_positive)


def _levels(counts: Array, weights: Array) -> tuple[Array, Array]:
    """Return the different counts of a target, and the total weight of each, (n_levels,) each."""
    xp = array_namespace(counts)
    values, places = xp.unique(counts, return_inverse=True)
    return values, xp.bincount(places.reshape(-1), weights=weights)


def shapes_of(noise: Array) -> Array:
    """Return the shapes within the limits that the likelihood resolves."""
    return array_namespace(noise).clip(noise, _LEAST_SHAPE, _MOST_SHAPE)


def log_gamma_ratio(y: Array, r: Array) -> Array:
    """Return log Gamma(y + r)/(Gamma(r) r**y), which is 0 for y = 0, 1, and for r = infinity.

    For large r the logarithms would cancel; there it is the difference of two Stirling series,

        (y + r - 1/2) log(1 + y/r) - y + s(y + r) - s(r),   s(z) = 1/(12 z) - 1/(360 z**3) + 1/(1260 z**5)
    """
    xp = array_namespace(r)
    gammaln, near = special_functions(r).gammaln, xp.minimum(r, _FROM_SERIES)
    exact = gammaln(y + near) - gammaln(near) - y * xp.log(near)
    if not bool((r >= _FROM_SERIES).any()):
        return exact
    far = xp.maximum(r, _FROM_SERIES)
    series = (y + far - 0.5) * xp.log1p(y / far) - y + _stirling(y + far) - _stirling(far)
    return xp.where(r < _FROM_SERIES, exact, series)


def _stirling(z: Array) -> Array:
    square = 1 / (z * z)
    return (1 / 12 - square * (1 / 360 - square / 1260)) / z
