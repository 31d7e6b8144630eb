"""Best distributions of the precisions given the distribution of the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.errors import at_most_ten
from rayfbnn.model.approximation.log_concave import PrecisionMoments, precision_moments
from rayfbnn.model.architecture import DISPERSION, NOISE, NetworkSpec
from rayfbnn.model.layout import ParameterLayout, PrecisionGroup, PrecisionLayout

_MOST_ROUNDS = 200  # rounds of updates, alternating between the two levels of a group
_TOLERANCE = 1e-10


@dataclass(frozen=True)
class ExpectedPrecisions:
    """The distributions q(tau) of all precisions, given the expected squares of the values they govern.

    mean   (n_chains, n_precisions)  E tau; fixed precisions keep their values
    shape, rate  (n_chains, n_precisions)  parameters of each Gamma distribution. NaN if q(tau) is not a
                 Gamma distribution: for fixed precisions, for rectified Gaussian priors, and for common
                 precisions above the precisions of units
    bound  (n_chains,)  the change of a bound on log p(data) at the precisions E tau when the precisions
           become variables: the sum of (E log tau - log E tau)/2 over the Gaussian values, minus the
           divergences from q(tau) to the prior
    """

    mean: Array
    shape: Array
    rate: Array
    bound: Array


def why_not_expected(network: NetworkSpec, layout: PrecisionLayout) -> str | None:
    """Return why precisions have no such distributions here and how to change that, or None if they do."""
    for group in layout.groups:
        alpha_common, alpha_unit, alpha_value = group.prior.alphas
        if group.name == DISPERSION and not group.is_fixed:
            return 'a dispersion that varies is not covered; fix it, as in dispersion = "0.5", or use "none"'
        if math.isfinite(alpha_value) and math.isfinite(min(alpha_common, alpha_unit)):
            return (
                f"{group.name} has t values with precisions that vary;"
                " fix its other levels, or leave out its last alpha"
            )
    if network.adjustments:
        names = ", ".join(at_most_ten(network.adjustments))
        return f"adjustments ({names}) are not covered; leave them out"
    return None


def expected_precisions(
    precisions: Array,
    squares: Array,
    residual_squares: Array | None,
    counts: Array | float,
    *,
    parameters: ParameterLayout,
    layout: PrecisionLayout,
) -> ExpectedPrecisions:
    """Return the best distributions of the precisions given expected squares of parameters and residuals.

    In a group with one level, q(tau) = Gamma(shape (alpha + k)/2, rate (alpha/omega + S)/2), with k values
    and S the expected sum of squares. In a group with units, the prior of a unit's precision has the rate
    a1/(2 tau), and therefore E[1/tau] enters instead of 1/E[tau]:

        q(tau_i) = Gamma((a1 + k_i)/2, rate (a1 E[1/tau] + S_i)/2)
        q(tau)   ~ tau^((a0 - n a1)/2 - 1) exp(-tau a0/(2 omega) - a1 sum E tau_i/(2 tau))

    Parameters
    ----------
    precisions : (n_chains, n_precisions)   fixed precisions are kept
    squares : (n_chains, n_parameters)   expected squares of the parameters
    residual_squares : (n_chains, n_targets)   expected sums of squared residuals; None without noise
    counts : number of observed targets, a number or (n_chains or 1, n_targets)
    """
    xp = array_namespace(precisions)
    mean = precisions.astype(xp.float64).copy()
    shape, rate = xp.full_like(mean, xp.nan), xp.full_like(mean, xp.nan)
    bound = xp.zeros(len(mean))
    for group in layout.groups:
        if group.name == DISPERSION:
            continue  # it is fixed
        if group.name == NOISE:
            assert residual_squares is not None
            sums, sizes = residual_squares, xp.zeros_like(residual_squares) + counts
        else:
            rows = squares[:, parameters.slices[group.name]].reshape(len(mean), group.n_units, -1)
            sums, sizes = rows.sum(axis=2), xp.full((len(mean), group.n_units), float(rows.shape[2]))
        update = _one_level if group.units is None else _two_levels
        bound += update(group, sums, sizes, mean, shape, rate)
    return ExpectedPrecisions(mean, shape, rate, bound)


def _one_level(
    group: PrecisionGroup, sums: Array, sizes: Array, mean: Array, shape: Array, rate: Array
) -> Array | float:
    """Fill in the column of a common precision, and return the change of the bound."""
    alpha, column = group.prior.alphas[0], group.common
    if group.prior.rectified is not None:
        return _rectified(group.prior.rectified, sums.sum(axis=1), sizes.sum(axis=1), mean, column)
    if math.isinf(alpha):
        return 0.0
    n = sizes.sum(axis=1)
    a, b = (alpha + n) / 2, (alpha / group.mean + sums.sum(axis=1)) / 2
    shape[:, column], rate[:, column], mean[:, column] = a, b, a / b
    return n / 2 * _log_gap(a) - _divergence(a, b, alpha / 2, alpha / (2 * group.mean))


def _rectified(v0: float, sums: Array, sizes: Array, mean: Array, column: int) -> Array:
    """Fill in the column of a precision with a rectified Gaussian prior, and return the change of the bound.

    q(tau) ~ tau^(k/2) exp(-S tau/2 - tau^2/(2 v0)),   the corrected form of Olobatuyi, eqs. 47-53
    """
    xp = array_namespace(sums)
    moments = precision_moments(sizes / 2 + 1, rate=sums / 2, square_rate=1 / (2 * v0))
    mean[:, column] = moments.mean
    exact = moments.log_normaliser + 0.5 * math.log(2 / (math.pi * v0))
    return exact - sizes / 2 * xp.log(moments.mean) + sums * moments.mean / 2


def _two_levels(
    group: PrecisionGroup, sums: Array, sizes: Array, mean: Array, shape: Array, rate: Array
) -> Array:
    """Fill in the columns of a group with units, and return the change of the bound."""
    xp, special = array_namespace(sums), special_functions(sums)
    alpha_0, a1, _ = group.prior.alphas
    n_units = group.n_units
    common = _fixed_moments(xp.full(len(sums), group.mean))
    for _ in range(_MOST_ROUNDS):
        a, b = (a1 + sizes) / 2, (a1 * common.inverse_mean[:, None] + sums) / 2
        if math.isinf(alpha_0):
            break
        before = common.inverse_mean
        common = precision_moments(
            xp.full(len(sums), (alpha_0 - n_units * a1) / 2),
            rate=alpha_0 / (2 * group.mean),
            inverse_rate=a1 * (a / b).sum(axis=1) / 2,
        )
        if float(xp.abs(common.inverse_mean / before - 1).max()) < _TOLERANCE:
            break
    shape[:, group.units], rate[:, group.units], mean[:, group.units] = a, b, a / b
    mean[:, group.common] = common.mean
    log_units = special.digamma(a) - xp.log(b)
    prior = (
        a1 / 2 * (math.log(a1 / 2) - common.log_mean[:, None])
        - math.lgamma(a1 / 2)
        + (a1 / 2 - 1) * log_units
        - a1 / 2 * (a / b) * common.inverse_mean[:, None]
    )
    entropy = a - xp.log(b) + special.gammaln(a) + (1 - a) * special.digamma(a)
    bound = (sizes / 2 * _log_gap(a) + prior + entropy).sum(axis=1)
    return bound if math.isinf(alpha_0) else bound + _of_common(group, a, b, common)


def _of_common(group: PrecisionGroup, a: Array, b: Array, common: PrecisionMoments) -> Array:
    """Return E log prior plus entropy of the common precision above the precisions of units."""
    alpha, a1, _ = group.prior.alphas
    exponent = (alpha - group.n_units * a1) / 2
    rate, inverse_rate = alpha / (2 * group.mean), a1 * (a / b).sum(axis=1) / 2
    expected = exponent * common.log_mean - rate * common.mean - inverse_rate * common.inverse_mean
    half = alpha / 2
    log_prior = half * math.log(rate) - math.lgamma(half) + half * common.log_mean - rate * common.mean
    # Both densities are densities of log tau.
    return log_prior + common.log_normaliser - expected


def _fixed_moments(value: Array) -> PrecisionMoments:
    xp = array_namespace(value)
    return PrecisionMoments(value, xp.log(value), 1 / value, xp.zeros_like(value), value**2)


def _log_gap(a: Array) -> Array:
    """Return E log tau - log E tau of Gamma variables of shape a."""
    return special_functions(a).digamma(a) - array_namespace(a).log(a)


def _divergence(a: Array, b: Array, prior_shape: float, prior_rate: float) -> Array:
    """Return the divergence of Gamma(a, rate b) from the prior's Gamma distribution."""
    xp, special = array_namespace(a), special_functions(a)
    return (
        (a - prior_shape) * special.digamma(a)
        - special.gammaln(a)
        + math.lgamma(prior_shape)
        + prior_shape * (xp.log(b) - math.log(prior_rate))
        + a * (prior_rate - b) / b
    )
