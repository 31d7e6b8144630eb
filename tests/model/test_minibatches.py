"""Batches of cases: each pass takes every case once, in an order of its own."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.model.batches import Batches
from rayfbnn.selftest.pivots import chi2_p_value
from rayfbnn.streams import Purpose
from tests.support.problems import chain_streams


def test_each_pass_has_every_case_once_in_batches_of_nearly_one_size() -> None:
    batches = Batches(chain_streams(3, 5, iteration=7), n_cases=11, size=4)
    assert batches.n_batches == 3
    passes = []
    for first in (0, 3):
        pieces = [batches.batch(first + number) for number in range(3)]
        assert [piece.shape for piece in pieces] == [(5, 3), (5, 4), (5, 4)]
        passes.append(np.concatenate(pieces, axis=1))
        assert np.array_equal(np.sort(passes[-1], axis=1), np.tile(np.arange(11), (5, 1)))
    assert not (passes[0] == passes[1]).all(axis=1).any()  # another pass, another permutation
    assert not (passes[0][1:] == passes[0][0]).all(axis=1).any()  # and for each chain


def test_batches_do_not_depend_on_the_iteration_that_asks() -> None:
    early, late = (Batches(chain_streams(3, 2, iteration=n), n_cases=11, size=4) for n in (1, 9))
    assert np.array_equal(early.batch(5), late.batch(5))


def test_sizes_are_those_of_the_batches() -> None:
    """From any batch on, also in the middle of a pass."""
    batches = Batches(chain_streams(3, 2), n_cases=11, size=4)
    for first, n in ((0, 1), (1, 7), (20, 9)):
        expected = [batches.batch(number).shape[1] for number in range(first, first + n)]
        assert batches.sizes(first, n).tolist() == expected


def test_compiled_code_is_told_the_place_of_the_permutations() -> None:
    streams = chain_streams(3, 2)
    batches = Batches(streams, n_cases=11, size=4)
    for number in range(3):
        of_pass = streams.at(iteration=batches.place()[3] + number, operation=streams.operation)
        assert of_pass.place(Purpose.MINIBATCH)[:3] == batches.place()[:3]
        order = of_pass.shuffle(11, Purpose.MINIBATCH)
        assert np.array_equal(order[:, :3], batches.batch(3 * number))


def test_the_order_of_the_file_plays_no_part() -> None:
    """Every pair of cases is equally often in one batch, also cases that are neighbours in the file."""
    first = Batches(chain_streams(5, 6_000), n_cases=4, size=2).batch(0)
    codes = np.sort(first, axis=1) @ np.array([4, 1])
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 6
    assert chi2_p_value(counts) > 1e-5  # false alarms 1e-5


@pytest.mark.parametrize("size", [0, 12])
def test_a_batch_larger_than_the_data_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 11, the number of cases, got {size}"):
        Batches(chain_streams(3, 5), n_cases=11, size=size)
