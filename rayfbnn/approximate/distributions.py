"""The distributions that draws of an approximation are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rayfbnn.approximate.gaussian import draw_diagonal, log_density_diagonal
from rayfbnn.arrays import Array, array_namespace, special_functions, to_host
from rayfbnn.streams import Purpose, Streams


class Distribution(Protocol):
    """A distribution of parameters and precisions for each start."""

    def draws(self, streams: Streams, n: int) -> tuple[Array, Array, Array]:
        """Draw n parameter vectors and precisions of every start.

        Returns positions (n_starts, n, n_parameters), precisions (n_starts, n, n_precisions), and the log
        density (n_starts, n) of both on the host. A constant precision counts as density 1. The log density
        is NaN for draws that have no density.
        """
        ...


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
        """Draw n parameter vectors and precisions of every start; see `Distribution`."""
        positions = draw_diagonal(self.mean, self.sd, streams, n, purpose=Purpose.APPROXIMATE_DRAW)
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
