"""Linear regression with the coefficients integrated out: the features' energy, and draws of coefficients.

The targets are y_j = Phi' w_j + noise on features Phi (n_features, n_cases). The noise has given precisions
T_j, and the coefficients w_j are normal with given precisions S_j (T_j and S_j are diagonal):

    A_j = Phi T_j Phi' + S_j ;  m_j = A_j^-1 Phi T_j y_j ;  r_j = y_j - Phi' m_j

    -log p(y_j | Phi) = (log|A_j| - log|S_j| - sum log T_j + r_j' T_j r_j + m_j' S_j m_j + n log 2 pi) / 2
    d/dPhi            = sum_j ( A_j^-1 Phi T_j - m_j (T_j r_j)' )
    d/d log S_j       = ( diag(A_j^-1) S_j - 1 + S_j m_j^2 ) / 2
    w_j | Phi, y_j    ~ Normal(m_j, A_j^-1)

The two squares replace the usual y'Ty - b'm with b = Phi T y, and avoid its cancellation. With more features
than cases, the same results follow from matrices over the cases, B_j = I + T^1/2 Phi' S^-1 Phi T^1/2.
Everything is in float64. With Phi T Phi' in float32 two thirds of the trajectories were accepted, and with
float64 five sixths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.streams import Purpose, Streams

_LOG_2_PI = math.log(2 * math.pi)
_MOST_INVERTED_AT_ONCE = 64  # rows of a matrix on a device


@dataclass(frozen=True, eq=False)
class Regression:
    """The regression without its features. Targets with the same T and S form one system, with one A.

    noise    T (n_chains, n_systems, n_cases, or 1 if all cases are alike), 0 for missing targets
    targets  y (n_chains or 1, n_systems, n_each, n_cases), finite everywhere
    prior    S (n_chains, n_systems, n_features)
    is_dual  whether to use matrices over the cases, which are smaller if there are fewer cases than features
    """

    noise: Array
    targets: Array
    prior: Array
    is_dual: bool

    @property
    def is_uniform(self) -> bool:
        return bool(self.noise.shape[2] == 1)

    def of_chains(self, chains: slice) -> Regression:
        targets = self.targets[chains] if len(self.targets) > 1 else self.targets
        return replace(self, noise=self.noise[chains], targets=targets, prior=self.prior[chains])


@dataclass(frozen=True)
class Solution:
    """The solution of all systems.

    In the primal form, half (n_chains, n_systems, n_features, n_features) has A^-1 = half' half,
    log_determinant (n_chains, n_systems) is that of A, and mean is m (n_chains, n_systems, n_features,
    n_each). In the dual form, half and log_determinant belong to B, and mean is B^-1 T^1/2 y.
    """

    half: Array
    log_determinant: Array
    mean: Array


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the energy.

    features   by the features, (n_chains, n_features, n_cases)
    log_prior  by log S, (n_chains, n_systems, n_features)
    """

    features: Array
    log_prior: Array


def energy_and_slopes(
    features: Array, regression: Regression, *, with_slopes: bool = True
) -> tuple[Array, Slopes | None]:
    """Return -log p(y | Phi) summed over targets (n_chains,), and its derivatives if with_slopes.

    features  (n_chains, n_features, n_cases) float64
    """
    form = _dual if regression.is_dual else _primal
    energy, slopes = form(features, regression, with_slopes)
    return energy - log_normaliser(regression), slopes


def means(features: Array, regression: Regression) -> Array:
    """Return the means m_j, (n_chains, n_systems, n_features, n_each)."""
    if not regression.is_dual:
        return _solve_primal(features, regression).mean
    xp = array_namespace(features)
    spread = features[:, None] / regression.prior[:, :, :, None]
    root = xp.sqrt(regression.noise)[:, :, :, None]
    return xp.matmul(spread, root * _solve_dual(features, spread, regression).mean)


def draw(features: Array, regression: Regression, streams: Streams) -> Array:
    """Draw coefficients given features and targets, (n_chains, n_systems, n_features, n_each)."""
    if regression.is_dual:
        return _draw_dual(features, regression, streams)
    solution = _solve_primal(features, regression)
    # m + half' z with z standard normal has the covariance half' half = A^-1.
    z = streams.normal(Purpose.OUTPUT_WEIGHT, solution.mean.shape[1:])
    return solution.mean + array_namespace(z).matmul(solution.half.swapaxes(2, 3), z)


def log_normaliser(regression: Regression) -> Array:
    """Return (sum log T - n log 2 pi) / 2 over the observed targets, (n_chains,)."""
    xp = array_namespace(regression.noise)
    n_each, n_cases = regression.targets.shape[2:]
    is_observed = regression.noise > 0
    logs = xp.where(is_observed, xp.log(xp.where(is_observed, regression.noise, 1.0)) - _LOG_2_PI, 0.0)
    return 0.5 * n_each * (n_cases / regression.noise.shape[2]) * logs.sum(axis=(1, 2))


def _primal(features: Array, regression: Regression, with_slopes: bool) -> tuple[Array, Slopes | None]:
    xp = array_namespace(features)
    solution = _solve_primal(features, regression)
    n_each, noise = regression.targets.shape[2], regression.noise[:, :, None, :]
    residuals = regression.targets - xp.matmul(solution.mean.swapaxes(2, 3), features[:, None])
    squares = (noise * residuals**2).sum(axis=(1, 2, 3))
    squares += (regression.prior[:, :, :, None] * solution.mean**2).sum(axis=(1, 2, 3))
    log_ratio = (solution.log_determinant - xp.log(regression.prior).sum(axis=2)).sum(axis=1)
    energy = 0.5 * (n_each * log_ratio + squares)
    if not with_slopes:
        return energy, None
    inverse = n_each * xp.matmul(solution.half.swapaxes(2, 3), solution.half)
    second_moments = xp.diagonal(inverse, axis1=2, axis2=3) + (solution.mean**2).sum(axis=3)
    log_prior = 0.5 * (regression.prior * second_moments - n_each)
    if regression.is_uniform:
        # One product serves all systems, because their matrices are summed first.
        slopes = xp.matmul((noise * inverse).sum(axis=1), features)
        n_chains, _, n_features, _ = solution.mean.shape
        means = (noise * solution.mean).swapaxes(1, 2).reshape(n_chains, n_features, -1)
        slopes -= xp.matmul(means, residuals.reshape(n_chains, -1, features.shape[2]))
        return energy, Slopes(slopes, log_prior)
    by_system = xp.matmul(inverse, features[:, None]) - xp.matmul(solution.mean, residuals)
    return energy, Slopes((noise * by_system).sum(axis=1), log_prior)


def _solve_primal(features: Array, regression: Regression) -> Solution:
    xp = array_namespace(features)
    phi, noise = features[:, None], regression.noise[:, :, None, :]
    transposed = phi.swapaxes(2, 3)
    if regression.is_uniform:
        matrices = noise * xp.matmul(phi, transposed)
        right = noise * xp.matmul(phi, regression.targets.swapaxes(2, 3))
    else:
        scaled = noise * phi
        matrices = xp.matmul(scaled, transposed)
        right = xp.matmul(scaled, regression.targets.swapaxes(2, 3))
    places = xp.arange(features.shape[1])
    matrices[:, :, places, places] += regression.prior
    half, log_determinant = _half_inverse(matrices)
    return Solution(half, log_determinant, xp.matmul(half.swapaxes(2, 3), xp.matmul(half, right)))


def _dual(features: Array, regression: Regression, with_slopes: bool) -> tuple[Array, Slopes | None]:
    """Return energy and slopes from B, with V^-1 = T^1/2 B^-1 T^1/2 and u = T r = V^-1 y:

    log|A| - log|S| = log|B| ;  r'Tr + m'Sm = y'u ;  A^-1 Phi T = S^-1 Phi V^-1 ;  m = S^-1 Phi u
    A^-1 = S^-1 - S^-1 Phi V^-1 Phi' S^-1
    """
    xp = array_namespace(features)
    spread = features[:, None] / regression.prior[:, :, :, None]
    solution = _solve_dual(features, spread, regression)
    n_each, root = regression.targets.shape[2], xp.sqrt(regression.noise)
    scaled = root[:, :, None, :] * regression.targets
    squares = (scaled.swapaxes(2, 3) * solution.mean).sum(axis=(1, 2, 3))
    energy = 0.5 * (n_each * solution.log_determinant.sum(axis=1) + squares)
    if not with_slopes:
        return energy, None
    inverse = n_each * xp.matmul(solution.half.swapaxes(2, 3), solution.half)
    inverse -= xp.matmul(solution.mean, solution.mean.swapaxes(2, 3))
    inverse *= root[:, :, :, None] * root[:, :, None, :]
    slopes = xp.matmul(spread, inverse)
    return energy, Slopes(slopes.sum(axis=1), -0.5 * (slopes * features[:, None]).sum(axis=3))


def _solve_dual(features: Array, spread: Array, regression: Regression) -> Solution:
    xp = array_namespace(features)
    root = xp.sqrt(regression.noise)
    matrices = xp.matmul(features[:, None].swapaxes(2, 3), spread)
    matrices *= root[:, :, :, None] * root[:, :, None, :]
    places = xp.arange(features.shape[2])
    matrices[:, :, places, places] += 1
    half, log_determinant = _half_inverse(matrices)
    right = (root[:, :, None, :] * regression.targets).swapaxes(2, 3)
    return Solution(half, log_determinant, xp.matmul(half.swapaxes(2, 3), xp.matmul(half, right)))


def _draw_dual(features: Array, regression: Regression, streams: Streams) -> Array:
    """Return w0 + S^-1 Phi T^1/2 B^-1 (T^1/2 y - v), with w0 from the prior and v = T^1/2 Phi' w0 + z.

    Bhattacharya, Chakraborty and Mallick (2016), "Fast sampling with Gaussian scale mixture priors in
    high-dimensional regression", algorithm 1.
    """
    xp = array_namespace(features)
    spread = features[:, None] / regression.prior[:, :, :, None]
    solution = _solve_dual(features, spread, regression)
    n_systems, n_each, n_cases = regression.targets.shape[1:]
    w0 = streams.normal(Purpose.OUTPUT_WEIGHT, (n_systems, features.shape[1], n_each))
    w0 /= xp.sqrt(regression.prior)[:, :, :, None]
    root = xp.sqrt(regression.noise)[:, :, :, None]
    v = streams.normal(Purpose.OUTPUT_RESIDUAL, (n_systems, n_cases, n_each))
    v += root * xp.matmul(features[:, None].swapaxes(2, 3), w0)
    solved = solution.mean - xp.matmul(solution.half.swapaxes(2, 3), xp.matmul(solution.half, v))
    return w0 + xp.matmul(spread, root * solved)


def _half_inverse(matrices: Array) -> tuple[Array, Array]:
    """Return the inverse of each Cholesky factor, and log determinants; NaN for a matrix without a factor.

    matrices (n_chains, n_systems, n, n)
    """
    xp = array_namespace(matrices)
    factor = _cholesky(matrices)
    diagonal = xp.diagonal(factor, axis1=2, axis2=3)
    inverse = np.linalg.inv(factor) if xp is np else _inverse_by_blocks(factor)
    return inverse, 2 * xp.log(diagonal).sum(axis=2)


def _inverse_by_blocks(factor: Array) -> Array:
    """Return the inverse of lower triangular matrices, starting from the diagonal blocks.

    On a device this takes a quarter of the time of inverting them as general matrices.
    """
    xp, n = array_namespace(factor), factor.shape[-1]
    if n <= _MOST_INVERTED_AT_ONCE:
        return xp.linalg.inv(factor)
    half = n // 2
    upper = _inverse_by_blocks(factor[..., :half, :half])
    lower = _inverse_by_blocks(factor[..., half:, half:])
    inverse = xp.zeros_like(factor)
    inverse[..., :half, :half] = upper
    inverse[..., half:, half:] = lower
    inverse[..., half:, :half] = -xp.matmul(lower, xp.matmul(factor[..., half:, :half], upper))
    return inverse


def _cholesky(matrices: Array) -> Array:
    """Return Cholesky factors, and NaN for a matrix without one. Its trajectory has blown up."""
    xp = array_namespace(matrices)
    if xp is not np:  # a device raises no error: check that squares of rows sum to the diagonal instead
        factors = xp.linalg.cholesky(matrices)
        squares = xp.square(factors).sum(axis=3)
        diagonal = xp.diagonal(matrices, axis1=2, axis2=3)
        is_factor = (xp.abs(squares - diagonal) <= 1e-6 * diagonal).all(axis=2)
        return xp.where(is_factor[:, :, None, None], factors, xp.nan)
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        factors = np.full_like(matrices, np.nan)
        for place in np.ndindex(matrices.shape[:2]):
            try:
                factors[place] = np.linalg.cholesky(matrices[place])
            except np.linalg.LinAlgError:
                continue
        return factors
