"""Counts that vary more than Poisson's: their rates are multiplied by Gamma variables.

The shapes of these variables are updated by slice sampling of their logarithms given the outputs. The Gamma
variables of the cases are integrated out, so the density of a shape r is that of negative binomial counts
times its prior. It has no standard form, and need not be log-concave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.errors import SamplingError
from rayfbnn.model.architecture import DISPERSION, ModelSpec
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.likelihood.count import CountTargets, draw_counts
from rayfbnn.model.likelihood.data_model import DataModel, Misfit
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates import gibbs
from rayfbnn.model.updates.metropolis import log_prior
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
    in_words = "count with dispersion"
    compiled_name = "dispersed count"

    @classmethod
    def from_spec(cls, model: ModelSpec) -> DispersedCountTargets:
        assert model.dispersion is not None
        return cls(model.dispersion.width)

    def bounded(self, noise: Array) -> Array:
        return shapes_of(noise)

    def compiled_shapes(self, sigmas: Array) -> Array:
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
        cdf, mass = distribution_sums(outputs, shapes_of(noise_sigmas**-2.0), values[:, :, None])
        return np.stack([cdf, mass, np.full_like(cdf, np.nan)])

    def mass(self, outputs: Array, noise_sigmas: Array, counts: Array) -> Array:
        return mass_sums(outputs, shapes_of(noise_sigmas**-2.0), counts[:, :, None])

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
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


_MAX_LOG_MEAN = math.log(1e300)
_RAISED_BELOW, _FROM_NORMAL = 8.0, 200.0  # FROM_STIRLING and FROM_NORMAL of kernels/shared/dispersed.hpp
_MOST_SUMMED = 64  # counts up to here are added up one by one
_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


def distribution_sums(log_means: Array, shapes: Array, counts: Array) -> tuple[Array, Array]:
    """Return the sums over draws of the probability of at most a count, and of the count itself, (...) each.

    Small counts are added up one by one, which takes a tenth of the time of incomplete beta functions.

    log_means (..., n_draws); shapes r broadcast to them; counts k (..., 1)
    """
    v = _finite(log_means)
    k, n_draws = counts.reshape(-1), v.shape[-1]
    v, r = (np.broadcast_to(part, log_means.shape).reshape(-1, n_draws) for part in (v, shapes))
    cdf, mass = np.empty(len(k)), np.empty(len(k))
    small = np.flatnonzero(k <= _MOST_SUMMED)
    small = small[np.argsort(-k[small], kind="stable")]
    cdf[small], mass[small] = _one_by_one(v[small], r[small], k[small])
    large = k > _MOST_SUMMED
    if large.any():
        cdf[large] = _at_most(v[large], r[large], k[large, None]).sum(axis=1)
        mass[large] = np.exp(log_mass(v[large], r[large], k[large, None])).sum(axis=1)
    shape = counts.shape[:-1]
    return cdf.reshape(shape), mass.reshape(shape)


def _one_by_one(v: Array, r: Array, k: Array) -> tuple[Array, Array]:
    """Return the two sums over draws for counts in descending order, (n,).

    P(0) = (r/(r + mu))**r  and  P(j) = P(j - 1) (r + j - 1)/j mu/(r + mu).  v and r are (n, n_draws)
    """
    import scipy.special

    share = scipy.special.expit(v - np.log(r))  # mu/(r + mu)
    with np.errstate(under="ignore"):
        mass = np.exp(-r * np.logaddexp(0.0, v - np.log(r)))
        cdf, times_shape = mass.copy(), r * share
        for j in range(1, int(k.max(initial=0)) + 1):
            n = int(np.searchsorted(-k, -j, side="right"))  # rows of counts from j on
            mass[:n] *= (times_shape[:n] + (j - 1) * share[:n]) / j
            cdf[:n] += mass[:n]
        return cdf.sum(axis=1), mass.sum(axis=1)


def _at_most(v: Array, shapes: Array, k: Array) -> Array:
    """Return P(Y <= k) = I(r/(r + mu); r, k + 1), the regularised incomplete beta function."""
    import scipy.special

    v, shapes, k = np.broadcast_arrays(v, shapes, k)
    odds = v - np.log(shapes)  # log(mu/r)
    # The smaller of the shares r/(r + mu) and mu/(r + mu) is free of rounding errors of 1 minus the other.
    smaller = scipy.special.expit(-np.abs(odds))
    is_of_shape = odds > 0
    is_of_mean = ~is_of_shape
    cdf = np.empty_like(odds)
    cdf[is_of_shape] = scipy.special.betainc(shapes[is_of_shape], k[is_of_shape] + 1, smaller[is_of_shape])
    cdf[is_of_mean] = scipy.special.betaincc(k[is_of_mean] + 1, shapes[is_of_mean], smaller[is_of_mean])
    return cdf


def mass_sums(log_means: Array, shapes: Array, counts: Array) -> Array:
    """Return the sums over draws of the probabilities of counts; arguments as in `distribution_sums`."""
    if counts.max(initial=0) <= _MOST_SUMMED:
        return distribution_sums(log_means, shapes, counts)[1]
    return np.asarray(np.exp(log_mass(log_means, shapes, counts)).sum(axis=-1))


def shape_constants(shapes: Array) -> Array:
    """Return what compiled code needs of each shape r, (..., 4).

    They are r, its logarithm, sqrt(r) exp(-s(r)) with the remainder s of Stirling's formula, and the number
    of terms of a continued fraction (kernels/shared/dispersed.hpp). With these the error of distribution
    functions is below 1e-9.
    """
    of_remainder = np.exp(0.5 * np.log(shapes) - _remainder(shapes))
    raised = np.where(shapes < _RAISED_BELOW, shapes + 8, np.minimum(shapes, _FROM_NORMAL))
    n_terms = np.ceil(4 + 2.5 * np.sqrt(raised))
    return np.stack([shapes, np.log(shapes), of_remainder, n_terms], axis=-1)


def log_mass(log_means: Array, shapes: Array, counts: Array) -> Array:
    """Return the log probability of counts k given means mu and shapes r, accurate even for large counts.

    The arguments broadcast to each other.

    With N = r + k, a = log(N mu/((r + mu) k)), b = log(N/(r + mu)) and the remainder s of Stirling's formula

        log P(k) = k a + r b + s(N) - s(r) - s(k) + log(r/(2 pi N k))/2

    k a + r b is written as k (a - expm1(a)) + r (b - expm1(b)), because k expm1(a) + r expm1(b) = 0: both
    terms are then at most 0 and nothing cancels. Loader (2000), "Fast and accurate computation of binomial
    probabilities".
    """
    v = _finite(log_means)
    k = np.maximum(counts, 1.0)
    total = shapes + k
    excess = np.logaddexp(0.0, v - np.log(shapes))  # log(1 + mu/r)
    b = np.log1p(k / shapes) - excess
    a = b + v - np.log(k)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        at_mean = _remainder(total) - _remainder(shapes) - _remainder(k) - _HALF_LOG_2_PI
        at_mean = at_mean + 0.5 * (np.log(shapes / total) - np.log(k))
        away = k * (a - np.expm1(a)) + shapes * (b - np.expm1(b))
    return np.asarray(np.where(counts > 0, at_mean + away, -shapes * excess))


def _finite(log_means: Array) -> Array:
    return np.minimum(log_means.astype(np.float64), _MAX_LOG_MEAN)


def _remainder(z: Array) -> Array:
    """Return log Gamma(z + 1) - (z + 1/2) log z + z - log(2 pi)/2."""
    import scipy.special

    small = np.minimum(z, _FROM_SERIES)
    exact = scipy.special.gammaln(small + 1) - (small + 0.5) * np.log(small) + small - _HALF_LOG_2_PI
    large = np.maximum(z, _FROM_SERIES)
    return np.where(z < _FROM_SERIES, exact, _stirling(large))


# The width of the first interval of log r. With some hundred counts a conditional density has a standard
# deviation of 0.1 to 0.3; without information on r it is as wide as the prior, 2 to 5.
_WIDTH = 1.0
_MOST_WIDTHS = 40
# Points are drawn in 64 rounds of 8. Over all of them an interval shrinks by a factor of about exp(-150).
_ROUNDS, _POINTS = 64, 8

Density = Callable[[Array], Array]
"""Returns the log density of each target's counts (n_chains, n_targets) given log shapes of this size."""


def update_dispersion(
    density: Density,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    is_reversed: bool = False,
    level: gibbs.Level | None = None,
) -> Array:
    """Update the shapes that govern counts, then the shape above them, if targets have separate ones.

    Returns all precisions (n_chains, n_precisions). The upper shape is drawn from its conditional density, as
    by `gibbs.update_groups`. Each lower one is updated by slice sampling.

    density      the log density of the counts at the current outputs
    is_reversed  whether to take the levels in the opposite order
    level        restricts the update to the shapes of targets ("lower"), or to the one above them ("upper")
    """
    precisions = precisions.copy()
    for name in ("upper", "lower") if is_reversed else ("lower", "upper"):
        if level not in (None, name):
            continue
        if name == "lower":
            _update_lower(density, group, precisions, streams)
        elif group.units is not None:
            gibbs.update_level(0, group, None, precisions, streams, is_common=True)
    return precisions


def _update_lower(density: Density, group: PrecisionGroup, precisions: Array, streams: Streams) -> None:
    alpha_common, alpha_unit, _ = group.prior.alphas
    if group.units is not None:
        alpha, mean, columns = alpha_unit, precisions[:, group.common, None], group.units
        of_targets = density
    elif math.isfinite(alpha_common):
        alpha, mean, columns = alpha_common, group.mean, group.common_column
        of_targets = _of_all(density, group.n_units)
    else:
        return
    log_shapes = sliced(
        lambda x: log_prior(x, alpha, mean) + of_targets(x),
        array_namespace(precisions).log(precisions[:, columns]),
        streams,
    )
    precisions[:, columns] = array_namespace(precisions).exp(log_shapes)


def _of_all(density: Density, n_targets: int) -> Density:
    """Return the density of the counts of all targets together, given one shape, (n_chains, 1) each."""

    def together(x: Array) -> Array:
        return density(array_namespace(x).repeat(x, n_targets, axis=1)).sum(axis=1, keepdims=True)

    return together


def sliced(log_density: Callable[[Array], Array], x: Array, streams: Streams) -> Array:
    """Return new values of x (n_chains, n), each from a slice of its own density; see mcmc slice-1.

    The columns are independent, and log_density returns the log density of each. An interval of width 1 is
    placed at random about x and stepped out until both ends are outside the slice, but to at most 40 widths.
    Points are drawn in it until one is inside the slice; others shorten it. Neal (2003), "Slice sampling",
    figs. 3 and 5. Values beyond the limits of log precisions have no density.
    """
    xp = array_namespace(x)
    n = x.shape[1]
    place = streams.uniform(Purpose.SLICE_INTERVAL, (n, 3))  # one call takes longer than an evaluation

    def bounded(x: Array) -> Array:
        with np.errstate(all="ignore"):
            value = log_density(x)
        return xp.where((abs(x) <= MAX_LOG_PRECISION) & ~xp.isnan(value), value, -xp.inf)

    level = bounded(x) + xp.log(place[:, :, 2])
    if not bool(xp.isfinite(level).all()):
        raise _not_finite(streams)
    left = x - _WIDTH * place[:, :, 0]
    n_left = xp.floor(_MOST_WIDTHS * place[:, :, 1])
    low = _stepped_out(bounded, level, left, -_WIDTH, n_left)
    high = _stepped_out(bounded, level, left + _WIDTH, _WIDTH, _MOST_WIDTHS - 1 - n_left)
    pending, result = xp.ones(x.shape, dtype=bool), x
    for attempt in range(_ROUNDS):
        shares = streams.uniform(Purpose.SLICE_POINT, (n, _POINTS), attempt=attempt)
        for number in range(_POINTS):
            point = low + shares[:, :, number] * (high - low)
            inside = bounded(point) >= level
            result = xp.where(pending & inside, point, result)
            pending &= ~inside
            if not bool(pending.any()):
                return result
            low = xp.where(pending & (point < x), point, low)
            high = xp.where(pending & (point >= x), point, high)
    raise _not_finite(streams)


def _stepped_out(
    log_density: Callable[[Array], Array], level: Array, edge: Array, step: float, n_steps: Array
) -> Array:
    """Move the edges by `step` until they are outside the slice, but each at most n_steps times."""
    moving = n_steps > 0
    while bool(moving.any()):
        moving &= log_density(edge) >= level
        edge = edge + step * moving
        n_steps = n_steps - moving
        moving &= n_steps > 0
    return edge


def _not_finite(streams: Streams) -> SamplingError:
    return SamplingError(
        f"iteration {streams.iteration}, operation {streams.operation}: no dispersion can be drawn, because"
        " the density of the counts is not finite; use less vague priors, start from fixed sigmas"
        " (initial.sigmas), use dtype float64, or look for extreme values in the data"
    )
