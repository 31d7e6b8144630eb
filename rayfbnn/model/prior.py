"""The hierarchical prior of Gamma precisions over Gaussian or t parameters: densities, gradients, draws."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE, PriorSpec
from rayfbnn.model.layout import ParameterLayout, PrecisionGroup, PrecisionLayout
from rayfbnn.streams import Purpose, Streams

# Shapes such as 0.0005 put noticeable mass on precisions outside the range of float64.
MAX_LOG_PRECISION = 600.0


def clipped_exp(log_precision: Array) -> Array:
    """Return the precision, with its logarithm clipped to +-600."""
    xp = array_namespace(log_precision)
    # A third of the time of `clip` for few numbers.
    return xp.exp(xp.minimum(xp.maximum(log_precision, -MAX_LOG_PRECISION), MAX_LOG_PRECISION))


def parameter_precisions(precisions: Array, layout: PrecisionLayout) -> Array:
    """Return the precision of each parameter, adjustments included, (n_chains, n_parameters)."""
    xp = array_namespace(precisions)
    governing = xp.take(precisions, xp.asarray(layout.parameter_columns), axis=1)
    for part, columns in layout.adjusted.values():
        # A bias group has one row, a weight matrix one row for each source unit.
        rows = governing[:, part].reshape(len(governing), -1, columns.stop - columns.start)
        rows *= precisions[:, None, columns]
    return governing


def noise_precisions(precisions: Array, layout: PrecisionLayout) -> Array:
    """Return the precision that governs each target, (n_chains, n_targets); (n_chains, 0) without noise."""
    xp = array_namespace(precisions)
    return xp.take(precisions, xp.asarray(layout.noise_columns), axis=1)


def energy_of_parameters(
    position: Array, precisions: Array, parameters: ParameterLayout
) -> tuple[Array, Array]:
    """Return -log prior of the parameters given the precision of each, and its gradient.

    With z = tau w**2, and alpha that of single parameters, each parameter has the energy and the gradient
        Gaussian  z/2                             tau w                              Neal (2022) eq. 35
        t         (alpha+1)/2 log(1 + z/alpha)    (alpha+1) tau w/(alpha + z)                        36
        mixture   see `_of_mixture`

    The precisions are (n_chains, n_parameters). Returns the summed energy (n_chains,) and the gradient
    (n_chains, n_parameters), float64.
    """
    xp = array_namespace(position)
    gradient = precisions * position
    z = gradient * position
    energy = 0.5 * z
    for part, alpha in parameters.parts_of_t:
        energy[:, part] = (alpha + 1) / 2 * xp.log1p(z[:, part] / alpha)
        gradient[:, part] *= (alpha + 1) / (alpha + z[:, part])
    for part, spec in parameters.parts_of_mixtures:
        energy[:, part], slopes = _of_mixture(spec, z[:, part])
        gradient[:, part] *= slopes
    return energy.sum(axis=1), gradient


def _of_mixture(spec: PriorSpec, z: Array) -> tuple[Array, Array]:
    """Return the energy of mixtures of two Gaussians, and the factor on the first component's slope tau w.

    With s the share of the first component, z = tau_1 w**2 and r = tau_2/tau_1 they are

    -log(s exp(-z/2) + (1-s) sqrt(r) exp(-r z/2)) ;    p + (1-p) r, p the first component's share given w

    Gelbaum (2019), eq. 4. Computing with logarithms keeps both finite for very narrow components.
    """
    assert spec.mixture is not None
    xp = array_namespace(z)
    share, width = spec.mixture
    ratio = (spec.width / width) ** 2
    first = math.log(share) - 0.5 * z
    second = math.log1p(-share) + 0.5 * math.log(ratio) - 0.5 * ratio * z
    total = xp.logaddexp(first, second)
    return -total, xp.exp(first - total) + ratio * xp.exp(second - total)


def log_density_of_parameters(
    position: Array, precisions: Array, parameters: ParameterLayout, layout: PrecisionLayout
) -> Array:
    """Return the normalised log density of the parameters given precisions, (n_chains,).

    Neal (2022) eqs. 16, 17.
    """
    xp = array_namespace(position)
    governing = parameter_precisions(precisions, layout)
    energy, _ = energy_of_parameters(position, governing, parameters)
    constant = sum(
        group.size * log_scale_free_normaliser(group.prior.alphas[2]) for group in parameters.groups
    )
    return constant + 0.5 * xp.log(governing).sum(axis=1) - energy


def log_scale_free_normaliser(alpha: float) -> float:
    """Return the log of the density at zero of a standard normal (alpha infinite) or t variable."""
    if math.isinf(alpha):
        return -0.5 * math.log(2 * math.pi)
    # Eq. 17 of Neal (2022) has sqrt(pi) * alpha; sqrt(pi * alpha) is correct.
    return math.lgamma((alpha + 1) / 2) - math.lgamma(alpha / 2) - 0.5 * math.log(math.pi * alpha)


def log_density_of_precisions(precisions: Array, layout: PrecisionLayout) -> Array:
    """Return the log density of free precisions (a density in tau), (n_chains,); Neal (2022) eqs. 13, 14."""
    xp = array_namespace(precisions)
    total = xp.zeros(precisions.shape[0])
    for group in layout.groups:
        common = precisions[:, group.common]
        alpha_common, alpha_unit, _ = group.prior.alphas
        if math.isfinite(alpha_common):
            total += log_gamma_density(common, alpha_common, group.mean)
        if group.prior.rectified is not None:
            v0 = group.prior.rectified  # of |z|, z ~ Normal(0, v0); Olobatuyi, eq. 18, location 0
            total += 0.5 * math.log(2 / (math.pi * v0)) - common**2 / (2 * v0)
        if group.units is not None:
            units = precisions[:, group.units]
            total += log_gamma_density(units, alpha_unit, common[:, None]).sum(axis=1)
    for adjustments in layout.adjustments:
        density = log_gamma_density(precisions[:, adjustments.columns], adjustments.alpha, 1.0)
        total += density.sum(axis=1)
    return total


def log_gamma_density(precision: Array, alpha: float, mean: Array | float) -> Array:
    """Return the log density at `precision` of a Gamma variable of shape alpha/2 and the given mean."""
    xp = array_namespace(precision)
    a = alpha / 2
    ratio = precision / mean
    return a * math.log(a) - math.lgamma(a) + a * xp.log(ratio) - a * ratio - xp.log(precision)


def draw_precisions(streams: Streams, layout: PrecisionLayout, *, n_cases_bias: Array | float = 0) -> Array:
    """Draw precisions from the prior, (n_chains, n_precisions) float64, log precisions clipped to +-600.

    With n_cases_bias = n, the noise precisions come from the prior times prod_j tau_j**(n/2). With m targets,
    both levels are still Gamma, Neal (2022) eqs. 69, 70:

        tau   ~ Gamma((alpha_0 + n m)/2, rate alpha_0/(2 omega))
        tau_j ~ Gamma((alpha_1 + n)/2, rate alpha_1/(2 tau))

    If n_cases_bias is (n_chains or 1, n_targets), n_j replaces n, and the sum of n_j replaces n m. The bias
    makes rejection sampling possible with a variable noise level.
    """
    xp = array_namespace(streams.chains)
    log_precisions = xp.empty((streams.n_chains, layout.n_precisions))
    for number, group in enumerate(layout.groups):
        n = n_cases_bias if group.name == NOISE else 0
        _draw_group(streams, group, log_precisions, extra=n, index=2 * number)
    for number, adjustments in enumerate(layout.adjustments, start=len(layout.groups)):
        shape, alpha = (adjustments.n_units,), adjustments.alpha
        log_gamma = streams.log_gamma(alpha / 2, Purpose.INITIAL_PRECISION, shape, index=2 * number)
        clipped = xp.clip(log_gamma - math.log(alpha / 2), -MAX_LOG_PRECISION, MAX_LOG_PRECISION)
        log_precisions[:, adjustments.columns] = clipped
    precisions = xp.exp(log_precisions)
    for group in layout.groups:
        if math.isinf(group.prior.alphas[0]) and group.prior.rectified is None:
            precisions[:, group.common] = group.mean  # exactly, because nothing updates it later
    return precisions


def _draw_group(
    streams: Streams, group: PrecisionGroup, log_precisions: Array, *, extra: Array | float, index: int
) -> None:
    """Draw both levels of one group into its columns; `extra` is added to the alphas in the shapes."""
    xp = array_namespace(log_precisions)
    alpha_common, alpha_unit, _ = group.prior.alphas
    purpose = Purpose.INITIAL_PRECISION
    log_common = xp.full(streams.n_chains, math.log(group.mean))
    if math.isfinite(alpha_common):
        in_all = extra * group.n_units if isinstance(extra, int | float) else extra.sum(axis=1)
        shape = (alpha_common + in_all) / 2
        log_common += streams.log_gamma(shape, purpose, index=index) - math.log(alpha_common / 2)
    elif group.prior.rectified is not None:
        # z**2/v0 is chi-squared with one degree of freedom: twice a Gamma(1/2) variable.
        log_square = streams.log_gamma(0.5, purpose, index=index) + math.log(2 * group.prior.rectified)
        log_common = log_square / 2
    log_common = xp.clip(log_common, -MAX_LOG_PRECISION, MAX_LOG_PRECISION)
    log_precisions[:, group.common] = log_common
    if group.units is not None:
        log_unit = streams.log_gamma((alpha_unit + extra) / 2, purpose, (group.n_units,), index=index + 1)
        log_unit += log_common[:, None] - math.log(alpha_unit / 2)
        log_precisions[:, group.units] = xp.clip(log_unit, -MAX_LOG_PRECISION, MAX_LOG_PRECISION)


def draw_parameters(
    streams: Streams, precisions: Array, parameters: ParameterLayout, layout: PrecisionLayout
) -> Array:
    """Draw parameters from the prior given the precisions, (n_chains, n_parameters) float64."""
    xp = array_namespace(precisions)
    log_precisions = xp.log(parameter_precisions(precisions, layout))
    position = xp.empty((streams.n_chains, parameters.n_parameters))
    for number, group in enumerate(parameters.groups):
        part = parameters.slices[group.name]
        alpha = group.prior.alphas[2]
        log_precision = log_precisions[:, part]
        if math.isfinite(alpha):
            # The log of a Gamma variable of shape alpha/2 and mean 1 turns normal variables into t.
            purpose, index = Purpose.INITIAL_PARAMETER, 2 * number + 1
            log_gamma = streams.log_gamma(alpha / 2, purpose, (group.size,), index=index)
            log_precision = log_precision + (log_gamma - math.log(alpha / 2))
        if group.prior.mixture is not None:
            share, width = group.prior.mixture
            uniform = streams.uniform(Purpose.INITIAL_PARAMETER, (group.size,), index=2 * number + 1)
            log_ratio = 2 * math.log(group.prior.width / width)
            log_precision = log_precision + xp.where(uniform < share, 0.0, log_ratio)
        z = streams.normal(Purpose.INITIAL_PARAMETER, (group.size,), index=2 * number)
        position[:, part] = z * xp.exp(-0.5 * log_precision)
    return position
