"""Tests of whether targets can come from their predictive distributions.

All tests take rows of cases: the first row is of the targets themselves, and further rows are of replicates,
which do come from the predictive distributions. docs/diagnostics.md has the purpose of each test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

LEVELS = (0.5, 0.8, 0.95)
COVERAGE, UNIFORMITY, OUTLIERS, VARIATION = "coverage", "uniformity", "outliers", "variation"
RATE, CONFIDENCE, CURVATURE = "rate", "confidence", "curvature"
# Shares of the level. Half of that of variation is for the moments, and half for all inputs together.
_SHARES = {COVERAGE: 0.3, UNIFORMITY: 0.3, OUTLIERS: 0.1, VARIATION: 0.3}
_SHARES_OF_LABELS = {RATE: 0.25, CONFIDENCE: 0.5, CURVATURE: 0.25}
_LEAST_PLACE = 1e-16  # the distance of a place from 0 or 1 that float64 can tell
_MOST_LOGIT = 15.0
_FOLDED = 5  # values that an input has at least, if its ends are compared with its middle
_LEAST_P = 1e-300


@dataclass(frozen=True)
class Test:
    """The p-values of one test.

    kind   the kind of the test, such as COVERAGE
    of     the level of an interval, or the name of the covariate of the spread; "" for others
    p      (n_rows,) p-value of each row if cases were independent
    share  the part of the false-alarm rate that this test has
    sign   of the deviation: below zero if intervals hold too few targets, or if probabilities are too extreme
    """

    kind: str
    of: str
    p: Array
    share: float
    sign: float = 0.0

    @property
    def weighted(self) -> Array:
        """The p-values divided by the share, (n_rows,)."""
        return self.p / self.share


def joint_p(tests: list[Test]) -> float:
    """Return the p-value of all tests together.

    Without replicates it is that of Bonferroni with unequal shares, and otherwise the rank of the smallest
    weighted p-value among those of the replicates.
    """
    smallest = np.min([test.weighted for test in tests], axis=0)
    if len(smallest) == 1:
        return min(1.0, float(smallest[0]))
    n_as_small = int((smallest[1:] <= smallest[0] * (1 + 1e-12)).sum())
    return (1 + n_as_small) / len(smallest)


@dataclass(frozen=True)
class NumberCases:
    """The cases with a known target that is a number.

    low, high   (n_rows, n_cases) ends of the places of the targets
    place       (n_rows, n_cases) a random point between them
    covariates  (n_cases,) by name: the predicted value, its spread, and the inputs
    inputs      the names that are those of inputs
    """

    low: Array
    high: Array
    place: Array
    covariates: Mapping[str, Array]
    inputs: frozenset[str]

    def tests(self) -> list[Test]:
        """Return the tests of places."""
        anderson = Test(UNIFORMITY, "", anderson_darling(self.place), _SHARES[UNIFORMITY])
        return [*self._coverages(), anderson, self._outliers(), *self._variations()]

    def coverage(self, level: float, some: Array | slice = slice(None)) -> Array:
        """Return the share of cases within their central interval, (n_rows,)."""
        low, high = self.low[:, some], self.high[:, some]
        tail = (1 - level) / 2
        width = high - low
        is_wide = width > 0

        def below(at: float) -> Array:
            share = np.where(is_wide, (at - low) / np.where(is_wide, width, 1.0), at >= low)
            return np.clip(share, 0, 1)

        return np.asarray((below(1 - tail) - below(tail)).mean(axis=1))

    def values_of(self, covariate: str) -> Array:
        """Return the values of a covariate by the name that its test has, (n_cases,)."""
        for name, values in self.covariates.items():
            for test, of_test in _with_fold(name, values):
                if test == covariate:
                    return of_test
        raise KeyError(covariate)

    def _coverages(self) -> Iterator[Test]:
        n = self.low.shape[1]
        for level in LEVELS:
            share = self.coverage(level)
            p = binomial_p(np.round(share * n), n, level)
            yield Test(COVERAGE, f"{level:g}", p, _SHARES[COVERAGE] / len(LEVELS), float(share[0] - level))

    def _outliers(self) -> Test:
        """Test the target that is farthest out."""
        tail = np.minimum(self.place, 1 - self.place).min(axis=1).clip(_LEAST_PLACE)
        p = -np.expm1(self.place.shape[1] * np.log1p(-2 * np.minimum(tail, 0.5 - 1e-9)))
        return Test(OUTLIERS, "", p, _SHARES[OUTLIERS], -1.0)

    def _variations(self) -> Iterator[Test]:
        """Test whether the distance of targets from the middle varies with a covariate.

        Inputs that have several values are also tested for a difference between their ends and the middle.
        """
        spread = ranks(np.abs(self.place - 0.5))
        moments = [(name, values) for name, values in self.covariates.items() if name not in self.inputs]
        inputs = []
        for name in self.covariates:
            if name in self.inputs:
                inputs += list(_with_fold(name, self.covariates[name]))
        for group in (moments, inputs):
            share = _SHARES[VARIATION] / (2 if moments and inputs else 1) / max(len(group), 1)
            for name, values in group:
                yield Test(VARIATION, name, correlation_p(spread, ranks(values[None])), share)


def _with_fold(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    yield name, values
    if len(np.unique(values)) >= _FOLDED:
        yield f"the distance of {name} from its median", np.abs(values - np.median(values))


@dataclass(frozen=True)
class LabelCases:
    """The cases with a known target that may have some label.

    has_label    (n_rows, n_cases) bool
    probability  (n_cases,) of the label
    n_parameters effective number of parameters, if each case is predicted without itself
    """

    has_label: Array
    probability: Array
    n_parameters: float

    def tests(self) -> list[Test]:
        """Return score tests of log odds = a + b logit(p) + c logit(p)**2 at a = c = 0 and b = 1.

        A case pulls the predictions that leave it out away from itself, because the others have to make up
        for it: the scores of b and c are too small by about the effective number of parameters. Their
        variance is therefore enlarged by its square.
        """
        p = np.clip(self.probability, 1e-12, 1 - 1e-12)
        variance = p * (1 - p)
        slope = _centred(np.clip(scipy.special.logit(p), -_MOST_LOGIT, _MOST_LOGIT), variance)
        size = float(np.sqrt(np.average(slope**2, weights=variance)))
        bend = _centred(slope**2, variance)
        if size > 0:
            bend = bend - slope * np.average(bend * slope, weights=variance) / size**2
        excess = self.has_label - p
        allowed = {RATE: 0.0, CONFIDENCE: self.n_parameters, CURVATURE: 2 * size * self.n_parameters}
        scores = zip(allowed, (np.ones_like(p), slope, bend), strict=True)
        return [self._test(kind, excess, score, variance, allowed[kind]) for kind, score in scores]

    def _test(self, kind: str, excess: Array, score: Array, variance: Array, allowed: float) -> Test:
        of_rows = np.full(len(excess), (variance * score**2).sum())
        of_rows[0] += allowed**2
        total = excess @ score
        z = np.divide(total, np.sqrt(of_rows), out=np.zeros(len(total)), where=of_rows > 1e-12)
        return Test(kind, "", _two_sided(z), _SHARES_OF_LABELS[kind], float(np.sign(total[0])))


def _centred(values: Array, weights: Array) -> Array:
    return np.asarray(values - np.average(values, weights=weights))


def anderson_darling(places: Array) -> Array:
    """Return the p-value of uniformity of each row, (n_rows,).

    The statistic of Anderson and Darling (1954) weighs both tails; its distribution for many cases is that of
    Marsaglia and Marsaglia (2004), "Evaluating the Anderson-Darling distribution".

    places  (n_rows, n_cases)
    """
    n = places.shape[1]
    ordered = np.sort(np.clip(places, _LEAST_PLACE, 1 - _LEAST_PLACE), axis=1)
    odd = 2 * np.arange(1, n + 1) - 1
    square = -n - ((np.log(ordered) + np.log1p(-ordered[:, ::-1])) @ odd) / n
    return _anderson_p(square)


def _anderson_p(square: Array) -> Array:
    z = np.clip(square, 1e-3, None)
    low = np.minimum(z, 2.0)
    poly = np.polyval([0.00168691, -0.011672, 0.0347962, -0.0649821, 0.247105, 2.00012], low)
    below = 1 - np.exp(-1.2337141 / low) / np.sqrt(low) * poly
    high = np.clip(z, 2.0, 12.0)
    poly = np.polyval([-0.0003146, 0.008056, -0.082433, 0.43424, -2.30695, 1.0776], high)
    above = -np.expm1(-np.exp(poly)) * np.exp(-np.maximum(z - 12.0, 0))
    return np.clip(np.where(z < 2.0, below, above), _LEAST_P, 1.0)


def binomial_p(counts: Array, n: int, share: float) -> Array:
    """Return two-sided p-values of binomial counts: twice the smaller tail."""
    at_most = scipy.special.bdtr(counts, n, share)
    at_least = np.where(counts > 0, scipy.special.bdtrc(np.maximum(counts - 1, 0), n, share), 1.0)
    return np.clip(2 * np.minimum(at_most, at_least), _LEAST_P, 1.0)


def ranks(values: Array) -> Array:
    """Return the ranks in each row, centred and scaled to a sum of squares of one; zeros if all are equal."""
    n = values.shape[1]
    order = np.argsort(values, axis=1, kind="stable")
    of_sorted = np.take_along_axis(values, order, axis=1)
    is_new = np.concatenate([np.ones((len(values), 1), bool), of_sorted[:, 1:] != of_sorted[:, :-1]], axis=1)
    place = np.arange(n)[None]
    first = np.maximum.accumulate(np.where(is_new, place, 0), axis=1)
    is_last = np.concatenate([is_new[:, 1:], np.ones((len(values), 1), bool)], axis=1)
    last = np.minimum.accumulate(np.where(is_last, place, n)[:, ::-1], axis=1)[:, ::-1]
    result = np.empty(values.shape)
    np.put_along_axis(result, order, (first + last) / 2, axis=1)
    result -= result.mean(axis=1, keepdims=True)
    size = np.sqrt((result**2).sum(axis=1, keepdims=True))
    return np.divide(result, size, out=np.zeros_like(result), where=size > 0)


def correlation_p(spread: Array, covariate: Array) -> Array:
    """Return two-sided p-values of Spearman's rank correlation, (n_rows,); the arguments are from `ranks`."""
    n = spread.shape[1]
    correlation = np.clip((spread * covariate).sum(axis=1), -1 + 1e-12, 1 - 1e-12)
    t = correlation * np.sqrt((n - 2) / (1 - correlation**2))
    return np.clip(2 * scipy.special.stdtr(n - 2, -np.abs(t)), _LEAST_P, 1.0)


def _two_sided(z: Array) -> Array:
    return np.clip(2 * scipy.special.ndtr(-np.abs(z)), _LEAST_P, 1.0)


def limits_of_share(n: int, share: float, probability: float = 0.95) -> tuple[float, float]:
    """Return the limits within which a binomial share lies with a probability of at least `probability`."""
    counts = np.arange(n + 1)
    at_most = scipy.special.bdtr(counts, n, share)
    tail = (1 - probability) / 2
    low, high = (int((at_most < share_below).sum()) for share_below in (tail, 1 - tail))
    return low / n, min(high, n) / n
