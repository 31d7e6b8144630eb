"""Tests of whether targets can come from their predictive distributions.

All tests take rows of cases: the first row is of the targets themselves, and further rows are of replicates,
which do come from the predictive distributions. docs/diagnostics.md has the purpose of each test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import scipy.special

from rayfbnn.answers.judging.mean_features import PREDICTED_VALUE, SHARES, VALUE, Feature, features
from rayfbnn.answers.judging.p_values import (
    LEAST_PLACE,
    anderson_darling,
    binomial_p,
    correlation_p,
    normal_scores,
    ranks,
    two_sided,
)
from rayfbnn.arrays import Array

LEVELS = (0.5, 0.8, 0.95)
COVERAGE, UNIFORMITY, OUTLIERS, VARIATION = "coverage", "uniformity", "outliers", "variation"
RATE, CONFIDENCE, CURVATURE = "rate", "confidence", "curvature"
MEAN = "mean"
# Shares of the level. Half of that of variation is for the moments, and half for all inputs together.
_SHARES = {COVERAGE: 0.15, UNIFORMITY: 0.1, OUTLIERS: 0.05, VARIATION: 0.35, MEAN: 0.35}
_SHARES_OF_LABELS = {RATE: 0.15, CONFIDENCE: 0.35, CURVATURE: 0.15, MEAN: 0.35}
_AT_ONCE = 256  # features held at a time
_MOST_LOGIT = 15.0
_FOLDED = 5  # values that an input has at least, if its ends are compared with its middle


@dataclass(frozen=True)
class Test:
    """The p-values of one test.

    kind   the kind of the test, such as COVERAGE
    of     the level of an interval, the name of the covariate of the spread, or the name of a feature that
           the mean may miss; "" for others
    p      (n_rows,) p-value of each row if cases were independent
    share  the part of the false-alarm rate that this test has
    sign   of the deviation: below zero if intervals hold too few targets, if probabilities are too extreme,
           or if targets fall where the feature rises
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


def calibrated(test: Test) -> Test:
    """Return a test with p-values that allow for anything that a replicate shares, such as the network.

    The normal score of each p-value is divided by its root mean square over all rows. Otherwise the tests
    that depend most on the uncertainty of the networks would have the smallest p-values of most replicates,
    and the rank of the smallest p-value would hide what other tests find.
    """
    if len(test.p) == 1:
        return test
    score = -scipy.special.ndtri(test.p / 2)
    size = float(np.sqrt(np.mean(score**2)))
    return replace(test, p=two_sided(score / size)) if size > 0 else test


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
    has_order   whether a trend over the rows can mean something
    pull        standard deviation that the score of the predicted value has because each case pulls it; it is
                relative to that of chance, and zero unless each case is predicted without itself
    """

    low: Array
    high: Array
    place: Array
    covariates: Mapping[str, Array]
    inputs: frozenset[str]
    has_order: bool = False
    pull: float = 0.0

    def tests(self) -> list[Test]:
        """Return the tests of places."""
        anderson = Test(UNIFORMITY, "", anderson_darling(self.place), _SHARES[UNIFORMITY])
        return [*self._coverages(), anderson, self._outliers(), *self._variations(), *self._means()]

    def features(self) -> Iterator[Feature]:
        """Yield the features that the mean may miss."""
        inputs = {name: values for name, values in self.covariates.items() if name in self.inputs}
        return features(inputs, self.covariates.get(PREDICTED_VALUE), has_order=self.has_order)

    def without(self, names: Iterable[str]) -> NumberCases:
        """Return places of all rows without the part that the named features explain.

        A model with the features would expect less noise. If the remaining scores vary less than those of a
        right model, they are therefore enlarged to its spread.
        """
        named = set(names)
        columns = [
            values
            for feature in self.features()
            if feature.name in named
            for values in (
                feature.values,
                feature.plain / max(float(np.abs(feature.plain).max()), LEAST_PLACE),
            )
        ]
        basis = np.column_stack([np.ones(self.place.shape[1]), *columns])
        scores = normal_scores(self.place)
        rest = scores - (basis @ np.linalg.lstsq(basis, scores.T, rcond=None)[0]).T
        place = scipy.special.ndtr(rest / np.minimum(1.0, rest.std(axis=1, keepdims=True)))
        return replace(self, low=place, high=place, place=place)

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
        tail = np.minimum(self.place, 1 - self.place).min(axis=1).clip(LEAST_PLACE)
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

    def _means(self) -> list[Test]:
        """Test whether scores of places depend on features of the mean.

        If the spread is large where the feature is, the sum of squares is more than the one expected.
        """
        scores = normal_scores(self.place)
        scores -= scores.mean(axis=1, keepdims=True)
        squares = scores**2

        def statistics(some: list[Feature]) -> Array:
            values = np.stack([feature.values for feature in some], axis=1)
            z = scores @ values / np.sqrt(np.maximum(squares @ values**2, 1.0))
            z[0, [feature.group == VALUE for feature in some]] /= np.hypot(1, self.pull)
            return np.asarray(z)

        return _mean_tests(self.features(), statistics, _SHARES[MEAN])


def _mean_tests(
    every: Iterator[Feature], statistics: Callable[[list[Feature]], Array], share: float
) -> list[Test]:
    """Return a test of each feature; the groups of features have the parts SHARES of the share.

    statistics  returns the standard normal statistics of features, (n_rows, n_features)
    """
    names, groups, parts = [], [], []
    while some := list(islice(every, _AT_ONCE)):
        names += [feature.name for feature in some]
        groups += [feature.group for feature in some]
        parts.append(statistics(some).T)
    of_all = sum(SHARES[group] for group in set(groups))
    return [
        Test(
            MEAN,
            name,
            two_sided(z),
            share * SHARES[group] / of_all / groups.count(group),
            float(np.sign(z[0])),
        )
        for name, group, z in zip(names, groups, (row for part in parts for row in part), strict=True)
    ]


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
    inputs       (n_cases,) by name
    has_order    whether a trend over the rows can mean something
    """

    has_label: Array
    probability: Array
    n_parameters: float
    inputs: Mapping[str, Array] = field(default_factory=dict)
    has_order: bool = False

    def features(self) -> Iterator[Feature]:
        """Yield the features that the log odds may miss, besides functions of themselves."""
        found = features(self.inputs, self.probability, has_order=self.has_order)
        return (feature for feature in found if feature.group != VALUE)

    def tests(self) -> list[Test]:
        """Return score tests of log odds = a + b logit(p) + c logit(p)**2 + d f at a = c = d = 0 and b = 1.

        Each feature f has its own test.
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
        of_probability = [self._test(kind, excess, score, variance, allowed[kind]) for kind, score in scores]
        return [*of_probability, *self._means(excess, variance)]

    def _means(self, excess: Array, variance: Array) -> list[Test]:
        def statistics(some: list[Feature]) -> Array:
            scores = np.stack([_centred(feature.values, variance) for feature in some], axis=1)
            sizes = np.sqrt(variance @ scores**2)
            return np.asarray(excess @ scores / np.maximum(sizes, 1e-6))

        return _mean_tests(self.features(), statistics, _SHARES_OF_LABELS[MEAN])

    def _test(self, kind: str, excess: Array, score: Array, variance: Array, allowed: float) -> Test:
        of_rows = np.full(len(excess), (variance * score**2).sum())
        of_rows[0] += allowed**2
        total = excess @ score
        z = np.divide(total, np.sqrt(of_rows), out=np.zeros(len(total)), where=of_rows > 1e-12)
        return Test(kind, "", two_sided(z), _SHARES_OF_LABELS[kind], float(np.sign(total[0])))


def _centred(values: Array, weights: Array) -> Array:
    return np.asarray(values - np.average(values, weights=weights))
