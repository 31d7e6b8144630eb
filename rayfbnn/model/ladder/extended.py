"""The top of a ladder on the state extended by a noise precision, for noise without a closed integral.

An exchange with the top needs its noise integrated out. For Gaussian noise of one free level the integral has
a closed form (squares.py); for t noise or two free levels it has none. Each state w below the top is then
given a log precision u from a proposal q(u | w), which depends on w alone. Pairs (w, u) have the densities

    p_k(w) q(u | w) at level k,    prior(w) p(targets | w, u) p(u) at the top

The normalising constants are those without u, because q is normalised: q is a pseudoprior, Carlin and Chib
(1995), "Bayesian model choice via Markov chain Monte Carlo methods". Exchanges of pairs are therefore exact
for any q, and so is Bennett's ratio. After division by q, the energy of the top is

    -log(p(targets | w, u) p(u) / q(u | w))

and the mean of exp(-energy) over q is the integral. A quadrature would have an error, take dozens of passes
over the residuals, and still need an exact draw of u. The price of u is a few percent of the exchanges, see
`Proposal`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.prior import MAX_LOG_PRECISION, log_gamma_density, log_scale_free_normaliser
from rayfbnn.streams import Purpose, Streams

_DEGREES = 8.0
_TOLERANCE = 1e-6  # of the mode, in standard deviations of the proposal
_MOST_STEPS = 100
_LARGEST = 1e250


@dataclass(frozen=True, eq=False)
class Joint:
    """The joint density of residuals and log precisions u, a function of u for each unit.

    log p(u) + n u/2 - sum over i of b_i log(1 + exp(u) s_i) + constant

    tau = exp(u) has the prior Gamma(shape alpha/2, mean omega). A unit is a target, or all of them together.
    The density is strictly log-concave in u.

    s           (n_rows, n_units, n_items) float64, not negative
    b           a number, or (n_rows or 1, n_units, n_items)
    n           (n_rows or 1, n_units)
    constant    the same
    """

    s: Array
    b: float | Array
    n: Array
    constant: Array
    alpha: float
    omega: float

    def log_density(self, u: Array) -> Array:
        """Return the log density at u (n_rows, n_units), in the shape of u; -inf beyond the limits of u."""
        xp = array_namespace(u)
        with np.errstate(all="ignore"):
            tau = xp.exp(u)
            terms = (self.b * xp.log1p(tau[:, :, None] * self.s)).sum(axis=2)
            prior = log_gamma_density(tau, self.alpha, self.omega) + u
            value = prior + self.n / 2 * u - terms + self.constant
        return xp.where((abs(u) <= MAX_LOG_PRECISION) & ~xp.isnan(value), value, -xp.inf)

    def proposal(self) -> Proposal:
        """Return the proposal that has the mode of the density, and its curvature there.

        The slope in u is

        f(u) = (alpha + n)/2 - alpha exp(u)/(2 omega) - sum of b p,  p = exp(u) s/(1 + exp(u) s)

        Its only zero lies between its zeros for p = exp(u) s and for p = 0. Newton steps find it, or
        bisection where such a step leaves this interval. Rows do not depend on each other. The density of a
        few residuals may be flat about its mode. The scale is therefore at most the width of the interval,
        plus the scale for residuals of zero.
        """
        xp = array_namespace(self.s)
        # A state that overflows is never exchanged with the top, and any proposal is exact.
        s = xp.where(self.s < _LARGEST, self.s, 0.0)
        total, slope = (self.alpha + self.n) / 2, self.alpha / (2 * self.omega)
        high = xp.log(total / slope) + xp.zeros(s.shape[:2])
        low = xp.log(total / (slope + (self.b * s).sum(axis=2)))
        least = (high - low + 1 / xp.sqrt(total)) ** -2
        u, curvature = low, xp.ones_like(low)
        pending = xp.ones(u.shape, dtype=bool)
        for _ in range(_MOST_STEPS):
            tau = xp.exp(u)
            with np.errstate(over="ignore"):
                rest = 1 / (1 + tau[:, :, None] * s)  # 1 - p
            f = total - slope * tau - (self.b * (1 - rest)).sum(axis=2)
            at_u = slope * tau + (self.b * (rest * (1 - rest))).sum(axis=2)
            curvature = xp.where(pending, at_u, curvature)
            pending &= (abs(f) > _TOLERANCE * xp.sqrt(at_u)) & (high - low > _TOLERANCE)
            if not bool(pending.any()):
                break
            low, high = xp.where(pending & (f > 0), u, low), xp.where(pending & (f <= 0), u, high)
            step = u + f / at_u
            middle = (low + high) / 2
            u = xp.where(pending, xp.where((step > low) & (step < high), step, middle), u)
        return Proposal(u, xp.maximum(curvature, least))


@dataclass(frozen=True, eq=False)
class Proposal:
    """A t density of u with 8 degrees of freedom for each row and unit.

    A joint density is nearly Gaussian if there are many residuals, and has exponential tails if there are
    few, which those of t cover. An exchange of u alone would be accepted with probability 0.95 from 50
    residuals on, 0.92 with 10, and 0.77 with 1. With 4 degrees of freedom the first would be 0.91.

    mode       (n_rows, n_units)
    curvature  the same: of the log density at the mode, the reciprocal of the squared scale
    """

    mode: Array
    curvature: Array

    def log_density(self, u: Array) -> Array:
        """Return the log density at u, (n_rows, n_units)."""
        xp = array_namespace(u)
        squares = self.curvature * (u - self.mode) ** 2
        constant = log_scale_free_normaliser(_DEGREES) + xp.log(self.curvature) / 2
        log_density: Array = constant - (_DEGREES + 1) / 2 * xp.log1p(squares / _DEGREES)
        return log_density

    def log_scale(self) -> Array:
        """Return the log of the root mean square over units of the scale exp(-mode/2), (n_rows,)."""
        xp = array_namespace(self.mode)
        scale: Array = xp.log(xp.exp(-self.mode).mean(axis=1)) / 2
        return scale

    def drawn(self, streams: Streams, purpose: Purpose) -> Array:
        """Draw the log precisions of every row, (n_rows, n_units)."""
        xp, shape = array_namespace(self.mode), self.mode.shape[1:]
        mixing = streams.log_gamma(_DEGREES / 2, purpose, shape, index=1) - math.log(_DEGREES / 2)
        scale = xp.exp(-mixing / 2) / xp.sqrt(self.curvature)
        drawn: Array = self.mode + scale * streams.normal(purpose, shape)
        beyond = MAX_LOG_PRECISION + 1  # has no density, and no overflow
        return xp.minimum(xp.maximum(drawn, -beyond), beyond)


def energy_of(joint: Joint, proposal: Proposal, u: Array) -> Array:
    """Return the energy of the top for states extended by u (n_rows, n_units): (n_rows,) float64.

    It is infinite for a state whose residuals are not finite.
    """
    xp = array_namespace(u)
    energy = (proposal.log_density(u) - joint.log_density(u)).sum(axis=1)
    return xp.where(xp.isfinite(joint.s).all(axis=(1, 2)), energy, xp.inf)
