"""Distances and scores of predictive distributions, by hand and by closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats

from rayfbnn.answers.distances import (
    agreement,
    calibration_error,
    coverage,
    crps,
    kl,
    log_probability_without_inputs,
    mean_and_error,
    reliability,
    total_variation,
    w2,
)
from tests.support.store.standin_store import normal, uniform


def test_labels_have_their_shares_with_one_case_of_each_added() -> None:
    training, test = np.array([[0.0], [0.0], [1.0], [np.nan]]), np.array([[0.0], [2.0], [np.nan]])
    found = log_probability_without_inputs(training, test, has_labels=True)
    assert found == pytest.approx((np.log(3 / 6) + np.log(1 / 6)) / 2)


def test_numbers_are_gaussian_and_targets_are_added() -> None:
    training = np.array([[1.0, 0.0], [3.0, 4.0], [np.nan, 8.0]])
    test = np.array([[2.0, 4.0], [3.0, np.nan], [np.nan, np.nan]])
    first, second = np.log(2 * np.pi) / 2, np.log(2 * np.pi * 32 / 3) / 2
    found = log_probability_without_inputs(training, test, has_labels=False)
    assert found == pytest.approx((-first - second - first - 0.5) / 2)


def test_distances_of_two_tables_are_those_by_hand() -> None:
    p = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    q = np.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]])
    first = 0.5 * np.log(5) + 0.3 * np.log(0.5) + 0.2 * np.log(2 / 3)
    np.testing.assert_allclose(total_variation(p, q), [0.4, 0.5])
    np.testing.assert_allclose(kl(p, q), [first, np.log(2)])
    np.testing.assert_array_equal(agreement(p, q), [0, 1])
    # Quantiles of the first sample are 0 and 2, each on a half; those of the second 1, 3 and 6, on thirds.
    distance = w2(np.array([2.0, 0.0]), np.array([6.0, 1.0, 3.0]))
    assert distance == pytest.approx(np.sqrt(1 / 3 + 9 / 6 + 1 / 6 + 16 / 3))


def test_the_divergence_is_from_the_exact_distribution() -> None:
    """It is infinite where the approximation excludes what is possible, and not the other way round."""
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    assert kl(p, q) == np.inf
    assert kl(q, p) == pytest.approx(np.log(2))


@pytest.mark.parametrize(("first", "second"), [(3000, 3000), (3000, 2000), (2000, 3000)])
def test_w2_of_two_gaussians_is_the_closed_form(first: int, second: int) -> None:
    """W2^2 = (m - m')^2 + (s - s')^2; the samples are quantiles, so that only their ends are missing."""
    a, b = (scipy.special.ndtri((np.arange(n) + 0.5) / n) for n in (first, second))
    shuffled = np.argsort(uniform(5, (first,)))
    assert w2(1 + 2 * a[shuffled], 3 + 0.5 * b) == pytest.approx(np.sqrt(2**2 + 1.5**2), abs=0.005)


def test_w2_is_the_same_when_every_draw_is_there_twice() -> None:
    sample, other = normal(2, (4, 7)), normal(3, (4, 5))
    twice = np.concatenate([sample, sample], axis=1)
    np.testing.assert_allclose(w2(twice, other), w2(sample, other))
    np.testing.assert_allclose(w2(twice, sample), 0, atol=1e-12)


def test_crps_of_a_gaussian_is_the_closed_form() -> None:
    """Gneiting and Raftery (2007), eq. 21: s (z (2 Phi(z) - 1) + 2 phi(z) - 1/sqrt(pi))."""
    z = np.array([[-3.0], [0.0], [0.4], [2.0]])
    levels = (np.arange(64) + 0.5) / 64
    quantiles = np.broadcast_to(1 + 2 * scipy.special.ndtri(levels)[:, None, None], (64, 4, 1))
    norm = scipy.stats.norm
    expected = 2 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(crps(quantiles, 1 + 2 * z), expected, rtol=0.02)


# Bins are (0.6, 2/3), where 0.62 was right and 0.64 was not, and (14/15, 1).
CONFIDENCE = np.array([[0.62], [0.64], [0.95], [0.5]])
IS_RIGHT = np.array([[1.0], [0.0], [1.0], [np.nan]])


def test_the_calibration_error_is_that_by_hand() -> None:
    expected = (abs(1 - 1.26) + abs(1 - 0.95)) / 3
    assert calibration_error(CONFIDENCE, IS_RIGHT) == pytest.approx(expected)
    said, right = reliability(CONFIDENCE, IS_RIGHT)
    np.testing.assert_allclose(said, [0.63, 0.95])
    np.testing.assert_allclose(right, [0.5, 1])


def test_the_calibration_error_of_a_calibrated_table_goes_to_zero() -> None:
    """It goes to 0.1 for a table that claims 0.1 too much.

    The error in a bin of n cases is about sqrt(2 p (1 - p)/(pi n)); 100 times as many divide it by 10.
    """
    errors = []
    for n in (2_000, 200_000):
        p = 0.5 + uniform(7, (n,)) / 2
        errors.append(calibration_error(p, (uniform(8, (n,)) < p).astype(float)))
    shifted = calibration_error(p, (uniform(8, (n,)) < p - 0.1).astype(float))
    assert errors[1] < 0.004 < 0.012 < errors[0] < 0.04 and abs(shifted - 0.1) < 0.005


def test_coverage_is_that_of_the_band() -> None:
    """Of three known targets one is inside, one below, and one half inside."""
    low = np.array([[0.5], [0.05], [0.85], [np.nan]])
    high = np.array([[0.5], [0.05], [0.95], [np.nan]])
    assert coverage(low, high, np.array([0.8])) == pytest.approx(0.5)


def test_means_leave_out_what_is_missing() -> None:
    mean, error = mean_and_error(np.array([1.0, np.nan, 3.0]))
    assert (mean, error) == (2, pytest.approx(1))
    assert all(np.isnan(mean_and_error(np.array([np.nan]))))
    assert np.isnan(mean_and_error(np.array([1.0]))[1])
