"""Precisions that maximise the evidence of a Gaussian approximation, and parts of the log evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.approximation.log_concave import precision_moments
from rayfbnn.model.architecture import DISPERSION, NOISE, NetworkSpec
from rayfbnn.model.layout import ParameterLayout, PrecisionGroup, PrecisionLayout
from rayfbnn.model.prior import log_gamma_density

_ODD = ("tanh", "sin", "erf", "identity")


@dataclass(frozen=True)
class Reestimated:
    """Precisions after an update, and the term that integrating over them adds to the log evidence.

    precisions  (n_chains, n_precisions)
    log_width   (n_chains,): log prior density of the log precisions plus the log width of the peak, at the
                precisions before the update
    """

    precisions: Array
    log_width: Array


def reestimated(
    position: Array,
    precisions: Array,
    traces: Array,
    residual_squares: Array | None,
    determined: Array,
    counts: Array | float,
    *,
    parameters: ParameterLayout,
    layout: PrecisionLayout,
    is_integrated: bool = False,
) -> Reestimated:
    """Return the precisions after one step of MacKay's fixed-point iteration.

    Let gamma_c = k_c - tau_c tr(A^-1)_c be the number of well-determined values of a group, or of a source
    unit if units have precisions. The noise has n observed targets:

        tau_c <- (gamma_c + a_c)/(|w_c|^2 + a_c/omega_c)
        noise <- (n - sum gamma + a)/(SSE + a/omega)

    The fixed point is the mode of p(data | tau) p(log tau). With is_integrated, k_c replaces gamma_c. The
    mode of w then has the precisions integrated out (Buntine and Weigend), except the noise precision. A
    common precision above the precisions of units is set to its mean given them, because the joint mode of
    two levels can lie at infinity.

    Parameters
    ----------
    traces : (n_chains, n_parameters)   diagonal of A^-1
    residual_squares : (n_chains, n_targets)   sums of squared residuals; None without noise
    determined : (n_chains, n_targets or 1)   tr(A^-1 G_j) of each target with its own noise, or in total
    """
    xp = array_namespace(position)
    new = precisions.copy()
    log_width = xp.zeros(len(position))
    for group in layout.groups:
        if group.name == DISPERSION:
            continue  # it is fixed
        if group.name == NOISE:
            assert residual_squares is not None
            sizes, squares = xp.zeros_like(residual_squares) + counts, residual_squares
            if group.units is None:
                sizes, squares = (v.sum(axis=1, keepdims=True) for v in (sizes, squares))
            gamma = sizes - determined
        else:
            part = parameters.slices[group.name]
            n_rows = 1 if group.units is None else group.n_units
            rows = (position[:, part] ** 2).reshape(len(position), n_rows, -1)
            squares = rows.sum(axis=2)
            tau = precisions[:, _columns(group)]
            gamma = rows.shape[2] - tau * traces[:, part].reshape(rows.shape).sum(axis=2)
            if is_integrated:
                gamma = xp.full_like(gamma, float(rows.shape[2]))
        log_width += _update(group, gamma, squares, precisions, new)
    return Reestimated(new, log_width)


def _columns(group: PrecisionGroup) -> slice:
    return slice(group.common, group.common + 1) if group.units is None else group.units


def _update(group: PrecisionGroup, gamma: Array, squares: Array, before: Array, new: Array) -> Array | float:
    """Write the new precisions of one group, and return its part of the log width."""
    alpha_0, alpha_1, _ = group.prior.alphas
    alpha = alpha_0 if group.units is None else alpha_1
    if math.isinf(alpha):
        return 0.0
    xp = array_namespace(gamma)
    columns = _columns(group)
    tau = before[:, columns]
    mean = group.mean if group.units is None else before[:, group.common, None]
    new[:, columns] = (gamma + alpha) / (squares + alpha / mean)
    widths = 0.5 * xp.log(4 * math.pi / (gamma + alpha)).sum(axis=1)
    if group.units is None:
        return (log_gamma_density(tau, alpha, mean) + xp.log(tau)).sum(axis=1) + widths
    if math.isinf(alpha_0):
        return (log_gamma_density(tau, alpha, mean) + xp.log(tau)).sum(axis=1) + widths
    a = (alpha_0 - group.n_units * alpha) / 2
    rate = alpha_0 / (2 * group.mean)
    upper = precision_moments(
        xp.full(len(tau), a), rate=rate, inverse_rate=alpha * new[:, columns].sum(axis=1) / 2
    )
    new[:, group.common] = upper.mean
    return _log_of_both_levels(group, tau) + widths


def _log_of_both_levels(group: PrecisionGroup, tau: Array) -> Array:
    """Return the log density of the log precisions of units, with the common precision integrated out."""
    xp = array_namespace(tau)
    alpha_0, alpha, _ = group.prior.alphas
    n, rate = group.n_units, alpha_0 / (2 * group.mean)
    common = precision_moments(
        xp.full(len(tau), (alpha_0 - n * alpha) / 2), rate=rate, inverse_rate=alpha * tau.sum(axis=1) / 2
    )
    of_common = alpha_0 / 2 * math.log(rate) - math.lgamma(alpha_0 / 2) + common.log_normaliser
    of_units = alpha / 2 * math.log(alpha / 2) - math.lgamma(alpha / 2)
    return of_common + (of_units + alpha / 2 * xp.log(tau)).sum(axis=1)


def log_symmetries(network: NetworkSpec) -> float:
    """Return the log of the number of equivalent modes of the posterior.

    A layer of H units has H! orders of its units, and 2^H signs if its activation is odd and it has no
    offsets. Networks with configured connections or products, and softmax and normalize layers, count as
    having no symmetries.
    """
    total = 0.0
    is_plain = not network.connections and all(layer.product is None for layer in network.hidden)
    for number, layer in enumerate(network.hidden):
        if not is_plain or layer.activation in ("softmax", "normalize"):
            continue
        total += math.lgamma(layer.units + 1)
        if layer.activation in _ODD and f"th{number}" not in network.priors:
            total += layer.units * math.log(2)
    return total
