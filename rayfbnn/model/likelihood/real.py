"""Real targets with Gaussian or t noise. The noise precision is sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE, ModelSpec
from rayfbnn.model.likelihood.data_model import DataModel, GaussianTargets, Misfit
from rayfbnn.model.prior import log_scale_free_normaliser
from rayfbnn.model.updates import gibbs
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class RealTargets(DataModel):
    """Real targets: each is its output plus noise.

    alpha  degrees of freedom of t noise; infinite for Gaussian noise
    """

    kind = "real"
    settings = {"noise": "noise"}
    required = {"noise": 'the prior of the noise, such as "0.1:0.2"'}
    is_real = True
    has_noise = True
    governed_by = NOISE

    alpha: float

    @classmethod
    def from_spec(cls, model: ModelSpec) -> RealTargets:
        assert model.noise is not None
        return cls(model.noise.alphas[2])

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return terms and gradient, with z = tau (y - v)**2 and alpha the degrees of freedom of t noise.

        Gaussian  -z/2                               tau (y - v)                  Neal (2022) eqs. 8, 37
        t         -(alpha+1)/2 log(1 + z/alpha)      (alpha+1) tau (y-v)/(alpha+z)              10, 38

        Eqs. 37 and 38 as printed have the wrong sign. A term is never positive.
        """
        residuals = rows - outputs
        gradient = noise[:, :, None] * residuals
        z = gradient * residuals
        alpha = self.alpha
        if math.isinf(alpha):
            z *= -0.5
            return z, gradient
        gradient *= (alpha + 1) / (alpha + z)
        return -(alpha + 1) / 2 * array_namespace(outputs).log1p(z / alpha), gradient

    def log_normalisers(self, noise: Array) -> Array:
        """Return the log density at a residual of zero, (n_chains, n_targets); Neal (2022) eqs. 8, 10."""
        return 0.5 * array_namespace(noise).log(noise) + log_scale_free_normaliser(self.alpha)

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        xp = array_namespace(outputs)
        shape = outputs.shape[1:]
        log_precision = xp.broadcast_to(xp.log(noise)[:, :, None], outputs.shape)
        if math.isfinite(self.alpha):
            mixing = streams.log_gamma(self.alpha / 2, Purpose.TARGET_VALUE, shape, index=1)
            log_precision = log_precision + mixing - math.log(self.alpha / 2)
        return outputs + streams.normal(Purpose.TARGET_VALUE, shape) * xp.exp(-0.5 * log_precision)

    def largest_curvature(self, noise: Array, n_outputs: int) -> Array:
        return noise if math.isinf(self.alpha) else noise * ((self.alpha + 1) / self.alpha)

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        """Return tau, or for t noise its expected information tau (alpha + 1)/(alpha + 3)."""
        factor = 1.0 if math.isinf(self.alpha) else (self.alpha + 1) / (self.alpha + 3)
        xp = array_namespace(noise)
        return xp.broadcast_to(factor * noise[:, :, None], (len(noise), *outputs.shape[1:]))

    def why_outputs_stay(self, *, is_tempered: bool) -> None:
        return None

    def gaussian_targets(
        self, outputs: Callable[[], Array], rows: Array, noise: Array, weights: Array, streams: Streams
    ) -> GaussianTargets:
        """Return the targets themselves, with precisions T.

        For Gaussian noise at inverse temperature b, T = b tau. For t noise, T is the precision of each case,
        drawn from its Gamma distribution given the residual (gibbs.draw_value_precisions).
        """
        xp = array_namespace(rows)
        tau = noise[:, :, None]
        if math.isinf(self.alpha):
            return GaussianTargets(weights * tau, rows)
        squares = (rows - outputs()) ** 2
        weights = xp.broadcast_to(weights, squares.shape)
        drawn = gibbs.draw_value_precisions(
            squares, tau, self.alpha, weights, streams, index=0, purpose=Purpose.NOISE_CASE
        )
        return GaussianTargets(xp.where(weights > 0, drawn, 0.0), rows)

    @property
    def compiled_name(self) -> str:
        return "gaussian" if math.isinf(self.alpha) else "t"

    @property
    def has_exponential_moments(self) -> bool:
        return math.isinf(self.alpha)

    def output_units(self, center: Array, scale: Array) -> tuple[Array, Array]:
        return scale, center

    def moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return the outputs as means, and the variance of the noise.

        For t noise without a variance (df <= 2), the square of its width is returned.
        """
        factor = self.alpha / (self.alpha - 2) if 2 < self.alpha < math.inf else 1.0
        return outputs, np.broadcast_to(factor * np.square(noise_sigmas), outputs.shape)

    def exported_settings(self, training_targets: Array) -> dict[str, float | None]:
        """Return the degrees of freedom of t noise, or None for Gaussian noise."""
        return {"noise_df": None if math.isinf(self.alpha) else self.alpha}

    def target_moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return the outputs as means, and the variance of the noise, infinite for t noise with df <= 2."""
        means, variances = self.moments(outputs, noise_sigmas)
        return means, variances if self.alpha > 2 else np.full_like(variances, np.inf)

    def distribution(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        return component_sums(values[:, :, None], outputs, noise_sigmas, self.alpha)

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
        log_scale = f'a log scale: data.transform = {{ {name} = "log" }}'
        heavy = ['t noise, by a last alpha of model.noise, such as noise = "0.2:0.5::4"']
        if math.isfinite(self.alpha):
            heavy = [
                f"t noise with fewer degrees of freedom, the last alpha of model.noise (now {self.alpha:g})"
            ]
        if misfit == "varying":
            ways = ['noise that depends on the inputs: model = { kind = "heteroscedastic" }']
            return [*ways, f"{log_scale}, if the spread grows with the value"] if is_positive else ways
        if misfit == "outliers":
            return heavy
        if misfit == "too wide":  # a few targets far out make the noise too large for all others
            of_each = 'noise = "0.2:0.5:0.5"'
            return [*heavy, f"noise of its own for each of several targets, by a second alpha: {of_each}"]
        if misfit == "skewed":
            return [log_scale if is_positive else f"a function of {name} whose noise is symmetric"]
        return super().remedies(misfit, name, is_positive=is_positive)


_TABLE_STEPS = 1 << 16
_TAIL_CELLS = 4096


def component_sums(values: Array, means: Array, scales: Array, df: float = math.inf) -> Array:
    """Return sums over components of F((x - m) / s) and its first two derivatives by x, (3, ...).

    F is the distribution function of a standard normal variable, or of a t variable with finite df.
    values, means, scales  (..., n_components), or broadcast to that; the scales are positive
    """
    inverse = 1.0 / np.asarray(scales, dtype=np.float64)
    z = (values - means) * inverse
    cdf, density = _cdf_and_density(z, df)
    density = density * inverse
    slope = -density * z * inverse
    if math.isfinite(df):
        slope *= (df + 1) / (df + np.square(z))
    return np.stack([part.sum(axis=-1) for part in (cdf, density, slope)])


def _cdf_and_density(z: Array, df: float) -> tuple[Array, Array]:
    """Return the distribution function and density at z of a standard normal, or t with df."""
    import scipy.special

    if math.isfinite(df):
        return _t_table(df)(z)
    density = np.square(z)
    density *= -0.5
    np.exp(density, out=density)
    density *= 1 / math.sqrt(2 * math.pi)
    return scipy.special.ndtr(z), density


@lru_cache(maxsize=4)
def t_tail_cubics(df: float) -> tuple[Array, float]:
    """Return cubics of the upper tail 1 - F of the t distribution for compiled code.

    Cell k has the cubic in u * rate - k, where u = asinh(z / sqrt(df)) is not negative. The coefficients are
    (n_cells, 4), and 1 / rate is the width of a cell. The error is below 1e-9 where df is at least 1/2.
    """
    coefficients, step = _cubics(df, np.linspace(0, _reach(df), _TAIL_CELLS + 1), -1)
    return coefficients, 1 / step


def _reach(df: float) -> float:
    """Return where the tails of s = asinh(z / sqrt(df)) beyond have a probability below 1e-19."""
    return 45.0 / min(df, 1.0)


def _cubics(df: float, s: Array, sign: int) -> tuple[Array, float]:
    """Return Hermite's cubics of P(sign z <= sqrt(df) sinh(s)) between the points s of a uniform grid.

    The coefficients are (n_cells, 4), and the second result is the width of a cell.
    """
    import scipy.special

    step = float(s[-1] - s[0]) / (len(s) - 1)
    with np.errstate(over="ignore"):
        values = scipy.special.stdtr(df, sign * math.sqrt(df) * np.sinh(s))
    slopes = sign * step * np.exp(_log_constant(df) - df * (np.logaddexp(s, -s) - math.log(2)))
    rise, before, after = np.diff(values), slopes[:-1], slopes[1:]
    columns = [values[:-1], before, 3 * rise - 2 * before - after, before + after - 2 * rise]
    return np.stack(columns, axis=1), step


def _log_constant(df: float) -> float:
    """Return the log density of s = asinh(z / sqrt(df)) at zero."""
    import scipy.special

    return float(scipy.special.gammaln((df + 1) / 2) - scipy.special.gammaln(df / 2) - math.log(math.pi) / 2)


@lru_cache(maxsize=4)
def _t_table(df: float) -> Callable[[Array], tuple[Array, Array]]:
    """Return the t distribution by interpolation: `stdtr` takes 150 ns a value, too long for 10**9 values.

    In s = asinh(z / sqrt(df)) the density is C cosh(s)^-df. It is smooth for every df, and its tails are no
    heavier than exponential. Cubic Hermite interpolation of the distribution function on a uniform grid is
    therefore accurate to about step^4 / 384, which is below 1e-10.
    """
    reach, root = _reach(df), math.sqrt(df)
    coefficients, step = _cubics(df, np.linspace(-reach, reach, _TABLE_STEPS + 1), 1)
    at_zero = math.exp(_log_constant(df)) / root

    def cdf_and_density(z: Array) -> tuple[Array, Array]:
        scaled = z / root
        place = np.clip((np.arcsinh(scaled) + reach) / step, 0, np.nextafter(_TABLE_STEPS, 0))
        cell = place.astype(np.int32)
        u = place - cell
        c = coefficients[cell]
        cdf = c[..., 0] + u * (c[..., 1] + u * (c[..., 2] + u * c[..., 3]))
        return cdf, at_zero * (1 + scaled * scaled) ** (-(df + 1) / 2)

    return cdf_and_density
