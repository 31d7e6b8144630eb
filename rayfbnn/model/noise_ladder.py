"""A path over levels of Gaussian or t noise: held below the top, and integrated out there.

For Gaussian noise of one free level the integral has a closed form (`Squares`); for t noise or two free
levels it has none. Each state w below the top is then given a log precision u from a proposal q(u | w), which
depends on w alone. Pairs (w, u) have the densities

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import (
    MAX_LOG_PRECISION,
    log_gamma_density,
    log_scale_free_normaliser,
    noise_precisions,
)
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState, LadderEnds
from rayfbnn.streams import Purpose, Streams, Use


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
        with np.errstate(all="ignore"):  # a state that overflows has an infinite energy
            return Squares(posterior.residuals(position).sum_of_squares(), _counts(posterior))

    def total(self) -> Squares:
        """Return the sums over all targets, as of a single one."""
        return Squares(self.sums.sum(axis=1, keepdims=True), self.counts.sum(axis=1, keepdims=True))

    def log_total(self) -> Array:
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


def _counts(posterior: SampledPosterior) -> Array:
    """Return the numbers of observed targets, (n_rows or 1, n_targets) float64."""
    return array_namespace(posterior.targets).zeros((1, posterior.n_targets)) + posterior.counts


def _log_gammas(values: Array) -> Array:
    """Return log Gamma of values (n, n_targets), on a device by a function of its own."""
    if not isinstance(values, np.ndarray):
        return special_functions(values).gammaln(values)
    return np.array([[math.lgamma(value) for value in row] for row in values.tolist()])


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
        degrees = posterior.precision_layout.groups[-1].prior.alphas[2]
        with np.errstate(all="ignore"):  # a state that overflows has an infinite energy
            values = posterior.residuals(position)
            return TResiduals(values.weights * (values.squares / degrees), _counts(posterior), degrees)

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
        squares, counts = self.squares, self.counts
        if group.units is None:
            squares = squares.reshape(len(squares), 1, -1)
            counts = counts.sum(axis=1, keepdims=True)
        constant = counts * log_scale_free_normaliser(self.degrees)
        return Joint(squares, (self.degrees + 1) / 2, counts, constant, alpha_of(group), group.mean)


@dataclass(frozen=True, eq=False)
class NoiseEnergies:
    """The energies of states whose residuals are known.

    measure      (n_rows,) log of the residual sum of squares over all targets, or of the scale of t noise
    multipliers  (n_targets,)
    of_top       (n_rows,) energy at the top, of states that are extended by a precision if the noise has no
                 closed integral (`Joint`); None if the top holds its noise too
    """

    residuals: Squares | TResiduals
    measure: Array
    multipliers: Array
    of_top: Array | None

    def at(self, x: Array) -> Array:
        xp = array_namespace(x)
        held = xp.where(xp.isfinite(x), x, 0.0)[:, None] + xp.log(self.multipliers)
        energy = self.residuals.energy(held)
        return energy if self.of_top is None else xp.where(xp.isfinite(x), energy, self.of_top)


@dataclass(frozen=True, eq=False)
class PathFromPrior:
    """The common base of the paths of a posterior."""

    posterior: SampledPosterior
    ends: LadderEnds

    def on_device(self, values: Array) -> Array:
        moved: Array = array_namespace(self.posterior.inputs).asarray(values)
        return moved

    def prior_draw(self, streams: Streams) -> ChainState:
        return self.posterior.initial_state(streams, sigmas=None)


@dataclass(frozen=True, eq=False)
class NoisePath(PathFromPrior):
    """The path of noise levels of real targets: a mcmc.ladder.records.Path.

    Below the top, the noise precision of target t is multipliers[t] * exp(x).
    """

    multipliers: tuple[float, ...] = ()

    @property
    def group(self) -> PrecisionGroup:
        return self.posterior.precision_layout.groups[-1]

    @property
    def sigmas(self) -> tuple[str, ...]:
        layout = self.posterior.precision_layout
        names = [*(group.name for group in layout.groups), *(part.name for part in layout.adjustments)]
        return tuple(name for name in names if name != NOISE)

    def with_multipliers(self, multipliers: tuple[float, ...]) -> NoisePath:
        return replace(self, multipliers=multipliers)

    def target(self, x: Array) -> SampledPosterior:
        return self.posterior  # the levels differ by their noise precisions alone

    hot = target

    def placed(self, state: ChainState, x: Array) -> ChainState:
        xp = array_namespace(x)
        held = xp.exp(xp.where(xp.isfinite(x), x, 0.0))[:, None] * self._ratios(xp)
        group, precisions = self.group, state.precisions.copy()
        is_held = xp.isfinite(x)
        columns = self.group.lowest_columns
        if group.units is not None:
            precisions[:, group.common] = xp.where(is_held, group.mean, precisions[:, group.common])
        else:
            held = held[:, :1]
        precisions[:, columns] = xp.where(is_held[:, None], held, precisions[:, columns])
        return replace(state, precisions=precisions)

    def offered(
        self, state: ChainState, streams: Streams, *, is_below: Array
    ) -> tuple[ChainState, NoiseEnergies]:
        xp, position, group = array_namespace(state.position), state.position, self.group
        if math.isfinite(group.prior.alphas[2]):
            return self._extended(state, TResiduals.of(self.posterior, position), streams, is_below)
        squares = Squares.of(self.posterior, position)
        if self._has_two_levels:
            return self._extended(state, squares, streams, is_below)
        of_top = None if group.is_fixed else squares.energy_without_noise(group)
        energies = NoiseEnergies(squares, squares.log_total(), self._ratios(xp), of_top)
        if group.is_fixed:
            return state, energies
        # All rows are drawn: to choose some, the host would have to wait for a device.
        drawn, columns, precisions = (
            self._drawn(squares, streams),
            group.lowest_columns,
            state.precisions.copy(),
        )
        precisions[:, columns] = xp.where(is_below[:, None], drawn, precisions[:, columns])
        return replace(state, precisions=precisions), energies

    def _extended(
        self, state: ChainState, residuals: Squares | TResiduals, streams: Streams, is_below: Array
    ) -> tuple[ChainState, NoiseEnergies]:
        """Return the state with proposed precisions in some rows, and the energies of the extended states.

        Of two free levels the state is extended by the common one, and those of targets are drawn given it.
        """
        group, xp = self.group, array_namespace(state.position)
        is_common = group.units is None or self._has_two_levels
        columns = group.common_column if is_common else group.units
        purpose = Purpose.NOISE_COMMON if is_common else Purpose.NOISE_TARGET
        joint = residuals.joint(group)
        proposal, precisions, is_new = joint.proposal(), state.precisions.copy(), is_below[:, None]
        proposed = xp.exp(proposal.drawn(streams, purpose))
        precisions[:, columns] = xp.where(is_new, proposed, precisions[:, columns])
        of_top = energy_of(joint, proposal, xp.log(precisions[:, columns]))
        if isinstance(residuals, Squares):
            measure, of_targets = residuals.log_total(), precisions[:, group.units]
            drawn = self._drawn(residuals, streams, mean=precisions[:, columns])
            precisions[:, group.units] = xp.where(is_new, drawn, of_targets)
        else:
            measure = proposal.log_scale()
        energies = NoiseEnergies(residuals, measure, self._ratios(xp), of_top)
        return replace(state, precisions=precisions), energies

    def _drawn(self, squares: Squares, streams: Streams, *, mean: Array | None = None) -> Array:
        """Draw the precisions of every row from their conditional distribution, as sample-noise does.

        mean  (n_rows, 1) the common precisions, if they are free too
        """
        group = self.group
        part = squares.total() if group.units is None else squares
        xp = array_namespace(part.sums)
        log_precisions = gibbs.log_precision_over_values(
            xp.where(xp.isfinite(part.sums), part.sums, 1.0),  # a state that overflows stays
            part.counts,
            alpha_of(group),
            xp.full((len(part.sums), 1), group.mean) if mean is None else mean,
            streams,
            use=Use(
                Purpose.NOISE_COMMON if group.units is None else Purpose.NOISE_TARGET, 0, part.sums.shape[1]
            ),
        )
        return xp.exp(log_precisions)

    def log_precisions(self, precisions: Array) -> Array:
        return array_namespace(precisions).log(noise_precisions(precisions, self.posterior.precision_layout))

    @property
    def _has_two_levels(self) -> bool:
        return all(math.isfinite(alpha) for alpha in self.group.prior.alphas[:2])

    def _ratios(self, xp: Any) -> Array:
        ratios: Array = xp.asarray(self.multipliers or (1.0,) * self.posterior.n_targets)
        return ratios


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
