"""The protocol of the posteriors that approximations are fitted to."""

from __future__ import annotations

from typing import Literal, Protocol

from rayfbnn.arrays import Array
from rayfbnn.state import ExpectedPrecisions, MinibatchTarget, Reestimated
from rayfbnn.streams import Streams


class FitTarget(MinibatchTarget, Protocol):
    """The posterior that an approximation is fitted to, with the reasons why it may lack something.

    A reason is a sentence that says what to do; None means that nothing is missing.
    """

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """The dtype of positions."""

    def start(self, streams: Streams) -> tuple[Array, Array]:
        """Draw a position (n_chains, n_parameters), and return it with the precisions' prior means."""

    def log_joint(self, position: Array, precisions: Array) -> Array:
        """Return log likelihood plus log density of the parameters given precisions, (n_chains,)."""

    def residual_squares(self, position: Array) -> Array | None:
        """Return sums of squared residuals, (n_chains, n_targets); None without noise precisions."""

    @property
    def why_not_expected(self) -> str | None:
        """The reason why precisions have no distributions given expected squares."""

    def expected_precisions(
        self, precisions: Array, squares: Array, residual_squares: Array | None
    ) -> ExpectedPrecisions:
        """Return the best distributions of the precisions given expected squares.

        squares           (n_chains, n_parameters) of the parameters
        residual_squares  (n_chains, n_targets) of the sums of squared residuals
        """

    def prior_precisions(self, precisions: Array) -> Array:
        """Return each parameter's precision, the curvature of the prior, (n_chains, n_parameters)."""

    @property
    def why_not_curved(self) -> str | None:
        """The reason why the curvature is not known."""

    def gauss_newton(self, position: Array, precisions: Array) -> Array:
        """Return the parts whose sum is the curvature of the likelihood, (n_chains, n_parts, P, P)."""

    def hessian(self, position: Array, precisions: Array) -> Array:
        """Return the Hessian of the potential, (n_chains, n_parameters, n_parameters)."""

    def reestimated(
        self, position: Array, precisions: Array, traces: Array, determined: Array, *, is_integrated: bool
    ) -> Reestimated:
        """Return the precisions after one step towards the largest evidence (approximated_precisions.py)."""

    @property
    def why_not_propagated(self) -> str | None:
        """The reason why moments cannot be propagated through the network."""

    def case_update(
        self, mean: Array, variance: Array, precisions: Array, cases: Array
    ) -> tuple[Array, Array, Array]:
        """Return log Z of one case of each chain, and its derivatives by means and variances.

        mean, variance (n_chains, n_parameters), cases (n_chains,) integers; log Z is (n_chains,).
        """

    def expected_residual_squares(self, mean: Array, variance: Array) -> Array | None:
        """Return expected sums of squared residuals, (n_chains, n_targets); None without noise."""
