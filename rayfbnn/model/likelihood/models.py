"""The data models: log densities of targets given outputs, their gradients and bounds, and draws.

Real targets with Gaussian or t noise, binary and class targets here, the other models in files of their own.

All in float64, whatever the networks' precision: an energy near 1e5 in float32 is good to 0.01 only, and
decisions turn on differences of order one.
"""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.layout import PrecisionLayout
from rayfbnn.model.likelihood import count, heteroscedastic, survival
from rayfbnn.streams import Purpose, Streams


def target_rows(targets: Array, model: ModelSpec) -> Array:
    """Targets (..., n_cases, n_targets) in the outputs' layout, (..., n_outputs, n_cases) float64.

    A class label becomes a row of zeros and a one, counts get a second row each (`count.rows`), survival
    times become cells (`survival.rows`). Missing targets (NaN) become zeros, which `observed_weights` tells
    from real ones; those of survival become cells without time at risk.
    """
    xp = array_namespace(targets)
    rows = targets.swapaxes(-1, -2)
    if model.kind == "survival":
        return survival.rows(targets.astype(xp.float64), model)
    if observed_weights(targets) is not None:
        rows = xp.where(xp.isnan(rows), 0.0, rows)
    if model.kind == "class":
        assert model.classes is not None
        rows = rows == xp.arange(model.classes)[:, None]
    if model.kind == "count":
        rows = count.rows(rows.astype(xp.float64))
    return xp.ascontiguousarray(rows, dtype=xp.float64)


def observed_weights(targets: Array) -> Array | None:
    """1 where a target (..., n_cases, n_targets) was observed, 0 where it is missing (NaN).

    (..., n_targets, n_cases) float64, or None if all were observed.
    """
    xp = array_namespace(targets)
    if targets.dtype.kind != "f":
        return None
    is_missing = xp.isnan(targets)
    if not bool(is_missing.any()):
        return None
    return xp.ascontiguousarray(~is_missing.swapaxes(-1, -2), dtype=xp.float64)


def noise_precision(precisions: Array, layout: PrecisionLayout) -> Array:
    """The precision that governs each target, (n_chains, n_targets); (n_chains, 0) without noise."""
    xp = array_namespace(precisions)
    return xp.take(precisions, xp.asarray(layout.noise_columns), axis=1)


def typical_curvature(targets: Array, model: ModelSpec) -> Array | None:
    """A guess at -d2/dv2 of the log density of one case, (n_chains or 1, n_outputs), from the targets alone.

    None for the models whose largest one is known, or follows from the noise precision: see stepsize.py.
    """
    if model.kind == "count":
        curvature = count.typical_curvature(targets)
    elif model.kind == "heteroscedastic":
        curvature = heteroscedastic.typical_curvature(targets)
    else:
        return None
    return curvature if curvature.ndim == 2 else curvature[None]


def log_bound(rows: Array, model: ModelSpec, weights: Array | None) -> Array | float:
    """The largest that the sum of all terms can be whatever the outputs, (n_chains or 1,); 0 if so."""
    if model.kind == "count":
        bounds = count.log_bound(rows)
    elif model.kind == "survival":
        bounds = survival.log_bound(rows)
    elif model.kind == "heteroscedastic":
        bounds = heteroscedastic.log_bound(rows, model.noise_floor)
    else:
        return 0.0
    if weights is not None:
        bounds = bounds * weights
    return bounds.sum(axis=(-2, -1)).reshape(-1)


def terms_and_gradient(
    outputs: Array, rows: Array, noise: Array, model: ModelSpec, *, weights: Array | None = None
) -> tuple[Array, Array]:
    """Terms of the log likelihood without normalisers, and d log likelihood / d outputs.

    Never positive for real, binary and class targets; for the others see `log_bound`.

    Real targets, z = tau (y - v)**2, alpha that of single cases:
        Gaussian  -z/2                               tau (y - v)                  Neal (2022) eqs. 8, 37
        t         -(alpha+1)/2 log(1 + z/alpha)      (alpha+1) tau (y-v)/(alpha+z)              10, 38
    (the signs of 37 and 38 as printed are wrong.) Binary and class targets: log P(y), no normaliser,
    eqs. 11, 12, 39, 40.

    Parameters
    ----------
    outputs : (n_chains, n_outputs, n_cases)
    rows    : (n_outputs, n_cases) or (n_chains, n_outputs, n_cases)   from target_rows
    noise   : (n_chains, n_targets)                                    from noise_precision
    weights : (..., n_targets or 1, n_cases)   factors on single terms, 0 for those that do not count

    Returns
    -------
    terms    (n_chains, n_targets, n_cases) float64
    gradient (n_chains, n_outputs, n_cases) float64
    """
    terms, gradient = _terms_and_gradient(outputs, rows, noise, model)
    if weights is not None:
        terms *= weights
        # A target has one output, or several one after the other, n_targets apart.
        by_target = gradient.reshape(terms.shape[0], -1, *terms.shape[1:])
        by_target *= weights[..., None, :, :]
    return terms, gradient


def _terms_and_gradient(outputs: Array, rows: Array, noise: Array, model: ModelSpec) -> tuple[Array, Array]:
    xp = array_namespace(outputs)
    if model.kind == "real":
        assert model.noise is not None
        residuals = rows - outputs
        gradient = noise[:, :, None] * residuals
        z = gradient * residuals
        alpha = model.noise.alphas[2]
        if math.isinf(alpha):
            z *= -0.5
            return z, gradient
        gradient *= (alpha + 1) / (alpha + z)
        return -(alpha + 1) / 2 * xp.log1p(z / alpha), gradient
    v = outputs.astype(xp.float64)
    if model.kind == "count":
        return count.terms_and_gradient(v, rows)
    if model.kind == "survival":
        return survival.terms_and_gradient(v, rows)
    if model.kind == "heteroscedastic":
        return heteroscedastic.terms_and_gradient(v, rows, model.noise_floor)
    if model.kind == "binary":
        log_one = -xp.logaddexp(0.0, -v)  # log P(y = 1)
        return xp.where(rows > 0.5, log_one, log_one - v), rows - xp.exp(log_one)
    log_probability = v - v.max(axis=1, keepdims=True)
    log_probability -= xp.log(xp.exp(log_probability).sum(axis=1, keepdims=True))
    # where, not a product: 0 * -inf must not make a hopeless class spoil the others
    terms = xp.where(rows > 0.5, log_probability, 0.0).sum(axis=1, keepdims=True)
    return terms, rows - xp.exp(log_probability)


def log_normalisers(noise: Array, model: ModelSpec) -> Array:
    """What the term of one target leaves out of its log density; Neal (2022) eqs. 8, 10.

    (n_chains, n_targets); (n_chains, 1) of zeros where nothing is left out.
    """
    xp = array_namespace(noise)
    if model.kind != "real":
        return xp.zeros((noise.shape[0], 1))
    assert model.noise is not None
    return 0.5 * xp.log(noise) + log_scale_free_normaliser(model.noise.alphas[2])


def total_log_normaliser(noise: Array, model: ModelSpec, counts: Array | int) -> Array:
    """What the terms of many cases leave out of their log density, (n_chains,).

    counts  of cases, a number or (n_chains,), or of observed targets, (n_chains or 1, n_targets)
    """
    each = log_normalisers(noise, model)
    if isinstance(counts, int) or counts.ndim < 2:
        return counts * each.sum(axis=1)
    return (counts * each).sum(axis=1)


def log_scale_free_normaliser(alpha: float) -> float:
    """Log of the density at zero of a standard normal (alpha infinite) or t variable."""
    if math.isinf(alpha):
        return -0.5 * math.log(2 * math.pi)
    # sqrt(pi * alpha), not sqrt(pi) * alpha as eq. 17 of Neal (2022) has it.
    return math.lgamma((alpha + 1) / 2) - math.lgamma(alpha / 2) - 0.5 * math.log(math.pi * alpha)


def log_density(
    outputs: Array, targets: Array, precisions: Array, *, model: ModelSpec, layout: PrecisionLayout
) -> Array:
    """Log density (log probability) of each case's observed targets, jointly, (n_chains, n_cases).

    outputs (n_chains, n_cases, n_outputs), or for survival the log hazards (n_chains, n_cases, n_pieces);
    targets (n_cases, n_targets), or with a leading chain axis;
    precisions (n_chains, n_precisions)
    """
    noise = noise_precision(precisions, layout)
    rows, weights = target_rows(targets, model), observed_weights(targets)
    if model.kind == "survival":
        cells = outputs.reshape(len(outputs), 1, -1)
        terms, _ = terms_and_gradient(cells, rows, noise, model)
        return terms.reshape(outputs.shape).sum(axis=2)
    terms, _ = terms_and_gradient(outputs.swapaxes(1, 2), rows, noise, model, weights=weights)
    if weights is None:
        return terms.sum(axis=1) + log_normalisers(noise, model).sum(axis=1)[:, None]
    return (terms + weights * log_normalisers(noise, model)[:, :, None]).sum(axis=1)


def draw_targets(outputs: Array, noise: Array, model: ModelSpec, streams: Streams) -> Array:
    """Targets given outputs (n_chains, n_outputs, n_cases), (n_chains, n_targets, n_cases) float64.

    For survival the outputs are those of every cell (n_chains, 1, n_cases * n_pieces).
    """
    xp = array_namespace(outputs)
    v = outputs.astype(xp.float64)
    n_cases = outputs.shape[2]
    if model.kind == "real":
        assert model.noise is not None
        shape = v.shape[1:]
        log_precision = xp.broadcast_to(xp.log(noise)[:, :, None], v.shape)
        alpha = model.noise.alphas[2]
        if math.isfinite(alpha):
            mixing = streams.log_gamma(alpha / 2, Purpose.TARGET_VALUE, shape, index=1)
            log_precision = log_precision + mixing - math.log(alpha / 2)
        return v + streams.normal(Purpose.TARGET_VALUE, shape) * xp.exp(-0.5 * log_precision)
    if model.kind == "count":
        return count.draw(v, streams)
    if model.kind == "survival":
        return survival.draw(v, model, streams)
    if model.kind == "heteroscedastic":
        return heteroscedastic.draw(v, model.noise_floor, streams)
    if model.kind == "binary":
        uniform = streams.uniform(Purpose.TARGET_VALUE, v.shape[1:])
        return (uniform < xp.exp(-xp.logaddexp(0.0, -v))).astype(xp.float64)
    probability = xp.exp(v - v.max(axis=1, keepdims=True))
    cumulative = probability.cumsum(axis=1)
    uniform = streams.uniform(Purpose.TARGET_VALUE, (1, n_cases))
    return (uniform * cumulative[:, -1:] > cumulative).sum(axis=1, keepdims=True).astype(xp.float64)
