"""The posterior with the further quantities that approximations need.

Means and variances pass through a network by probabilistic backpropagation: the summed inputs of each layer
are taken as Gaussian, and its units as independent. Each chain then has its own case, and arrays are
(n_chains, n_units).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.errors import at_most_ten
from rayfbnn.model import approximated_precisions, curvature, prior
from rayfbnn.model.approximated_precisions import in_pieces
from rayfbnn.model.architecture import DISPERSION
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.network import Buffers, activate, multiply_by_slope
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.wiring import Wiring
from rayfbnn.streams import Purpose, Streams

_SPREAD = 0.5  # the largest standard deviation of a parameter at a start


@dataclass(frozen=True, eq=False)
class ApproximatedPosterior(SampledPosterior):
    """A posterior that approximations can be fitted to, as an `FitTarget`."""

    def start(self, streams: Streams) -> tuple[Array, Array]:
        """Draw the start of a fit: parameters (n_chains, n_parameters), and precisions at their prior means.

        Parameters are normal with standard deviation 1/2. For weights, it is the inverse root of the number
        of source units if that is smaller. A start at zero would leave all units of a layer alike.
        """
        xp = array_namespace(streams.chains)
        position = streams.normal(Purpose.START, (self.n_parameters,))
        for group in self.parameter_layout.groups:
            spread = min(_SPREAD, 1 / math.sqrt(group.shape[0])) if group.is_weights else _SPREAD
            position[:, self.parameter_layout.slices[group.name]] *= spread
        means = np.ones(self.n_precisions)
        for level in self.precision_layout.groups:
            means[level.common] = level.mean
            if level.units is not None:
                means[level.units] = level.mean
        precisions = xp.tile(xp.asarray(means), (streams.n_chains, 1))
        return position.astype(self.dtype), precisions

    def log_joint(self, position: Array, precisions: Array) -> Array:
        """Return log likelihood plus log density of the parameters given precisions, (n_chains,) float64.

        The likelihood is raised to the inverse temperature.
        """
        with np.errstate(all="ignore"):
            of_prior = partial(
                prior.log_density_of_parameters,
                parameters=self.parameter_layout,
                layout=self.precision_layout,
            )
            log_prior = in_pieces(self, of_prior, position, precisions)
            log_likelihood = in_pieces(self, self.log_likelihood, position, precisions)
            return log_prior + self.inverse_temperature * log_likelihood

    residual_squares = approximated_precisions.residual_squares
    expected_precisions = approximated_precisions.expected_precisions
    reestimated = approximated_precisions.reestimated
    gauss_newton = curvature.gauss_newton
    hessian = curvature.hessian

    @property
    def why_not_expected(self) -> str | None:
        """Why precisions have no such distributions and how to change that, or None if they do."""
        for group in self.precision_layout.groups:
            alpha_common, alpha_unit, alpha_value = group.prior.alphas
            if group.name == DISPERSION and not group.is_fixed:
                return (
                    'a dispersion that varies is not covered; fix it, as in dispersion = "0.5", or use "none"'
                )
            if math.isfinite(alpha_value) and math.isfinite(min(alpha_common, alpha_unit)):
                return (
                    f"{group.name} has t values with precisions that vary;"
                    " fix its other levels, or leave out its last alpha"
                )
        if self.network.adjustments:
            names = ", ".join(at_most_ten(self.network.adjustments))
            return f"adjustments ({names}) are not covered; leave them out"
        return None

    @property
    def why_not_curved(self) -> str | None:
        """Why the posterior has no Gaussian approximation here and how to change that, or None if it does."""
        for group in self.parameter_layout.groups:
            if math.isfinite(group.prior.alphas[2]):
                return f"{group.name} has a t prior; leave out its last alpha"
            if group.prior.mixture is not None or group.prior.rectified is not None:
                return f"{group.name} has a mixture or rectified Gaussian prior; give a width and alphas"
        if type(self.data_model).output_curvature is DataModel.output_curvature:
            return f'model.kind = "{self.model.kind}" is not covered'
        return self.why_not_expected

    def prior_precisions(self, precisions: Array) -> Array:
        return prior.parameter_precisions(precisions, self.precision_layout)

    @property
    def why_not_propagated(self) -> str | None:
        """Why moments cannot be propagated through this model and how to change that, or None if they can."""
        if self.model.kind not in ("binary", "real"):
            return f'only binary and real targets are covered, not model.kind = "{self.model.kind}"'
        if not isinstance(self.inverse_temperature, float) or self.inverse_temperature != 1:
            return "only temperature = 1 is covered"
        for group in self.precision_layout.groups:
            if math.isfinite(group.prior.alphas[2]):
                return f"{group.name} has t values; leave out its last alpha"
            if group.prior.mixture is not None:
                return f"{group.name} has a mixture prior; give a width"
        return why_not_propagated(self.wiring) or self.why_not_expected

    def case_update(
        self, mean: Array, variance: Array, precisions: Array, cases: Array
    ) -> tuple[Array, Array, Array]:
        """Return log Z of one case of each chain, and its derivatives by all means and variances.

        mean, variance (n_chains, n_parameters), cases (n_chains,) integers. log Z is (n_chains,); for binary
        targets it is a bound. Several targets are independent factors.
        """
        rows = self.rows_by_case[cases].astype(np.float64)
        passed = forward_moments(mean, variance, rows, self.wiring)
        y = self.targets[:, cases].T
        if self.model.kind == "real":
            noise = prior.noise_precisions(precisions, self.precision_layout)
            factor = _gaussian_factor(y, passed.mean, passed.variance, noise)
        else:
            factor = logistic_factor(y, passed.mean, passed.variance)
        weights = 1.0 if self.observed is None else self.observed[:, cases].T
        gradients = backward_moments(
            mean, variance, passed, weights * factor.by_mean, weights * factor.by_variance, self.wiring
        )
        return (weights * factor.log_z).sum(axis=1), *gradients

    def expected_residual_squares(self, mean: Array, variance: Array) -> Array | None:
        """Return expected sums of squared residuals under independent Gaussians, (n_chains, n_targets)."""
        if self.model.noise is None:
            return None
        xp = array_namespace(mean)
        total = xp.zeros((len(mean), self.n_targets))
        for case in range(self.n_cases):
            rows = xp.tile(self.rows_by_case[case].astype(np.float64), (len(mean), 1))
            passed = forward_moments(mean, variance, rows, self.wiring)
            squares = (self.targets[:, case] - passed.mean) ** 2 + passed.variance
            total += squares if self.observed is None else squares * self.observed[:, case]
        return total


_ROUNDS = 60  # fixed-point iterations for zeta; each at least halves the error


@dataclass(frozen=True)
class TargetFactor:
    """log Z = log E[p(y | f)] for f ~ Normal(m, v), or a bound on it, and its derivatives by m and v."""

    log_z: Array
    by_mean: Array
    by_variance: Array


def logistic_factor(y: Array, m: Array, v: Array) -> TargetFactor:
    """Return the factor of binary targets by the bound of Jaakkola and Jordan (2000), at its best zeta.

        p(y | f) >= sigma(zeta) exp((y - 1/2) f - zeta/2 - lambda(zeta) (f^2 - zeta^2))

    with lambda(zeta) = tanh(zeta/2)/(4 zeta). The best zeta has zeta^2 = m_new^2 + v_new, the moments of f
    given the bound: v_new = v/(1 + 2 lambda v), m_new = (m + v (y - 1/2))/(1 + 2 lambda v). Derivatives are
    taken at fixed zeta; at the best zeta they equal the derivatives of the bound. Olobatuyi, eqs. 13-16, 58,
    73, 74, with their misprints corrected.
    """
    xp = array_namespace(m)
    zeta = xp.sqrt(m**2 + v)
    for _ in range(_ROUNDS):
        spread = 1 + 2 * curvature_of_bound(zeta) * v
        zeta = xp.sqrt(((m + v * (y - 0.5)) / spread) ** 2 + v / spread)
    lam = curvature_of_bound(zeta)
    spread = 1 + 2 * lam * v
    a, b = 2 * lam + 1 / v, y - 0.5 + m / v
    log_sigma = -xp.logaddexp(0, -zeta)
    log_z = log_sigma - 0.5 * xp.log(spread) + b**2 / (2 * a) - m**2 / (2 * v) - zeta / 2 + lam * zeta**2
    by_mean = (y - 0.5 - 2 * lam * m) / spread
    return TargetFactor(log_z, by_mean, 0.5 * (by_mean**2 - 2 * lam / spread))


def curvature_of_bound(zeta: Array) -> Array:
    """Return lambda(zeta) = tanh(zeta/2)/(4 zeta), 1/8 at zero."""
    xp = array_namespace(zeta)
    is_small = zeta < 1e-3
    safe = xp.where(is_small, 1.0, zeta)
    return xp.where(is_small, 0.125 - zeta**2 / 96, xp.tanh(safe / 2) / (4 * safe))


def _gaussian_factor(y: Array, m: Array, v: Array, noise: Array) -> TargetFactor:
    """Return the exact factor of real targets with Gaussian noise of precision `noise`."""
    xp = array_namespace(m)
    total = v + 1 / noise
    by_mean = (y - m) / total
    log_z = -0.5 * math.log(2 * math.pi) - 0.5 * xp.log(total) - 0.5 * by_mean**2 * total
    return TargetFactor(log_z, by_mean, 0.5 * (by_mean**2 - 1 / total))


_POINTS = 32  # points of Gauss-Hermite quadrature
_LEAST_VARIANCE = 1e-300
COVERED = ("relu", "tanh", "sigmoid", "softplus", "softplus0", "identity")


@dataclass(frozen=True)
class UnitMoments:
    """Mean and variance of the units a(u), u ~ Normal(m, v), and their derivatives by m and v.

    Each is (n_chains, n_units).
    """

    mean: Array
    variance: Array
    mean_by_m: Array
    mean_by_v: Array
    variance_by_m: Array
    variance_by_v: Array


@dataclass(frozen=True)
class NetworkMoments:
    """The moments of a forward pass.

    sources  for the inputs and each hidden layer, means and variances (n_chains, n_units + 1); the last
             column is for the constant one
    units    the moments of each hidden layer
    mean, variance  moments of the outputs, (n_chains, n_outputs)
    """

    sources: list[tuple[Array, Array]]
    units: list[UnitMoments]
    mean: Array
    variance: Array


def why_not_propagated(wiring: Wiring) -> str | None:
    """Return why moments cannot pass through a network and how to change that, or None if they can."""
    for activation in wiring.activations:
        if activation not in COVERED:
            return f"{activation} layers are not covered; use {', '.join(COVERED)}"
    if any(factor is not None for factor in wiring.factors):
        return "product layers are not covered; leave product out"
    if wiring.added_input is not None:
        return "an exposure is added to the outputs"
    if any(offset is not None for offset in wiring.offsets):
        return "offsets (ti, th) are not covered; leave them out"
    if any(link.configured is not None for links in wiring.incoming for link in links):
        return "configured connections are not covered; leave them out"
    return None


def forward_moments(mean: Array, variance: Array, inputs: Array, wiring: Wiring) -> NetworkMoments:
    """Return the moments of all units and outputs, for parameters with independent Gaussian distributions.

        m_a = sum m_z m_w ,  v_a = sum m_z^2 v_w + v_z m_w^2 + v_z v_w            Olobatuyi, eqs. 69-72

    mean, variance (n_chains, n_parameters); inputs (n_chains, n_inputs + 1), the last column ones
    """
    xp = array_namespace(mean)
    sources = [(inputs, xp.zeros_like(inputs))]
    units: list[UnitMoments] = []
    n_chains = len(mean)
    for layer, links in enumerate(wiring.incoming[1:], start=1):
        m_a = xp.zeros((n_chains, wiring.units[layer]))
        v_a = xp.zeros_like(m_a)
        for link in links:
            m_z, v_z = (values[:, None, link.rows] for values in sources[link.source])
            m_w, v_w = link.matrix(mean), link.matrix(variance)
            m_a += xp.matmul(m_z, m_w)[:, 0]
            v_a += (xp.matmul(m_z**2 + v_z, v_w) + xp.matmul(v_z, m_w**2))[:, 0]
        if layer == len(wiring.units) - 1:
            return NetworkMoments(sources, units, m_a, v_a)
        units.append(_unit_moments(m_a, xp.maximum(v_a, _LEAST_VARIANCE), wiring.activations[layer - 1]))
        one = xp.ones((n_chains, 1))
        sources.append(
            (
                xp.concatenate([units[-1].mean, one], axis=1),
                xp.concatenate([units[-1].variance, 0 * one], axis=1),
            )
        )
    raise AssertionError("a network has outputs")


def backward_moments(
    mean: Array, variance: Array, moments: NetworkMoments, by_mean: Array, by_variance: Array, wiring: Wiring
) -> tuple[Array, Array]:
    """Return derivatives by all means and variances, (n_chains, n_parameters) each.

    by_mean, by_variance  (n_chains, n_outputs): derivatives by the moments of the outputs

    Olobatuyi, eqs. 75-83, with eqs. 64-67 summed over destinations.
    """
    xp = array_namespace(mean)
    to_mean, to_variance = xp.zeros_like(mean), xp.zeros_like(variance)
    last = len(wiring.units) - 1
    summed = {last: (by_mean, by_variance)}
    for layer in range(last, 0, -1):
        if layer < last:
            summed[layer] = _through_units(mean, variance, moments, summed, wiring, layer)
        by_m, by_v = (values[:, None] for values in summed[layer])  # (n_chains, 1, n_units)
        for link in wiring.incoming[layer]:
            m_z, v_z = (values[:, link.rows, None] for values in moments.sources[link.source])
            m_w = link.matrix(mean)
            link.matrix(to_mean)[...] = m_z * by_m + 2 * v_z * m_w * by_v
            link.matrix(to_variance)[...] = (m_z**2 + v_z) * by_v
    return to_mean, to_variance


def _through_units(
    mean: Array,
    variance: Array,
    moments: NetworkMoments,
    summed: dict[int, tuple[Array, Array]],
    wiring: Wiring,
    layer: int,
) -> tuple[Array, Array]:
    units = moments.units[layer - 1]
    m_z = units.mean
    by_m_z, by_v_z = array_namespace(mean).zeros_like(m_z), array_namespace(mean).zeros_like(m_z)
    for link in wiring.outgoing[layer]:
        by_m, by_v = (values[:, :, None] for values in summed[link.destination])
        m_w, v_w = (link.matrix(values)[:, : link.n_units] for values in (mean, variance))
        by_m_z += (m_w @ by_m)[:, :, 0] + 2 * m_z * (v_w @ by_v)[:, :, 0]
        by_v_z += ((m_w**2 + v_w) @ by_v)[:, :, 0]
    return (
        by_m_z * units.mean_by_m + by_v_z * units.variance_by_m,
        by_m_z * units.mean_by_v + by_v_z * units.variance_by_v,
    )


def _unit_moments(m: Array, v: Array, activation: str) -> UnitMoments:
    xp = array_namespace(m)
    if activation == "identity":
        one, none = xp.ones_like(m), xp.zeros_like(m)
        return UnitMoments(m, v, one, none, none, one)
    if activation == "relu":
        return _relu(m, v)
    return _by_quadrature(m, v, activation)


def _relu(m: Array, v: Array) -> UnitMoments:
    """Return the moments of max(u, 0) in closed form; Olobatuyi, eqs. 71, 72, simplified."""
    xp = array_namespace(m)
    s = xp.sqrt(v)
    u = m / s
    below = special_functions(m).ndtr(u)
    density = xp.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)
    mean = m * below + s * density
    square = (m**2 + v) * below + m * s * density
    variance = xp.maximum(square - mean**2, _LEAST_VARIANCE)
    above = special_functions(m).ndtr(-u)
    return UnitMoments(mean, variance, below, density / (2 * s), 2 * mean * above, below - mean * density / s)


def _by_quadrature(m: Array, v: Array, activation: str) -> UnitMoments:
    """Return the moments of units with any smooth activation, by Gauss-Hermite quadrature.

    The derivatives are exact derivatives of the quadrature sums, with u = m + s z, du/dm = 1 and
    du/dv = z/(2 s). They agree with the moments for distributions of any width.
    """
    xp = array_namespace(m)
    points, weights = (xp.asarray(values) for values in np.polynomial.hermite_e.hermegauss(_POINTS))
    weights = weights / weights.sum()
    s = xp.sqrt(v)[..., None]
    values = m[..., None] + s * points
    activate(values, activation, buffers=Buffers())
    slopes = xp.ones_like(values)
    multiply_by_slope(slopes, values, activation, buffers=Buffers())
    by_v = weights * points / (2 * s)
    mean = (values * weights).sum(axis=-1)
    deviations = values - mean[..., None]
    variance = xp.maximum((deviations**2 * weights).sum(axis=-1), _LEAST_VARIANCE)
    return UnitMoments(
        mean,
        variance,
        (slopes * weights).sum(axis=-1),
        (slopes * by_v).sum(axis=-1),
        2 * (deviations * slopes * weights).sum(axis=-1),
        2 * (deviations * slopes * by_v).sum(axis=-1),
    )
