"""The network's inputs at the training cases, laid out piece by piece without a second copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

import numpy as np

from rayfbnn.arrays import Array, array_namespace

PIECE_BYTES = 2**20
"""Size of the pieces for processing the values of many cases."""


def slices_of_cases(n_cases: int, bytes_per_case: int) -> Iterator[slice]:
    """Yield slices of consecutive cases that hold about PIECE_BYTES each."""
    size = max(1, PIECE_BYTES // max(1, bytes_per_case))
    for first in range(0, n_cases, size):
        yield slice(first, min(first + size, n_cases))


def pieces_of(inputs: Array) -> Iterator[Array]:
    """Yield the rows of inputs (n_cases, n_inputs) in pieces, as views."""
    for cases in slices_of_cases(len(inputs), 8 * inputs.shape[1]):
        yield inputs[cases]


def rows_and_mean_squares(
    pieces: Iterable[Array],
    n_cases: int,
    dtype: str,
    xp: ModuleType = np,
    *,
    kept: Array | None = None,
) -> tuple[Array, Array]:
    """Return the inputs as sources of a network, and their mean squares, both on the device of `xp`.

    pieces  (n, n_inputs) float64 each, n_cases in total; at least one piece
    kept    the numbers of the cases to keep, in ascending order; a number may occur more than once. None
            keeps all

    Returns
    -------
    rows          (n_inputs + 1, n_cases or n_kept) in dtype, the last row ones, in the layout of
                  `network.input_rows`
    mean_squares  (n_inputs,) float64, with the same bits as (inputs**2).mean(axis=0). NumPy adds the rows of
                  a matrix with two or more columns one after another, but a single column in pairs
    """
    rows, first, column, total = None, 0, [], None
    n_rows = n_cases if kept is None else len(kept)
    for piece in pieces:
        if rows is None:
            rows = array_namespace(piece).ones((piece.shape[1] + 1, n_rows), dtype=dtype)
        end = first + len(piece)
        if kept is None:
            rows[:-1, first:end] = piece.T
        else:
            places = slice(*np.searchsorted(kept, [first, end]).tolist())
            rows[:-1, places] = piece[kept[places] - first].T
        first = end
        if piece.shape[1] == 1:
            column.append(piece**2)
            continue
        squares = piece**2 if total is None else array_namespace(piece).concatenate([total, piece**2])
        total = squares.sum(axis=0, keepdims=True)
    assert rows is not None and first == n_cases, "the pieces must hold every case"
    if column:
        total = array_namespace(rows).concatenate(column).sum(axis=0, keepdims=True)
    assert total is not None
    return xp.asarray(rows), xp.asarray(total[0] / n_cases)
