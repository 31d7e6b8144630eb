"""The search for quantiles and modes of mixtures over draws, given sums over the draws at current guesses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.records import QuantileScale

_CLOSE = 5e-3  # standard deviations that a last step of Halley's method, which cubes the error, may have
_PATIENCE = 6  # rounds before every second one bisects: Halley's steps are slow between far modes
_MAX_ROUNDS = 300  # a float64 bracket shrinks to neighbouring numbers in fewer rounds
_FAR = 1e3  # wider brackets are halved by order of magnitude
_LARGEST_LOG = 690.0
_LARGEST_COUNT = 1e300
_MAX_FIRST = 4096  # candidates for a mode
_CANDIDATES = 17  # for a mode, in later rounds


class QuantileSearch:
    """The guesses at quantiles, with brackets that shrink round by round.

    With G(x) = probit(F(x)), which is nearly a straight line, Halley's step towards G = probit(p) is
    -2 r G' / (2 G'^2 - r G''), where r = G - probit(p), G' = f / phi(G) and G'' = f' / phi(G) + G G'^2. A
    step that leaves the bracket is replaced by a bisection. The quantile of a count is the smallest whole
    number with F at least p.

    Attributes
    ----------
    x : (n_probabilities, n_cases, n_targets)
        The guesses on the working scale: that of the targets, or its logarithm for times.
    is_done : bool, same shape
        Whether a quantile is found.
    """

    def __init__(
        self, probabilities: Sequence[float], mean: Array, spread: Array, *, scale: QuantileScale
    ) -> None:
        """Start from a Gaussian with the mean and the standard deviation, (n_cases, n_targets) each."""
        self._scale = scale
        self._probabilities = np.asarray(probabilities)[:, None, None]
        self._goals = scipy.special.ndtri(self._probabilities)
        with np.errstate(divide="ignore"):
            center = np.log(mean) if scale == "log" else mean
        center = np.nan_to_num(center, nan=0.0, posinf=_LARGEST_LOG, neginf=-_LARGEST_LOG)
        usable = np.isfinite(spread) & (spread > 0)
        width = np.ones_like(center) if scale == "log" else np.where(usable, spread, 1 + np.abs(center))
        shape = (len(self._probabilities), *center.shape)
        self._width = np.broadcast_to(width, shape).copy()
        self.x = self._allowed(center + self._width * self._goals)
        self._low, self._high = np.full(shape, -np.inf), np.full(shape, np.inf)
        if scale == "whole":
            self._low[:] = -1.0
        self.is_done = np.zeros(shape, dtype=bool)
        self._round = 0

    @property
    def pending_cases(self) -> Array:
        """Numbers of the cases with a quantile that is not found yet."""
        if self._round == _MAX_ROUNDS:
            raise AssertionError(f"{(~self.is_done).sum()} quantiles not found in {_MAX_ROUNDS} rounds")
        return np.flatnonzero(~self.is_done.all(axis=(0, 2)))

    def guesses(self, cases: Array) -> Array:
        """Return the guesses for some cases on the scale of the targets."""
        return np.exp(self.x[:, cases]) if self._scale == "log" else self.x[:, cases]

    def improve(self, cases: Array, sums: Array, n_draws: int) -> None:
        """Improve the guesses for some cases.

        sums  (3, n_probabilities, n_some_cases, n_targets): of F, f and f' over the draws at `guesses`; f
              is the density on the working scale, or the probability of a count, for which f' is NaN
        """
        with np.errstate(all="ignore"):
            self._improve(cases, *(sums / n_draws))
        self._round += 1

    def _improve(self, cases: Array, cdf: Array, density: Array, slope: Array) -> None:
        at = (slice(None), cases)
        x, was_done = self.x[at], self.is_done[at]
        is_above = cdf >= self._probabilities
        low, high = np.where(is_above, self._low[at], x), np.where(is_above, x, self._high[at])
        residual, step, rate = _halley(cdf, self._goals, density, slope)
        proposal = x + step
        if self._scale == "whole":
            proposal = np.clip(np.floor(proposal), low + 1, high - 1)
        bisects = self._round >= _PATIENCE and self._round % 2 == 0
        is_taken = (proposal >= low) & (proposal <= high) & (not bisects)  # False if the step is NaN
        outside = x + np.where(np.isinf(high), 1.0, -1.0) * self._width[at] * 2.0**self._round
        middle = np.where(np.isinf(low) | np.isinf(high), outside, _middle(low, high))
        if self._scale == "whole":
            is_close, is_narrow = np.zeros_like(was_done), high - low <= np.maximum(1, np.spacing(high))
        else:
            is_close = is_taken & (np.abs(residual) < _CLOSE) & (np.abs(step) * rate < _CLOSE)
            is_narrow = high - low <= 4 * np.spacing(np.maximum(np.abs(low), np.abs(high)))
        new = np.where(is_narrow, high, self._allowed(np.where(is_taken, proposal, middle)))
        for kept, value in ((self.x, new), (self._low, low), (self._high, high)):
            kept[at] = np.where(was_done, kept[at], value)
        self.is_done[at] = was_done | is_narrow | is_close

    def _allowed(self, x: Array) -> Array:
        if self._scale == "whole":
            return np.clip(np.floor(x), 0, _LARGEST_COUNT)
        return np.clip(x, -_LARGEST_LOG, _LARGEST_LOG) if self._scale == "log" else x


def most_probable(mass: Callable[[Array], Array], low: Array, high: Array) -> tuple[Array, Array]:
    """Return the most probable whole number of each mixture between low and high, and its probability.

    The first candidates are a quarter of a standard deviation apart, because a Poisson distribution, and so
    the mixture, is smooth on that scale. The search goes on among the numbers next to the best one. For
    counts above a few hundred thousand, the 4,096 first candidates are further apart and may miss a narrow
    peak.

    mass       returns the probabilities of numbers (n_numbers, ...)
    low, high  (...) whole numbers, such as the 1 % and 99 % points
    """
    # Even steps of the square root are proportional to the standard deviation.
    roots = np.sqrt(low), np.sqrt(high)
    n_first = int(min(_MAX_FIRST, 8 * (roots[1] - roots[0]).max() + 2))
    numbers = np.floor(np.linspace(*roots, n_first) ** 2)
    while True:
        probabilities = mass(numbers)
        best = probabilities.argmax(axis=0)[None]
        mode = np.take_along_axis(numbers, best, axis=0)[0]
        largest = np.minimum(np.take_along_axis(probabilities, best, axis=0)[0], 1.0)  # despite rounding
        first = np.where(numbers < mode, numbers, low).max(axis=0)
        last = np.where(numbers > mode, numbers, high).min(axis=0)
        if (last - first <= np.maximum(2, 2 * np.spacing(last))).all():
            return mode, largest
        numbers = np.floor(np.linspace(first, last, _CANDIDATES))
        numbers[_CANDIDATES // 2] = mode


def _halley(cdf: Array, goals: Array, density: Array, slope: Array) -> tuple[Array, Array, Array]:
    """Return the residual of the probit, Halley's step towards zero, and the derivative of the probit.

    Where the slope is NaN, because it is not known, the step is Newton's.
    """
    g = scipy.special.ndtri(np.clip(cdf, 0, 1))
    residual = g - goals
    phi = np.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)
    rate = density / phi
    curvature = np.where(np.isnan(slope), 0.0, slope / phi + g * rate**2)
    return residual, -2 * residual * rate / (2 * rate**2 - residual * curvature), rate


def _middle(low: Array, high: Array) -> Array:
    """Return the midpoint of brackets; wide brackets are halved on the arsinh scale, by orders of magnitude.

    Plain halving would take a thousand rounds from 1e200 to a quantile near one.
    """
    by_magnitude = np.sinh((np.arcsinh(low) + np.arcsinh(high)) / 2)
    is_far = high / 2 - low / 2 > _FAR * np.maximum(np.maximum(low, -high), 1.0)
    return np.asarray(np.where(is_far, by_magnitude, low / 2 + high / 2))
