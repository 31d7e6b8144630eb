"""The verdict on fit in words: what a test that falls short says, and the kind of the misfit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.special

from rayfbnn.answers.judging.fit_evidence import JudgedTarget
from rayfbnn.answers.judging.fit_tests import (
    CONFIDENCE,
    COVERAGE,
    INPUTS,
    LEVELS,
    MEAN,
    OUTLIERS,
    PRODUCTS,
    RATE,
    ROWS,
    SLOPE_OF_VALUE,
    VARIATION,
    Feature,
    LabelCases,
    NumberCases,
    Test,
    normal_scores,
)
from rayfbnn.answers.judging.words import series
from rayfbnn.answers.measures import share_limits
from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.data_model import Misfit
from rayfbnn.numerals import in_range

_NARROW = 1.05  # spread of places, relative to that of uniform ones
_SKEWED = 3.0  # standard errors of the skewness of normal scores
_HEAVY = 4.0  # fourth moment of normal scores; 3 if predictions are right
_MAX_SCORE = 8.0
_BILLIONTH = 1e-9


def coverage_sentence(target: JudgedTarget, *, is_left_out: bool) -> str:
    """Say how many targets the central intervals hold."""
    cases, n = target.cases, target.n_cases
    assert isinstance(cases, NumberCases)
    held, allowed = [], []
    for level in LEVELS:
        low, high = share_limits(n, level)
        share, ends = in_range(100 * float(cases.coverage(level)[0]), (100 * low, 100 * high), ".0f", ".0f")
        held.append(share)
        allowed.append(" to ".join(ends))
    of = "targets, each predicted without itself" if is_left_out else "targets"
    return (
        f"the 50, 80 and 95 % intervals of {target.name} hold {series(held)} % of {n:,} {of}"
        f" (chance allows {series(allowed)} %)"
    )


def sentences(target: JudgedTarget, failed: Sequence[Test], *, is_left_out: bool) -> list[str]:
    """Return a sentence for each test that falls short, in their order.

    Each kind of test has one sentence, on the test with the smallest p-value.
    """
    first = {test.kind: test for test in reversed(failed)}
    told = [test for test in failed if first[test.kind] is test]
    return [_sentence(target, test, is_left_out=is_left_out) for test in told]


def _sentence(target: JudgedTarget, test: Test, *, is_left_out: bool) -> str:
    cases, name = target.cases, target.name
    if test.kind == MEAN:
        return _mean_sentence(target, feature_of(target, test))
    if not isinstance(cases, NumberCases):
        return _label_sentence(target.label, cases, test)
    if test.kind == COVERAGE:
        return coverage_sentence(target, is_left_out=is_left_out)
    if test.kind == VARIATION:
        low, high = (float(cases.coverage(0.8, some)[0]) for some in _thirds(cases.values_of(test.of)))
        return (
            f"the spread of {name} varies with {test.of} more than predicted: the 80 % intervals hold"
            f" {low:.0%} of the third of cases where it is lowest, and {high:.0%} where it is highest"
        )
    places = cases.place[0]
    if test.kind == OUTLIERS:
        tail = 2 * float(np.minimum(places, 1 - places).min())
        rarity = f"one in {1 / tail:,.0f}" if tail > _BILLIONTH else "less than one in a billion"
        return f"the most unusual target of {name} lies where {rarity} is expected"
    return (
        f"the places of {name} in its predictive distributions are not uniform: their mean is"
        f" {places.mean():.2f} (0.50 expected), and their spread is {spread_of(places):.2f} of that expected"
    )


def feature_of(target: JudgedTarget, test: Test) -> Feature:
    """Return the feature of a test of the mean."""
    return next(feature for feature in target.cases.features() if feature.name == test.of)


def _mean_sentence(target: JudgedTarget, feature: Feature) -> str:
    cases, ends = target.cases, _thirds(feature.values)
    if isinstance(cases, NumberCases):
        subject, noun, scale, unit = f"the mean of {target.name}", "targets are", 1.0, "predictive sd"
        off = np.clip(normal_scores(cases.place[0]), -_MAX_SCORE, _MAX_SCORE)
    else:
        subject, noun = target.label, "the share of cases with the label is"
        scale, unit, off = 100.0, "percentage points", cases.has_label[0] - cases.probability
    low, high = (scale * float(off[some].mean()) for some in ends)
    return (
        f"{subject} misses {feature.name}: {noun} {abs(low):.2g} {unit} {_side(low)} predictions"
        f" {feature.low}, and {abs(high):.2g} {_side(high)} {feature.high}"
    )


def _side(distance: float) -> str:
    return "above" if distance > 0 else "below"


def mean_remedy(feature: Feature, name: str, *, sign: float, is_positive: bool) -> str:
    """Return what to change if the mean of a target misses a feature.

    name         of the target
    sign         of the dependence of the targets on the feature
    is_positive  whether all training targets are above zero
    """
    units = "more hidden units or another hidden layer"
    if feature.group == ROWS:
        return "another input that says when each row was measured, such as the time or the number of the row"
    if feature.group == PRODUCTS:
        return f"{units}, or the product of {' and '.join(feature.of)} as another input"
    if feature.group == INPUTS:
        return (
            f"{units}, or a transformed {feature.of[0]} as another input, such as its square or its logarithm"
        )
    if feature.name == SLOPE_OF_VALUE:
        widths = "larger" if sign > 0 else "smaller"
        return f"priors of the weights with {widths} widths: see docs/priors.md"
    return f'{units}, or a log scale: data.transform = {{ {name} = "log" }}' if is_positive else units


def _thirds(values: Array) -> tuple[Array, Array]:
    order = np.argsort(values, kind="stable")
    third = max(1, len(order) // 3)
    return order[:third], order[-third:]


def _label_sentence(label: str, cases: LabelCases, test: Test) -> str:
    p, has_label = cases.probability, cases.has_label[0]
    if test.kind == RATE:
        return f"{label} is {p.mean():.1%} on average, but {has_label.mean():.1%} of the cases have the label"
    if test.kind == CONFIDENCE:
        low, high = (
            f"{p[some].mean():.0%} on average where {has_label[some].mean():.0%} of the cases have the label"
            for some in _thirds(p)
        )
        extreme = "too extreme" if test.sign < 0 else "not extreme enough"
        return f"{label} is {extreme}: its lowest third is {low}, and its highest third {high}"
    return f"{label} differs from the share of cases with the label, more in the middle or at the ends"


def misfit(target: JudgedTarget, failed: Sequence[Test]) -> Misfit:
    """Return the kind of the misfit, which only the advice depends on.

    failed  the tests that fall short, those with the strongest evidence first
    """
    kinds = {test.kind for test in failed}
    cases = target.cases
    if not isinstance(cases, NumberCases):
        confidence = next((test.sign for test in failed if test.kind == CONFIDENCE), 0.0)
        return "too narrow" if confidence < 0 else "too wide" if confidence > 0 else "shifted"
    places = cases.place[0]
    spread = spread_of(places)
    if failed[0].kind == VARIATION and spread < _NARROW:
        return "varying"
    if spread > _NARROW:
        return "too narrow"
    holds_too_many = any(test.kind == COVERAGE and test.of == f"{LEVELS[-1]:g}" for test in failed)
    if holds_too_many and OUTLIERS not in kinds:
        return "too wide"
    scores = np.clip(scipy.special.ndtri(places), -_MAX_SCORE, _MAX_SCORE)
    if abs(_skewness(scores)) > _SKEWED * np.sqrt(6 / len(scores)):
        return "skewed"
    z = (scores - scores.mean()) / max(scores.std(), 1e-12)
    if OUTLIERS in kinds or (z**4).mean() > _HEAVY:
        return "outliers"
    return "too wide" if spread < 1 / _NARROW else "shifted"


def spread_of(places: Array) -> float:
    """Return the root mean square distance of places from the middle, divided by that of uniform ones."""
    return float(np.sqrt(12 * np.mean((places - 0.5) ** 2)))


def _skewness(scores: Array) -> float:
    """Return the skewness of scores; those far out are moved to 2.5 robust standard deviations."""
    low, middle, high = np.quantile(scores, [0.25, 0.5, 0.75])
    z = np.clip((scores - middle) * 1.349 / max(high - low, 1e-12), -2.5, 2.5)
    z -= z.mean()
    return float((z**3).mean() / (z**2).mean() ** 1.5)
