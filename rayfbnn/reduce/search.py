"""The search for quantiles and modes of mixtures over draws, given sums over the draws at current guesses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.data_model import QuantileScale

_CLOSE = 5e-3  # standard deviations that a last step of Halley's method, which cubes the error, may have
_SHORT = 0.2  # standard deviations that a step may have that some of the draws correct
_MOST_CORRECTION, _MOST_ERROR = 5e-4, 1e-5  # standard deviations of the correction, and of its error
_PROGRESS = 0.5  # a round without it is followed by a bisection: Halley's steps are slow between far modes
_SLACK = 1e-5
_ROUNDING = 1e-9  # of distribution functions of counts
_NEAR_ROUNDS = 8
_TINY = 1e-299
_MAX_ROUNDS = 300  # a float64 bracket shrinks to neighbouring numbers in fewer rounds
_FAR = 1e3  # wider brackets are halved by order of magnitude
_LARGEST_LOG = 690.0
_LARGEST_COUNT = 4e300  # rates are at most 1e300
_LARGEST = float(np.finfo(np.float64).max)
_MAX_FIRST = 4096  # candidates for a mode
_CANDIDATES = 17  # for a mode, in later rounds


@dataclass(frozen=True)
class Guesses:
    """Some guesses at quantiles of some cases.

    cases   (n_some_cases,) numbers
    values  (n_guesses, n_some_cases, n_targets) on the scale of the targets
    place   where they stand in the arrays of the search
    """

    cases: Array
    values: Array
    place: tuple[Array, ...]


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
        self,
        probabilities: Sequence[float],
        mean: Array,
        sd: Array,
        *,
        scale: QuantileScale,
        dtype: str = "float64",
        start: Array | None = None,
    ) -> None:
        """Start from a Gaussian with the mean and the standard deviation, (n_cases, n_targets) each.

        A quantile is at most sqrt((1 - p) / p) standard deviations below the mean, and at most
        sqrt(p / (1 - p)) above it (Cantelli's inequality), which gives the first bracket.

        sd     of the distribution; infinite or NaN if it has none
        dtype  the type in which sums are computed; guesses among all numbers are rounded to it
        start  better first guesses on the scale of the targets, (n_probabilities, n_cases, n_targets)
        """
        self._scale, self._dtype = scale, np.dtype(dtype)
        self._probabilities = p = np.asarray(probabilities)[:, None, None]
        self._goals = scipy.special.ndtri(p)
        known = np.isfinite(sd) & np.isfinite(mean)
        mean, sd = np.where(known, mean, 0.0), np.where(known, sd, 1.0)
        low, high = mean - sd * np.sqrt((1 - p) / p), mean + sd * np.sqrt(p / (1 - p))
        slack = _SLACK * (np.abs(mean) + sd)  # for rounding
        self._low, self._high = (
            np.where(known, x, end) for x, end in ((low - slack, -np.inf), (high + slack, np.inf))
        )
        guess = mean + sd * self._goals
        with np.errstate(divide="ignore", invalid="ignore"):
            if scale == "log":
                guess = (
                    np.log(np.maximum(mean, _TINY))
                    + np.minimum(sd / np.maximum(mean, _TINY), 1) * self._goals
                )
                self._low = np.log(np.maximum(self._low, _TINY))
                self._high = np.log(np.maximum(self._high, _TINY))
        if scale == "whole":
            self._low, self._high = np.maximum(np.floor(self._low), -1.0), np.ceil(self._high)
        shape = guess.shape
        self._width = np.broadcast_to(np.ones_like(sd) if scale == "log" else sd, shape)
        self._residual = np.full(shape, np.inf)
        self._low, self._high = (
            np.broadcast_to(self._low, shape).copy(),
            np.broadcast_to(self._high, shape).copy(),
        )
        if start is not None:
            guess = np.log(start) if scale == "log" else start
        self.x = np.clip(self._allowed(guess), self._low, self._high)
        self._step = np.full(shape, np.nan)
        self.is_done = np.zeros(shape, dtype=bool)
        self._round = 0

    @property
    def values(self) -> Array:
        """The guesses on the scale of the targets, (n_probabilities, n_cases, n_targets)."""
        return np.exp(self.x) if self._scale == "log" else self.x

    def rounds(self) -> Iterator[list[Guesses]]:
        """Yield the guesses of each round until all quantiles are found; `improve` must be called with each.

        Cases with as many quantiles to find are together, so that no sums are computed in vain.
        """
        for self._round in range(_MAX_ROUNDS):
            n_pending = (~self.is_done).sum(axis=0).max(axis=1)  # (n_cases,)
            counts = [int(count) for count in np.unique(n_pending) if count > 0]
            if not counts:
                return
            yield [self._guesses(np.flatnonzero(n_pending == count), count) for count in counts]
        raise AssertionError(f"{(~self.is_done).sum()} quantiles not found in {_MAX_ROUNDS} rounds")

    def _guesses(self, cases: Array, count: int) -> Guesses:
        which = np.argsort(self.is_done[:, cases], axis=0, kind="stable")[:count]
        place = which, cases[:, None], np.arange(self.is_done.shape[2])
        return Guesses(cases, self.values[place], place)

    def improve(self, guesses: Guesses, sums: Array, n_draws: int) -> None:
        """Improve some guesses.

        sums  (3, *guesses.values.shape): of F, f and f' over the draws; f is the density on the working
              scale, or the probability of a count, for which f' is NaN
        """
        with np.errstate(all="ignore"):
            self._improve(guesses.place, *(sums / n_draws))

    def _improve(self, at: tuple[Array, ...], cdf: Array, density: Array, slope: Array) -> None:
        x, was_done = self.x[at], self.is_done[at]
        probabilities, goals = self._probabilities[at[0], 0, 0], self._goals[at[0], 0, 0]
        is_above = cdf >= probabilities
        low, high = np.where(is_above, self._low[at], x), np.where(is_above, x, self._high[at])
        residual, step, rate, _ = _probit(goals, cdf, density, slope)
        proposal = x + step
        if self._scale == "whole":
            # The sum without the number itself is F at the number before.
            before = cdf - density - probabilities
            high = np.where(before > _ROUNDING, x - 1, high)
            low = np.where(before < -_ROUNDING, np.maximum(low, x - 1), low)
            is_near = (proposal >= low - 1) & (proposal <= high + 1)
            proposal = np.where(is_near, np.clip(np.floor(proposal), low + 1, high - 1), np.nan)
        has_progress = np.abs(residual) < _PROGRESS * self._residual[at]
        is_taken = (proposal >= low) & (proposal <= high) & has_progress  # False if the step is NaN
        reach = self._width[at] * 2.0**self._round
        if self._round > _NEAR_ROUNDS:  # no end in sight: by order of magnitude
            reach = np.maximum(reach, np.minimum(np.abs(x), _LARGEST ** (2 / 3)) ** 1.5)
        outside = x + np.where(np.isinf(high), reach, -reach)
        middle = np.where(np.isinf(low) | np.isinf(high), outside, _middle(low, high))
        if self._scale == "whole":
            is_taken &= (proposal > low) & (proposal < high)
            is_close, is_narrow = np.zeros_like(was_done), high - low <= np.maximum(1, np.spacing(high))
        else:
            is_close = is_taken & (np.abs(residual) < _CLOSE) & (np.abs(step) * rate < _CLOSE)
            ends = np.maximum(np.abs(low), np.abs(high)).astype(self._dtype)
            is_narrow = high - low <= 4 * np.spacing(ends)
        new = np.where(is_narrow, high, self._allowed(np.where(is_taken, proposal, middle)))
        new = np.where(is_close, proposal, new)
        # After a bisection any step is progress.
        reached = np.where(is_taken, np.abs(residual), np.inf)
        taken = np.where(is_taken & ~is_narrow, step, np.nan)
        for kept, value in (
            (self.x, new),
            (self._low, low),
            (self._high, high),
            (self._residual, reached),
            (self._step, taken),
        ):
            kept[at] = np.where(was_done, kept[at], value)
        self.is_done[at] = was_done | is_narrow | is_close

    def has_short_steps(self, guesses: Guesses) -> bool:
        """Return whether `confirm` can end the search for some of the quantiles."""
        return self._scale != "whole" and bool(self._is_open(guesses).any())

    def _is_open(self, guesses: Guesses) -> Array:
        at = guesses.place
        return ~self.is_done[at] & (np.abs(self._step[at]) < _SHORT * self._width[at])

    @np.errstate(all="ignore")
    def confirm(self, guesses: Guesses, before: Array, there: Array) -> None:
        """Correct the last steps by groups of draws, and end the search where the groups agree.

        Halley's step is the root of r + G' d / (1 - G'' d / 2 G'). What is left out, a term of third order,
        is easily computed for some of the draws. It is nearly the same for all draws if it is the same for
        each of several groups of them.

        before, there  means of F, f and f' at the guesses, and at the values after the steps, for groups of
                       draws of about the same size, (n_groups, 3, *guesses.values.shape)
        """
        at = guesses.place
        step, width, is_open = self._step[at], self._width[at], self._is_open(guesses)
        goals, x = self._goals[at[0], 0, 0], self.x[at]
        before, there = np.moveaxis(before, 1, 0), np.moveaxis(there, 1, 0)
        residual, _, rate, curvature = _probit(goals, *before)
        expected = rate * step / (1 - curvature * step / (2 * rate))
        residual_there, _, rate_there, _ = _probit(goals, *there)
        corrections = (residual_there - residual - expected) / rate_there
        correction = corrections.mean(axis=0)
        error = corrections.std(axis=0, ddof=1) / math.sqrt(len(corrections))
        is_known = is_open & (error < _MOST_ERROR * width) & (np.abs(correction) < _MOST_CORRECTION * width)
        self.x[at] = np.where(is_known, x - correction, x)
        self.is_done[at] |= is_known

    def _allowed(self, x: Array) -> Array:
        if self._scale == "whole":
            return np.clip(np.floor(x), 0, _LARGEST_COUNT)
        if self._scale == "log":
            return np.clip(x, -_LARGEST_LOG, _LARGEST_LOG)
        largest = np.finfo(self._dtype).max
        return np.clip(x, -largest, largest).astype(self._dtype).astype(np.float64)


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


def _probit(goals: Array, cdf: Array, density: Array, slope: Array) -> tuple[Array, Array, Array, Array]:
    """Return the residual of the probit, Halley's step towards zero, and both derivatives of the probit.

    Where the slope is NaN, because it is not known, the step is Newton's.
    """
    g = scipy.special.ndtri(np.clip(cdf, 0, 1))
    residual = g - goals
    phi = np.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)
    rate = density / phi
    curvature = np.where(np.isnan(slope), 0.0, slope / phi + g * rate**2)
    return residual, -2 * residual * rate / (2 * rate**2 - residual * curvature), rate, curvature


def _middle(low: Array, high: Array) -> Array:
    """Return the midpoint of brackets; wide brackets are halved on the arsinh scale, by orders of magnitude.

    Plain halving would take a thousand rounds from 1e200 to a quantile near one.
    """
    by_magnitude = np.sinh((np.arcsinh(low) + np.arcsinh(high)) / 2)
    is_far = high / 2 - low / 2 > _FAR * np.maximum(np.maximum(low, -high), 1.0)
    return np.asarray(np.where(is_far, by_magnitude, low / 2 + high / 2))
