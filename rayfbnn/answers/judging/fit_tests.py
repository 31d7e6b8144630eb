"""Tests of whether targets can come from their predictive distributions.

All tests take rows of cases: the first row is of the targets themselves, and further rows are of replicates,
which do come from the predictive distributions. docs/diagnostics.md has the purpose of each test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

VALUE, INPUTS, ROWS, PRODUCTS = "value", "inputs", "rows", "products"
SHARES = {VALUE: 0.1, INPUTS: 0.45, ROWS: 0.15, PRODUCTS: 0.3}
PREDICTED_VALUE = "the predicted value"
SLOPE_OF_VALUE = f"a slope in {PREDICTED_VALUE}"
_LEADING = 5  # inputs with products that are tested
_ONE_WAY = 0.9  # share of the steps between rows that go one way, if the rows are sorted by the target
_MIXED = 0.5  # changes of label between rows, relative to a random order; fewer if rows are sorted by label


@dataclass(frozen=True)
class Feature:
    """A function of the cases.

    name    in words, such as "a curve in x1"
    group   VALUE, INPUTS, ROWS or PRODUCTS
    of      the names of the inputs; none for the predicted value and the rows
    low     where the function is lowest, in words
    high    where it is highest
    values  (n_cases,) of ranks, with mean zero and a sum of squares of one; all zeros if it does not vary
    plain   (n_cases,) the same function of the covariates themselves
    """

    name: str
    group: str
    of: tuple[str, ...]
    low: str
    high: str
    values: Array
    plain: Array


def features(inputs: Mapping[str, Array], predicted: Array | None, *, has_order: bool) -> Iterator[Feature]:
    """Yield all features of some cases.

    inputs     (n_cases,) by name
    predicted  (n_cases,) predicted values; None without features of them
    has_order  whether the order of the rows is a feature
    """
    if predicted is not None:
        yield from _alone(VALUE, PREDICTED_VALUE, (), predicted)
    for name, values in inputs.items():
        yield from _alone(INPUTS, name, (name,), values)
    n_cases = len(next(iter(inputs.values()), ()))
    if has_order and n_cases:
        where = "in the first third of the rows", "in the last third"
        numbers = np.arange(float(n_cases))
        yield Feature("a trend over the rows", ROWS, (), *where, _ranks(numbers), numbers)
    for first, second in itertools.combinations(_leading(inputs, predicted), 2):
        one, other = inputs[first], inputs[second]
        plain = (one - np.median(one)) * (other - np.median(other))
        one, other = _ranks(one), _ranks(other)
        both = f"where {first} and {second} deviate from their medians"
        where = f"{both} in opposite directions", "where they do in the same direction"
        values = _beyond(one * other, one, other)
        yield Feature(f"a product of {first} and {second}", PRODUCTS, (first, second), *where, values, plain)


def _alone(group: str, name: str, of: tuple[str, ...], covariate: Array) -> Iterator[Feature]:
    """Yield a slope and a curve; a covariate of two values has no curve."""
    ranked = _ranks(covariate)
    where = f"where {name} is lowest", "where it is highest"
    yield Feature(f"a slope in {name}", group, of, *where, ranked, covariate)
    curve = _beyond(ranked**2, ranked)
    if curve.any():
        where = f"where {name} is near its median", "where it is far from it"
        plain = (covariate - np.median(covariate)) ** 2
        yield Feature(f"a curve in {name}", group, of, *where, curve, plain)


def _leading(inputs: Mapping[str, Array], predicted: Array | None) -> list[str]:
    """Return the names of the inputs that predicted values depend on most, in the order of the inputs."""
    if len(inputs) <= _LEADING or predicted is None:
        return list(inputs)[:_LEADING]
    ranked = _ranks(predicted)
    strength = [-abs(float(_ranks(values) @ ranked)) for values in inputs.values()]
    leading = np.sort(np.argsort(strength, kind="stable")[:_LEADING])
    return [list(inputs)[at] for at in leading]


def _ranks(values: Array) -> Array:
    return np.asarray(ranks(values[None])[0])


def _beyond(values: Array, *others: Array) -> Array:
    """Return the part of a feature that no straight function of others, with means of zero, explains."""
    basis = np.column_stack([np.ones(len(values)), *others])
    rest = values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    size, before = np.linalg.norm(rest), np.linalg.norm(values)
    return np.asarray(rest / size if size > 1e-6 * before else np.zeros_like(rest))


def has_order(targets: Array) -> bool:
    """Return True if numbers are not sorted, because only then can a trend over their rows mean something.

    The rows may be sorted in one piece or in several; equal neighbours say nothing.

    targets  (n_cases,) without missing values
    """
    steps = np.sign(np.diff(targets))
    n_up, n_down = int((steps > 0).sum()), int((steps < 0).sum())
    return max(n_up, n_down) < _ONE_WAY * (n_up + n_down)


def labels_have_order(has_label: Array) -> bool:
    """Return whether cases are not sorted or grouped by their label."""
    share, n_changes = has_label.mean(), int((has_label[1:] != has_label[:-1]).sum())
    return bool(n_changes > _MIXED * 2 * share * (1 - share) * len(has_label))


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

    def strength(self) -> float:
        """Return the weighted p-value of the targets; the smaller, the stronger the evidence."""
        return float(self.weighted[0])


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


LEAST_PLACE = 1e-16  # the distance of a place from 0 or 1 that float64 can tell
_LEAST_P = 1e-300


def normal_scores(places: Array) -> Array:
    """Return the standard normal quantiles of places; those at 0 or 1 are about 8.2 from the middle."""
    return np.asarray(scipy.special.ndtri(np.clip(places, LEAST_PLACE, 1 - LEAST_PLACE)))


def anderson_darling(places: Array) -> Array:
    """Return the p-value of uniformity of each row, (n_rows,).

    The statistic of Anderson and Darling (1954) weighs both tails; its distribution for many cases is that of
    Marsaglia and Marsaglia (2004), "Evaluating the Anderson-Darling distribution".

    places  (n_rows, n_cases)
    """
    n = places.shape[1]
    ordered = np.sort(np.clip(places, LEAST_PLACE, 1 - LEAST_PLACE), axis=1)
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


def two_sided(z: Array) -> Array:
    """Return two-sided p-values of standard normal statistics."""
    return np.clip(2 * scipy.special.ndtr(-np.abs(z)), _LEAST_P, 1.0)
