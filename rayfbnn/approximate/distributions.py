"""The distributions that draws of an approximation are made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions, to_host
from rayfbnn.streams import Purpose, Streams


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


class Distribution(Protocol):
    """A distribution of parameters and precisions for each start."""

    def draws(self, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Draw n parameter vectors and precisions of every start.

        Returns positions (n_starts, n, n_parameters), precisions (n_starts, n, n_precisions), and the log
        density (n_starts, n) of both on the host. A constant precision counts as density 1. The log density
        is NaN for draws that have no density.
        """


@dataclass(frozen=True)
class Factorised:
    """Independent Gaussian parameters, and independent precisions with Gamma distributions.

    mean, sd     (n_starts, n_parameters); a parameter with sd 0 is constant
    precisions   (n_starts, n_precisions), the means of the precisions
    shape, rate  (n_starts, n_precisions), NaN for a constant precision
    """

    mean: Array
    sd: Array
    precisions: Array
    shape: Array
    rate: Array

    def draws(self, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        normal = streams.normal(Purpose.APPROXIMATE_DRAW, (n, self.mean.shape[1]))
        positions = self.mean[:, None] + self.sd[:, None] * normal.astype(self.mean.dtype)
        precisions = _draw_gamma(self.precisions, self.shape, self.rate, streams, n)
        log_q = to_host(log_density_diagonal(positions, self.mean, self.sd))
        log_q = log_q + _log_density_gamma(to_host(precisions), to_host(self.shape), to_host(self.rate))
        return positions, precisions, log_q


@dataclass(frozen=True)
class Points:
    """One network with its precisions for each start, which every draw repeats.

    position    (n_starts, n_parameters)
    precisions  (n_starts, n_precisions)
    """

    position: Array
    precisions: Array

    def draws(self, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Return the network of every start n times; see `Distribution`."""
        xp = array_namespace(self.position)
        positions = xp.repeat(self.position[:, None], n, axis=1)
        precisions = xp.repeat(self.precisions[:, None], n, axis=1)
        return positions, precisions, np.full(positions.shape[:2], np.nan)


def _draw_gamma(mean: Array, shape: Array, rate: Array, streams: Streams, n: int) -> Array:
    """Draw n precisions of every start, (n_starts, n, n_precisions); constant ones are repeated.

    mean, shape, rate  (n_starts, n_precisions); shape and rate are NaN for constant precisions
    """
    xp = array_namespace(mean)
    is_gamma = xp.isfinite(shape)[:, None]
    shapes = xp.broadcast_to(xp.where(is_gamma, shape[:, None], 1.0), (len(mean), n, mean.shape[1]))
    with np.errstate(invalid="ignore"):
        drawn = streams.log_gamma(shapes, Purpose.APPROXIMATE_DRAW, (n, mean.shape[1]), index=1)
        return xp.where(is_gamma, xp.exp(drawn) / rate[:, None], mean[:, None])


def _log_density_gamma(draws: Array, shape: Array, rate: Array) -> Array:
    """Return the log density (n_starts, n) of draws (n_starts, n, n_precisions), summed over precisions."""
    shape, rate = shape[:, None], rate[:, None]
    is_gamma = np.isfinite(shape)
    shape, rate = np.where(is_gamma, shape, 1.0), np.where(is_gamma, rate, 1.0)
    log_gamma = special_functions(shape).gammaln(shape)
    terms = shape * np.log(rate) - log_gamma + (shape - 1) * np.log(draws) - rate * draws
    return np.where(is_gamma, terms, 0.0).sum(axis=2)
