"""Protocols of the posteriors that approximations are fitted to, one for each group of methods."""

from __future__ import annotations

from typing import Literal, Protocol

from rayfbnn.arrays import Array
from rayfbnn.state import MinibatchTarget
from rayfbnn.streams import Streams


class PrecisionDistributions(Protocol):
    """Distributions of precisions given the squares of parameters; see model/approximated_precisions.py."""

    @property
    def mean(self) -> Array:
        """E tau, (n_chains, n_precisions)."""

    @property
    def shape(self) -> Array:
        """Shape of each Gamma distribution, (n_chains, n_precisions), NaN where a precision has none."""

    @property
    def rate(self) -> Array:
        """Rate of each Gamma distribution, (n_chains, n_precisions), NaN where a precision has none."""

    @property
    def bound(self) -> Array:
        """The change of a bound on the log evidence at the precisions E tau, (n_chains,)."""


class ApproximatedTarget(MinibatchTarget, Protocol):
    """A posterior that approximations can be fitted to."""

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """The dtype of positions."""

    def start(self, streams: Streams) -> tuple[Array, Array]:
        """Draw a position (n_chains, n_parameters), and return it with the precisions' prior means."""

    def log_joint(self, position: Array, precisions: Array) -> Array:
        """Return log likelihood plus log density of the parameters given precisions, (n_chains,)."""

    def residual_squares(self, position: Array) -> Array | None:
        """Return sums of squared residuals, (n_chains, n_targets); None without noise precisions."""

    def expected_precisions(
        self, precisions: Array, squares: Array, residual_squares: Array | None
    ) -> PrecisionDistributions:
        """Return the best distributions of the precisions given expected squares.

        squares           (n_chains, n_parameters) of the parameters
        residual_squares  (n_chains, n_targets) of the sums of squared residuals
        """


class ReestimatedPrecisions(Protocol):
    """Precisions after a step towards the largest evidence (`evidence_precisions.py`)."""

    @property
    def precisions(self) -> Array:
        """The new precisions, (n_chains, n_precisions)."""

    @property
    def log_width(self) -> Array:
        """The contribution of the integral over the log precisions to the log evidence, (n_chains,)."""


class CurvedTarget(ApproximatedTarget, Protocol):
    """A posterior with a known curvature, for Gaussian approximations."""

    def prior_precisions(self, precisions: Array) -> Array:
        """Return the curvature of the prior, the precision of each parameter, (n_chains, n_parameters)."""

    def gauss_newton(self, position: Array, precisions: Array) -> Array:
        """Return the parts whose sum is the curvature of the likelihood, (n_chains, n_parts, P, P)."""

    def hessian(self, position: Array, precisions: Array) -> Array:
        """Return the Hessian of the potential, (n_chains, n_parameters, n_parameters)."""

    def reestimated(
        self, position: Array, precisions: Array, traces: Array, determined: Array, *, is_integrated: bool
    ) -> ReestimatedPrecisions:
        """Return the precisions after one step towards the largest evidence.

        traces         (n_chains, n_parameters): the diagonal of the inverse of the curvature A
        determined     (n_chains, n_parts): tr(A^-1 G_j) of each part of the likelihood's curvature
        is_integrated  whether all parameters count as determined, as they do if precisions are integrated out
        """


class PropagatedTarget(ApproximatedTarget, Protocol):
    """A posterior with case updates of the moments of independent Gaussian parameters."""

    def prior_precisions(self, precisions: Array) -> Array:
        """Return the precision of each parameter, (n_chains, n_parameters)."""

    def case_update(
        self, mean: Array, variance: Array, precisions: Array, cases: Array
    ) -> tuple[Array, Array, Array]:
        """Return log Z of one case of each chain, and its derivatives by means and variances.

        mean, variance (n_chains, n_parameters), cases (n_chains,) integers; log Z is (n_chains,).
        """

    def expected_residual_squares(self, mean: Array, variance: Array) -> Array | None:
        """Return expected sums of squared residuals, (n_chains, n_targets); None without noise."""

    def units_are_alike(self, mean: Array) -> Array:
        """Return whether all hidden units have the same means, (n_chains,)."""
