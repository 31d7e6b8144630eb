"""Small targets with known answers, for the tests of samplers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.special

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import Trajectory
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams

Term = Callable[
    [Array], tuple[Array, Array]
]  # position -> value (n_chains,), gradient (n_chains, n_parameters)


@dataclass(frozen=True)
class SumOfTerms:
    """U(q) = sum of terms; its approximation number k of K = len(terms) is K times term k."""

    terms: tuple[Term, ...]
    n_parameters: int

    def potential_and_gradient(
        self,
        position: Array,
        precisions: Array,
        *,
        partition: Array | None = None,
        n_partitions: int = 1,
    ) -> tuple[Array, Array]:
        xp = array_namespace(position)
        potential, gradient = xp.zeros(len(position)), xp.zeros_like(position)
        for number, term in enumerate(self.terms):
            value, slope = term(position)
            if partition is None:
                potential, gradient = potential + value, gradient + slope
            else:
                assert n_partitions == len(self.terms)
                weight = n_partitions * (partition == number)
                potential = potential + weight * value
                gradient = gradient + weight[:, None].astype(position.dtype) * slope
        return potential, gradient

    def potential(self, position: Array, precisions: Array) -> Array:
        return self.potential_and_gradient(position, precisions)[0]

    def stepsizes(self, precisions: Array) -> Array:
        return array_namespace(precisions).ones((len(precisions), self.n_parameters))


def _sum(values: Array) -> Array:
    return values.astype(np.float64).sum(axis=1)


def gaussian(n_parameters: int) -> SumOfTerms:
    """Independent standard normals."""
    return SumOfTerms((lambda q: (_sum(q * q) / 2, q),), n_parameters)


def equal_terms(n_terms: int) -> SumOfTerms:
    """A two-dimensional quartic cut into n_terms equal terms, so that every approximation is exact."""

    def term(q: Array) -> tuple[Array, Array]:
        return _sum(q**4 / 4) / n_terms, q**3 / n_terms

    return SumOfTerms((term,) * n_terms, 2)


def quartic(q: Array) -> tuple[Array, Array]:
    return _sum(q**4 / 4), q**3


def cosine(q: Array) -> tuple[Array, Array]:
    xp = array_namespace(q)
    return _sum(0.8 * xp.cos(2 * q + 0.5)), -1.6 * xp.sin(2 * q + 0.5)


def quadratic(q: Array) -> tuple[Array, Array]:
    return _sum((q - 0.7) ** 2 / 2), q - 0.7


ANHARMONIC = SumOfTerms((quartic, cosine, quadratic), 1)
"""U(q) = q**4 / 4 + 0.8 cos(2 q + 0.5) + (q - 0.7)**2 / 2, asymmetric, so that no wrong sign can cancel."""


def _quartic_and_cosine(q: Array) -> tuple[Array, Array]:
    (a, a_slope), (b, b_slope) = quartic(q), cosine(q)
    return a + b, a_slope + b_slope


ANHARMONIC_IN_TWO = SumOfTerms((_quartic_and_cosine, quadratic), 1)
"""The energy above as a sum of two terms."""

_GRID = np.linspace(-5, 5, 40_001)


def _anharmonic_cdf() -> np.ndarray:
    density = np.exp(-ANHARMONIC.potential(_GRID[:, None], _GRID[:, None]))
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return area / area[-1]


_CDF = _anharmonic_cdf()  # trapezoids of width 1/4000, with an error below 1e-8


def anharmonic_cdf(position: np.ndarray) -> np.ndarray:
    """Distribution function of ANHARMONIC, for an array of any shape."""
    return np.interp(position, _GRID, _CDF)


def anharmonic_draws(streams: Streams) -> Array:
    """Exact draws from ANHARMONIC by inversion, (n_chains, 1)."""
    xp = array_namespace(streams.chains)
    # CuPy's interp takes no view, and a request for single uniforms returns one.
    uniform = xp.ascontiguousarray(streams.uniform(Purpose.INITIAL_PARAMETER))
    return xp.interp(uniform, xp.asarray(_CDF), xp.asarray(_GRID))[:, None]


def banana() -> SumOfTerms:
    """Three coupled parameters in three terms: x**2/2 + 2 (y - x**2)**2 + (z - x y)**2 / 2."""

    def first(q: Array) -> tuple[Array, Array]:
        gradient = array_namespace(q).zeros_like(q)
        gradient[:, 0] = q[:, 0]
        return q[:, 0].astype(np.float64) ** 2 / 2, gradient

    def second(q: Array) -> tuple[Array, Array]:
        gradient = array_namespace(q).zeros_like(q)
        bend = q[:, 1] - q[:, 0] ** 2
        gradient[:, 0], gradient[:, 1] = -8 * q[:, 0] * bend, 4 * bend
        return 2 * bend.astype(np.float64) ** 2, gradient

    def third(q: Array) -> tuple[Array, Array]:
        gradient = array_namespace(q).zeros_like(q)
        rest = q[:, 2] - q[:, 0] * q[:, 1]
        gradient[:, 0], gradient[:, 1], gradient[:, 2] = -q[:, 1] * rest, -q[:, 0] * rest, rest
        return rest.astype(np.float64) ** 2 / 2, gradient

    return SumOfTerms((first, second, third), 3)


def banana_draws(streams: Streams) -> Array:
    """Exact draws from the banana, one parameter after another, (n_chains, 3)."""
    xp = array_namespace(streams.chains)
    noise = streams.normal(Purpose.INITIAL_PARAMETER, (3,))
    x = noise[:, 0]
    y = x**2 + noise[:, 1] / 2
    return xp.stack([x, y, x * y + noise[:, 2]], axis=1)


def banana_uniforms(position: np.ndarray) -> np.ndarray:
    """Independent and uniform on (0, 1) for draws from the banana, (n_chains, 3)."""
    x, y, z = position.T
    return scipy.special.ndtr(np.stack([x, 2 * (y - x**2), z - x * y], axis=1))


def wall(n_parameters: int) -> SumOfTerms:
    """A standard normal up to |q| = 3, beyond which the energy is NaN and the gradient overflows."""

    def term(q: Array) -> tuple[Array, Array]:
        xp = array_namespace(q)
        is_out = (abs(q) > 3).any(axis=1)
        gradient = xp.where(is_out[:, None], xp.inf, q).astype(q.dtype)
        return xp.where(is_out, xp.nan, _sum(q * q) / 2), gradient

    return SumOfTerms((term,), n_parameters)


BANANA = banana()


def start(n_chains: int, target: SumOfTerms = BANANA) -> tuple[Trajectory, Array]:
    """A trajectory before its first step, with an order of three partial gradients."""
    streams = chain_streams(7, n_chains)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (target.n_parameters,)) / 2
    momentum = streams.normal(Purpose.MOMENTUM, (target.n_parameters,))
    stepsizes = 0.05 * (1 + streams.uniform(Purpose.STEPSIZE, (target.n_parameters,)))
    order = streams.permutation(3, Purpose.PARTITION_ORDER)
    return Trajectory(position, momentum, np.ones((n_chains, 1)), stepsizes), order
