"""Results that are remembered by the contents of an array, and what the posterior remembers."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.model.posterior import Remembered
from tests.support.problems import chain_streams, problem


def counted(remembered: Remembered[Array], arrays: list[Array]) -> int:
    """Ask for the double of each array in turn; return how often it was computed."""
    computed = []

    def double(array: Array) -> Array:
        computed.append(array)
        return 2 * array

    for array in arrays:
        assert np.array_equal(remembered.get(array, double), 2 * array)
    return len(computed)


def test_a_result_is_computed_once_for_each_content() -> None:
    one, two, three = (np.full((2, 3), value) for value in (1.0, 2.0, 3.0))
    assert counted(Remembered(2), [one, one.copy(), two, one, two]) == 2
    assert counted(Remembered(2), [one, two, three, one]) == 4, "only the last two are kept"


def test_an_array_that_was_changed_in_place_is_computed_again() -> None:
    remembered, array = Remembered[Array](1), np.ones((1, 4))
    for value in (1.0, 5.0):
        array[0, 0] = value
        assert remembered.get(array, np.negative)[0, 0] == -value


def test_arrays_of_other_shapes_and_large_arrays_are_not_confused() -> None:
    one = np.zeros((1, 4))
    assert counted(Remembered(2), [one, one.reshape(2, 2)]) == 2
    assert counted(Remembered(2), [np.zeros((8, 2**11))] * 2) == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_posterior_that_remembers_gives_the_bits_of_one_that_does_not(dtype: str) -> None:
    used = problem("t by target", dtype=dtype)
    state = used.initial_state(chain_streams(5, 3), sigmas=None)
    other = used.initial_state(chain_streams(6, 3), sigmas=None)
    for at in (state, other, state):
        new = problem("t by target", dtype=dtype)
        for name in ("potential", "log_likelihood"):
            expected = getattr(new, name)(at.position, at.precisions)
            assert np.array_equal(getattr(used, name)(at.position, at.precisions), expected)
        assert np.array_equal(used.stepsizes(at.precisions), new.stepsizes(at.precisions))
        assert np.array_equal(used.residuals(at.position).squares, new.residuals(at.position).squares)
