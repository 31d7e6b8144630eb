"""The squared residuals of t noise, and energies that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.ladder.extended import Joint
from rayfbnn.model.ladder.squares import alpha_of
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import log_scale_free_normaliser
from rayfbnn.model.sampled import SampledPosterior


@dataclass(frozen=True, eq=False)
class TResiduals:
    """Squared residuals of every case, divided by the degrees of freedom; zero for missing targets.

    squares  (n_rows, n_targets, n_cases) float64
    counts   (n_rows or 1, n_targets) float64, numbers of observed targets
    degrees  of freedom
    """

    squares: Array
    counts: Array
    degrees: float

    @staticmethod
    def of(posterior: SampledPosterior, position: Array) -> TResiduals:
        """Return the residuals at positions (n_rows, n_parameters), from one pass through the network."""
        xp = array_namespace(position)
        degrees = posterior.precision_layout.groups[-1].prior.alphas[2]
        with np.errstate(all="ignore"):  # a state that overflows has an infinite energy
            residuals, weights = posterior.residuals(position)
            squares = residuals.astype(xp.float64) ** 2 / degrees
            squares = squares if isinstance(weights, float) else weights * squares
        counts = xp.zeros((1, squares.shape[1])) + posterior.counts
        return TResiduals(squares, counts, degrees)

    def taken(self, rows: Array) -> TResiduals:
        """Return the residuals of some rows."""
        counts = self.counts if len(self.counts) == 1 else self.counts[rows]
        return replace(self, squares=self.squares[rows], counts=counts)

    def energy(self, log_precisions: Array) -> Array:
        """Return -log likelihood at log noise precisions (n_rows, n_targets): (n_rows,) float64.

        sum over targets of (a+1)/2 sum log(1 + tau r**2/a) - n (log tau/2 + c), with a degrees of freedom and
        c the log density at zero for tau = 1
        """
        xp = array_namespace(log_precisions)
        with np.errstate(all="ignore"):
            terms = xp.log1p(xp.exp(log_precisions)[:, :, None] * self.squares).sum(axis=2)
            density_at_zero = log_precisions / 2 + log_scale_free_normaliser(self.degrees)
            return ((self.degrees + 1) / 2 * terms - self.counts * density_at_zero).sum(axis=1)

    def joint(self, group: PrecisionGroup) -> Joint:
        """Return the joint density of the residuals and of the only free level of the noise."""
        assert group.name == NOISE
        squares, counts = self.squares, self.counts
        if group.units is None:
            squares = squares.reshape(len(squares), 1, -1)
            counts = counts.sum(axis=1, keepdims=True)
        constant = counts * log_scale_free_normaliser(self.degrees)
        return Joint(squares, (self.degrees + 1) / 2, counts, constant, alpha_of(group), group.mean)
