"""The residual sums of squares of each target, and energies of Gaussian noise that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.ladder.extended import Joint
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.sampled import SampledPosterior


@dataclass(frozen=True, eq=False)
class Squares:
    """Sums of squared residuals, (n_rows, n_targets) float64, and the numbers of observed targets.

    counts  (n_rows or 1, n_targets) float64
    """

    sums: Array
    counts: Array

    @staticmethod
    def of(posterior: SampledPosterior, position: Array) -> Squares:
        """Return the sums at positions (n_rows, n_parameters), from one pass through the network."""
        xp = array_namespace(position)
        with np.errstate(all="ignore"):  # a state that overflows has an infinite energy
            residuals, weights = posterior.residuals(position)
            squares = residuals.astype(xp.float64) ** 2
            sums = (squares if isinstance(weights, float) else weights * squares).sum(axis=2)
        counts = xp.zeros((1, sums.shape[1])) + posterior.counts
        return Squares(sums, counts)

    def total(self) -> Squares:
        """Return the sums over all targets, as of a single one."""
        return Squares(self.sums.sum(axis=1, keepdims=True), self.counts.sum(axis=1, keepdims=True))

    def taken(self, rows: Array) -> Squares:
        """Return the sums of some rows."""
        return Squares(self.sums[rows], self.counts if len(self.counts) == 1 else self.counts[rows])

    def log_total(self) -> Array:
        """Return the log of the sum over targets, (n_rows,)."""
        with np.errstate(all="ignore"):
            return array_namespace(self.sums).log(self.sums.sum(axis=1))

    def energy(self, log_precisions: Array) -> Array:
        """Return -log likelihood at log noise precisions (n_rows, n_targets): (n_rows,) float64.

        sum over targets of (tau RSS - n log tau + n log 2 pi)/2
        """
        xp = array_namespace(log_precisions)
        with np.errstate(all="ignore"):
            terms = xp.exp(log_precisions) * self.sums
            terms = terms - self.counts * (log_precisions - math.log(2 * math.pi))
        return terms.sum(axis=1) / 2

    def energy_without_noise(self, group: PrecisionGroup) -> Array:
        """Return -log likelihood with each precision integrated over its Gamma prior, (n_rows,) float64.

        tau has the shape a/2 and the mean omega. With b = a/omega and m = a + n,

        -(a/2) log(b/2) + log Gamma(a/2) - log Gamma(m/2) + (n/2) log 2 pi + (m/2) log((b + RSS)/2)
        """
        alpha = alpha_of(group)
        part = self.total() if group.units is None else self
        b = alpha / group.mean
        xp = array_namespace(part.sums)
        m = alpha + part.counts
        constant = -alpha / 2 * math.log(b / 2) + math.lgamma(alpha / 2) - _log_gammas(m / 2)
        constant = constant + part.counts / 2 * math.log(2 * math.pi)
        with np.errstate(all="ignore"):
            return (constant + m / 2 * xp.log((b + part.sums) / 2)).sum(axis=1)

    def joint(self, group: PrecisionGroup) -> Joint:
        """Return the joint density of the residuals and of the common precision above those of targets.

        With c = exp(u) the common precision, a the alpha of targets, m = a + n, and the precision of each
        target integrated over its prior Gamma(a/2, mean c), its residuals have the log density

        log Gamma(m/2) - log Gamma(a/2) - (n/2) log(pi a) + n u/2 - (m/2) log(1 + exp(u) RSS/a)
        """
        alpha_common, alpha, _ = group.prior.alphas
        n, m = self.counts, alpha + self.counts
        constant = _log_gammas(m / 2) - math.lgamma(alpha / 2) - n / 2 * math.log(math.pi * alpha)
        return Joint(
            self.sums[:, None] / alpha,
            m[:, None] / 2,
            n.sum(axis=1, keepdims=True),
            constant.sum(axis=1, keepdims=True),
            alpha_common,
            group.mean,
        )


def alpha_of(group: PrecisionGroup) -> float:
    """Return the alpha of the only free level of the noise: of targets, or the common one."""
    common, unit, _ = group.prior.alphas
    return common if math.isinf(unit) else unit


def _log_gammas(values: Array) -> Array:
    """Return log Gamma of values (n, n_targets), on a device by a function of its own."""
    if not isinstance(values, np.ndarray):
        return special_functions(values).gammaln(values)
    return np.array([[math.lgamma(value) for value in row] for row in values.tolist()])
