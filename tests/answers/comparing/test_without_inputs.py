"""Predictions without inputs: shares of labels, and one Gaussian distribution of numbers."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.answers.distances import log_probability_without_inputs


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
