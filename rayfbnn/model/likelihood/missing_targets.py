"""Missing targets, which are stored as zeros and removed from the likelihood by a weight of zero."""

from __future__ import annotations

from rayfbnn.arrays import Array, array_namespace


def observed_weights(targets: Array) -> Array | None:
    """Return 1 for observed targets and 0 for missing ones (NaN), or None if all were observed.

    targets  (..., n_cases, n_targets); the result is (..., n_targets, n_cases) float64
    """
    xp = array_namespace(targets)
    if targets.dtype.kind != "f":
        return None
    is_missing = xp.isnan(targets)
    if not bool(is_missing.any()):
        return None
    return xp.ascontiguousarray(~is_missing.swapaxes(-1, -2), dtype=xp.float64)


def without_missing(rows: Array) -> Array:
    """Return the rows with missing values replaced by zeros."""
    xp = array_namespace(rows)
    return rows if observed_weights(rows) is None else xp.where(xp.isnan(rows), 0.0, rows)


def apply_weights(terms: Array, gradient: Array, weights: Array | None) -> None:
    """Multiply the terms of the log likelihood and their gradient, in place, by the targets' weights.

    terms    (n_chains, n_targets, n_cases)
    gradient (n_chains, n_outputs, n_cases)
    weights  (..., n_targets or 1, n_cases), 0 for terms that do not count; None leaves both unchanged
    """
    if weights is not None:
        terms *= weights
        # A target has one output, or several outputs that are n_targets apart.
        by_target = gradient.reshape(terms.shape[0], -1, *terms.shape[1:])
        by_target *= weights[..., None, :, :]
