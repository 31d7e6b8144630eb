"""Gaussian approximations: draws, densities and pruning."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.streams import Purpose, Streams


def draw_diagonal(mean: Array, sd: Array, streams: Streams, n: int, *, purpose: Purpose) -> Array:
    """Draw (n_chains, n, n_parameters) from independent Gaussians.

    mean, sd  (n_chains, n_parameters)
    """
    normal = streams.normal(purpose, (n, mean.shape[1]))
    return mean[:, None] + sd[:, None] * normal.astype(mean.dtype)


def log_density_diagonal(draws: Array, mean: Array, sd: Array) -> Array:
    """Return the log density (n_chains, n) of draws (n_chains, n, n_parameters).

    A parameter with sd 0 is constant, and counts as density 1.
    """
    xp = array_namespace(mean)
    is_free = sd > 0
    scale = xp.where(is_free, sd, 1.0)[:, None].astype(xp.float64)
    z = (draws - mean[:, None]) / scale
    terms = xp.where(is_free[:, None], -0.5 * z**2 - xp.log(scale) - 0.5 * math.log(2 * math.pi), 0.0)
    return terms.sum(axis=2)


def draw_by_precision(mean: Array, factor: Array, streams: Streams, n: int, *, purpose: Purpose) -> Array:
    """Draw (n_chains, n, n_parameters) from Gaussians with precision matrices L L'.

    A draw is mean + L^-T z with z standard normal.

    factor  (n_chains, n_parameters, n_parameters), the lower triangular L
    """
    xp = array_namespace(mean)
    normal = streams.normal(purpose, (n, mean.shape[1]))
    moved = xp.linalg.solve(factor.swapaxes(1, 2), normal.swapaxes(1, 2))  # (n_chains, n_parameters, n)
    return mean[:, None] + moved.swapaxes(1, 2)


def log_density_by_precision(draws: Array, mean: Array, factor: Array) -> Array:
    """Return the log density (n_chains, n) of draws (n_chains, n, n_parameters); see `draw_by_precision`."""
    xp = array_namespace(mean)
    z = xp.matmul(draws - mean[:, None], factor)
    log_root = xp.log(xp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    constant = log_root - 0.5 * mean.shape[1] * math.log(2 * math.pi)
    return constant[:, None] - 0.5 * (z**2).sum(axis=2)


def pruned(mean: Array, sd: Array, share: float) -> tuple[Array, Array]:
    """Return mean and sd with zeros for a share of the parameters of each chain.

    These are the floor(share n_parameters) parameters of least |mean|/sd; Gelbaum (2019), remark 2.3.
    """
    xp = array_namespace(mean)
    n = math.floor(share * mean.shape[1])
    if n == 0:
        return mean, sd
    rank = xp.argsort(xp.argsort(xp.abs(mean) / sd, axis=1), axis=1)
    is_kept = rank >= n
    return xp.where(is_kept, mean, 0), xp.where(is_kept, sd, 0)
