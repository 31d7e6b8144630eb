"""The tests behind the verdict on fit: their statistics against SciPy, and their false alarms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from rayfbnn.answers.judging.fit import judge_fit
from rayfbnn.answers.judging.fit_evidence import FitEvidence, JudgedTarget
from rayfbnn.answers.judging.fit_tests import (
    CONFIDENCE,
    COVERAGE,
    CURVATURE,
    OUTLIERS,
    RATE,
    UNIFORMITY,
    VARIATION,
    LabelCases,
    NumberCases,
    anderson_darling,
    binomial_p,
    correlation_p,
    joint_p,
    ranks,
)
from rayfbnn.answers.judging.fit_tests import Test as OneTest
from rayfbnn.answers.judging.fit_words import misfit, sentences
from rayfbnn.answers.measures import Places, share_limits
from rayfbnn.arrays import Array
from tests.support.store.standin_store import make_spec, normal, uniform

N_ROWS, N_CASES = 4000, 200


def cases_of(places: Array, *, input_values: Array | None = None) -> NumberCases:
    """Cases with given places, the predicted value of their number, and an input."""
    n = places.shape[1]
    values = uniform(91, (n,)) if input_values is None else input_values
    covariates = {"the predicted value": np.arange(n, dtype=float), "x": values}
    return NumberCases(places, places, places, covariates, frozenset(["x"]))


def test_uniform_places_have_uniform_p_values() -> None:
    p = anderson_darling(uniform(1, (20_000, 100)))
    for level in (0.5, 0.1, 0.015, 0.005):
        z = ((p < level).mean() - level) / np.sqrt(level * (1 - level) / len(p))
        assert abs(z) < 5, level  # 4 in 10,000,000, and the asymptotic distribution is not exact; seed fixed


def test_p_values_are_those_of_scipy() -> None:
    assert anderson_darling(np.linspace(0.005, 0.995, 100)[None])[0] == pytest.approx(1, abs=1e-4)
    counts = np.array([0.0, 140, 160, 175, 200])
    expected = [
        min(1, 2 * min(scipy.stats.binom.cdf(k, 200, 0.8), scipy.stats.binom.sf(k - 1, 200, 0.8)))
        for k in counts
    ]
    np.testing.assert_allclose(binomial_p(counts, 200, 0.8), expected, rtol=1e-9)
    tied, other = np.floor(5 * uniform(2, (3, 60))), normal(3, (60,))
    expected = [scipy.stats.spearmanr(row, other).pvalue for row in tied]
    np.testing.assert_allclose(correlation_p(ranks(tied), ranks(other[None])), expected, rtol=1e-9)
    low, high = scipy.stats.binom.interval(0.95, 200, 0.8)
    assert share_limits(200, 0.8) == (low / 200, high / 200)


def test_coverage_is_that_of_places() -> None:
    ends = np.sort(uniform(4, (2, 50)), axis=0)
    cases = NumberCases(ends[:1], ends[1:], ends[:1], {}, frozenset())
    of_places = Places(ends[0], ends[1]).coverage([0.5, 0.8, 0.95])
    assert [cases.coverage(level)[0] for level in (0.5, 0.8, 0.95)] == pytest.approx(of_places.tolist())


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Independent places that are uniform: each row is a problem of its own."""
    tests = cases_of(uniform(5, (N_ROWS, N_CASES))).tests()
    assert sum(test.share for test in tests) == pytest.approx(1)
    n_alarms = (np.min([test.weighted for test in tests], axis=0) <= 0.05).sum()
    assert n_alarms <= 0.05 * N_ROWS + 4 * np.sqrt(0.05 * 0.95 * N_ROWS)  # 1 in 30,000
    assert n_alarms >= 0.02 * N_ROWS  # the tests overlap, but not completely
    for test in tests:
        level = 0.05 * test.share
        alarms = (test.p <= level).mean()
        assert alarms <= level + 5 * np.sqrt(level / N_ROWS), (test.kind, test.of)


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        (COVERAGE, scipy.special.ndtr(1.4 * normal(6, (400, N_CASES)))),
        (UNIFORMITY, scipy.special.ndtr(0.35 + normal(7, (400, N_CASES)))),
        (OUTLIERS, np.where(np.arange(N_CASES) == 17, 1 - 1e-9, uniform(8, (400, N_CASES)))),
    ],
)
def test_each_test_finds_what_it_is_for(kind: str, places: Array) -> None:
    found = np.min([test.weighted for test in cases_of(places).tests() if test.kind == kind], axis=0)
    assert (found <= 0.05).mean() > 0.95


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_spread_that_varies_with_an_input_is_found(is_folded: bool) -> None:
    """Marginally the places are not far from uniform: a standard deviation from 0.5 to 2."""
    x = 2 * uniform(9, (N_CASES,)) - 1
    size = 2 * np.abs(x) - 1 if is_folded else x
    places = scipy.special.ndtr(normal(10, (400, N_CASES)) * 2**size)
    tests = cases_of(places, input_values=x).tests()
    name = "the distance of x from its median" if is_folded else "x"
    (test,) = [test for test in tests if test.kind == VARIATION and test.of == name]
    assert (test.weighted <= 0.05).mean() > 0.9
    (other,) = [test for test in tests if test.kind == VARIATION and test.of == "the predicted value"]
    assert (other.p <= 0.05).mean() < 0.1


def test_an_input_of_two_values_has_no_middle() -> None:
    cases = cases_of(uniform(11, (1, 40)), input_values=np.arange(40) % 2.0)
    assert [test.of for test in cases.tests() if test.kind == VARIATION] == ["the predicted value", "x"]


def test_the_joint_p_value_is_a_rank_among_replicates() -> None:
    tests = cases_of(np.concatenate([np.full((1, 30), 0.01), uniform(12, (99, 30))])).tests()
    assert joint_p(tests) == 0.01
    alone = cases_of(np.full((1, 30), 0.01)).tests()
    assert joint_p(alone) == min(1, min(test.p[0] / test.share for test in alone))


def labels_of(probability: Array, sharper: float, *, seed: int, rows: int = 400) -> Array:
    """Labels whose log odds are `sharper` times those of the probabilities, (rows, n_cases)."""
    true = scipy.special.expit(sharper * scipy.special.logit(probability))
    return np.asarray(uniform(seed, (rows, len(probability))) < true)


def test_labels_with_their_probabilities_are_rarely_suspected() -> None:
    probability = scipy.special.expit(2 * normal(13, (N_CASES,)))
    labels, inputs = labels_of(probability, 1, seed=14, rows=N_ROWS), {"x": uniform(92, (N_CASES,))}
    tests = LabelCases(labels, probability, 0.0, inputs, has_order=True).tests()
    alarms = (np.min([test.weighted for test in tests], axis=0) <= 0.05).mean()
    assert 0.02 < alarms < 0.06
    assert sum(test.share for test in tests) == pytest.approx(1)


@pytest.mark.parametrize("sharper", [0.4, 2.5])
def test_probabilities_that_are_too_extreme_or_not_enough_are_found(sharper: float) -> None:
    probability = scipy.special.expit(2 * normal(15, (N_CASES,)))
    (test,) = [
        test
        for test in LabelCases(labels_of(probability, sharper, seed=16), probability, 0.0).tests()
        if test.kind == CONFIDENCE
    ]
    assert (test.weighted <= 0.05).mean() > 0.9
    assert test.sign == np.sign(sharper - 1)


def test_a_wrong_rate_is_found() -> None:
    probability = np.full(N_CASES, 0.3)
    tests = LabelCases(uniform(17, (400, N_CASES)) < 0.5, probability, 0.0).tests()
    (rate,) = [test for test in tests if test.kind == RATE]
    assert (rate.weighted <= 0.05).all()
    assert all((test.p == 1).all() for test in tests if test.kind != RATE)  # all probabilities are equal


def test_parameters_weaken_the_evidence_of_cases_left_out() -> None:
    """Only the first row, that of the targets themselves, has been learnt from."""
    probability = scipy.special.expit(normal(18, (N_CASES,)))
    labels = np.repeat(labels_of(probability, 0.3, seed=19, rows=1), 2, axis=0)
    tests = {test.kind: test.p for test in LabelCases(labels, probability, 20.0).tests()}
    assert tests[CONFIDENCE][0] > 10 * tests[CONFIDENCE][1]
    assert tests[RATE][0] == tests[RATE][1]


def test_labels_are_described_by_their_rate_or_by_their_thirds() -> None:
    cases = LabelCases(np.ones((1, 90), bool), np.linspace(0.1, 0.9, 90), 1.0)
    target = JudgedTarget("y", "y = 1", cases)
    p = np.array([1e-6])
    rate, thirds = sentences(
        target, [OneTest(RATE, "", p, 1.0), OneTest(CONFIDENCE, "", p, 1.0, -1.0)], is_left_out=False
    )
    assert rate == "y = 1 is 50.0% on average, but 100.0% of the cases have the label"
    assert thirds.startswith(
        "y = 1 is too extreme: its lowest third is 23% on average where 100% of the cases"
    )
    assert "highest third 77% on average where 100%" in thirds


def test_a_wrong_rate_alone_is_a_shift() -> None:
    target = JudgedTarget("y", "y = 1", LabelCases(np.ones((1, 90), bool), np.full(90, 0.5), 1.0))
    rate = OneTest(RATE, "", np.array([1e-6]), 1.0, 1.0)
    found = [misfit(target, [rate, OneTest(CONFIDENCE, "", rate.p, 1.0, sign)]) for sign in (-1.0, 1.0)]
    assert [misfit(target, [rate]), *found] == ["shifted", "too narrow", "too wide"]


@pytest.mark.parametrize(("standard_errors", "is_skewed"), [(2.85, False), (3.15, True)])
def test_scores_are_skewed_beyond_three_standard_errors(standard_errors: float, is_skewed: bool) -> None:
    even = np.linspace(-1.2, 1.2, 200)  # no score is moved, because none is far out
    limit = standard_errors * np.sqrt(6 / len(even))
    bend = scipy.optimize.brentq(lambda bend: scipy.stats.skew(even + bend * even**2) - limit, 0, 1)
    places = scipy.stats.norm.cdf(even + bend * even**2)[None]
    target = JudgedTarget("y", "", NumberCases(places, places, places, {}, frozenset()))
    assert (misfit(target, [OneTest(UNIFORMITY, "", np.ones(1), 1.0)]) == "skewed") == is_skewed


@pytest.mark.parametrize(("n_large_k", "grade"), [(20, "no misfit"), (21, "cannot tell")])
def test_a_fifth_of_the_cases_may_have_a_large_k(n_large_k: int, grade: str) -> None:
    places = np.linspace(0.005, 0.995, 100)[None]
    cases = NumberCases(places, np.minimum(places + 1e-3, 1.0), places, {}, frozenset())
    evidence = FitEvidence(True, 100, 100, n_large_k, 0, (JudgedTarget("y", "", cases),))
    assert judge_fit([evidence], make_spec().data_model, is_positive={"y": False}).grade == grade
    np.testing.assert_array_equal(evidence.places["y"].low, places[0])
    assert (evidence.places["y"].high > evidence.places["y"].low).all()


def test_probabilities_that_are_too_extreme_alone_have_no_curvature() -> None:
    p = np.linspace(0.05, 0.6, 80)  # not symmetric, so that slope and curvature are correlated
    variance = p * (1 - p)
    slope = scipy.special.logit(p) - np.average(scipy.special.logit(p), weights=variance)
    cases = LabelCases((p - variance * slope)[None], p, 0.0)
    tests = {test.kind: test.p[0] for test in cases.tests()}
    assert tests[CURVATURE] == pytest.approx(1) and tests[CONFIDENCE] < 0.01
