"""Inputs laid out piece by piece have the bits of those laid out at once."""

import numpy as np
import pytest

from rayfbnn.model.cases import PIECE_BYTES, pieces_of, rows_and_mean_squares
from rayfbnn.model.network import input_rows
from rayfbnn.streams import Purpose, Streams


@pytest.mark.parametrize("n_inputs", [1, 2, 3, 8, 17, 100])
@pytest.mark.parametrize("size", [1, 37, 128, 3000])
def test_pieces_give_the_bits_of_the_whole(n_inputs: int, size: int) -> None:
    inputs = Streams(1, np.arange(1000, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    pieces = (inputs[first : first + size] for first in range(0, len(inputs), size))
    rows, mean_squares = rows_and_mean_squares(pieces, len(inputs), "float32")
    expected = input_rows(inputs, "float32")
    assert (rows.dtype, rows.flags.c_contiguous) == (expected.dtype, True)
    assert (rows == expected).all()
    assert (mean_squares == (inputs**2).mean(axis=0)).all()


def test_pieces_are_small_and_hold_every_case_in_order() -> None:
    inputs = np.arange(300_000.0).reshape(-1, 3)
    pieces = list(pieces_of(inputs))
    assert len(pieces) > 2 and max(piece.nbytes for piece in pieces) <= PIECE_BYTES
    assert (np.concatenate(pieces) == inputs).all()


@pytest.mark.parametrize("n_inputs", [1, 3])
def test_some_rows_can_be_kept(n_inputs: int) -> None:
    inputs = Streams(1, np.arange(100, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    pieces = (inputs[first : first + 7] for first in range(0, len(inputs), 7))
    kept = np.array([0, 5, 6, 7, 7, 50, 98, 99, 99])
    rows, mean_squares = rows_and_mean_squares(pieces, len(inputs), "float32", kept=kept)
    assert np.array_equal(rows, input_rows(inputs[kept], "float32"))
    assert (mean_squares == (inputs**2).mean(axis=0)).all()
