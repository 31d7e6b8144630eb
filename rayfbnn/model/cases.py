"""The training cases: inputs without a second copy, missing targets, and blocks for partial gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host

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


def columns_of_blocks(n_cases: int, n_partitions: int, *, starts: Array | None = None) -> tuple[Array, Array]:
    """Return the columns of the cases in each block, and the number of columns of each block.

    Block k holds the cases floor(N k/K) .. floor(N (k+1)/K) - 1, as in FBM.

    starts  (n_cases + 1,), the column where each case begins if some cases have several columns

    Returns
    -------
    numbers  (n_partitions, n_block_columns) int; short blocks are padded with their last column
    counts   (n_partitions,) int, without the padding

    Both are on the host, to avoid waiting for a device. Raises ValueError if a block would have no case.
    """
    if n_partitions > n_cases:
        raise ValueError(f"n_partitions: must be at most {n_cases}, the number of cases, got {n_partitions}")
    bounds = n_cases * np.arange(n_partitions + 1) // n_partitions
    if starts is not None:
        bounds = to_host(starts)[bounds]
    counts = bounds[1:] - bounds[:-1]
    places = np.arange(counts.max())
    return np.minimum(bounds[:-1, None] + places, bounds[1:, None] - 1), counts


@dataclass(frozen=True, eq=False)
class Blocks:
    """The training cases divided into blocks. Short blocks are padded with a case of weight 0.

    inputs  (n_partitions, n_inputs + 1, n_block_cases); on the host a view of all cases if blocks are
            equally long
    targets (..., n_partitions, n_outputs, n_block_cases)
    weights (..., n_partitions, n_targets or 1, n_block_cases): 1, or 0 for padding and for missing
            targets; None if all blocks are equally long and no target is missing
    sizes   (n_partitions,) cases, or (..., n_partitions, n_targets) observed targets if some are missing
    """

    inputs: Array
    targets: Array
    weights: Array | None
    sizes: Array

    @staticmethod
    def cut(
        inputs: Array,
        targets: Array,
        n_partitions: int,
        *,
        observed: Array | None = None,
        starts: Array | None = None,
    ) -> Blocks:
        """Divide inputs (n_inputs + 1, n_cases) and targets (..., n_outputs, n_cases) into blocks.

        observed  (..., n_targets, n_cases) from `observed_weights`
        starts    (n_cases + 1,), the column where each case begins if some cases have several columns
        """
        xp = array_namespace(inputs)
        n_cases = inputs.shape[-1] if starts is None else len(starts) - 1
        numbers, counts = columns_of_blocks(n_cases, n_partitions, starts=starts)
        places = np.arange(numbers.shape[1])
        is_filled = (counts < len(places)).any()
        cases, sizes = xp.asarray(numbers), xp.asarray(counts)
        is_case = xp.asarray((places < counts[:, None])[:, None, :])
        weights = is_case.astype(xp.float64) if is_filled else None
        if observed is not None:
            weights = is_case * observed[..., cases].swapaxes(-3, -2)
            sizes = weights.sum(axis=-1)
        return Blocks(
            inputs=_inputs_of_blocks(inputs, cases, is_view=xp is np and not is_filled),
            targets=xp.ascontiguousarray(targets[..., cases].swapaxes(-3, -2)),
            weights=weights,
            sizes=sizes,
        )

    def cases(self, begin: int, end: int) -> Blocks:
        """Return the cases begin .. end - 1 of every block; the sizes remain those of the whole blocks."""
        weights = None if self.weights is None else self.weights[..., begin:end]
        return replace(
            self, inputs=self.inputs[..., begin:end], targets=self.targets[..., begin:end], weights=weights
        )

    def at(self, partition: Array) -> tuple[Array, Array, Array | None, Array]:
        """Return inputs, targets, weights and sizes of each chain's block, with the chain axis first."""
        weights = None if self.weights is None else _chosen(self.weights, partition, 2)
        sizes = _chosen(self.sizes, partition, 0 if self.sizes.ndim == 1 else 1)
        return self.inputs[partition], _chosen(self.targets, partition, 2), weights, sizes


def _inputs_of_blocks(inputs: Array, columns: Array, *, is_view: bool) -> Array:
    """Return inputs (n_inputs + 1, n_cases) at the columns (n_partitions, n_block_cases) of blocks.

    is_view  whether to return a view, which requires equally long blocks. `Blocks.at` then copies only the
             blocks it is asked for. On a device that would first make all blocks contiguous
    """
    if is_view:
        return inputs.reshape(len(inputs), *columns.shape).swapaxes(0, 1)
    xp = array_namespace(inputs)
    return xp.ascontiguousarray(inputs[:, columns].swapaxes(0, 1))


def _chosen(values: Array, partition: Array, n_trailing: int) -> Array:
    """Return values (n_partitions, ...) or (n_chains, n_partitions, ...) at each chain's partition."""
    if values.ndim == n_trailing + 1:
        return values[partition]
    return values[array_namespace(partition).arange(values.shape[0]), partition]


def observed_weights(targets: Array) -> Array | None:
    """Return 1 for observed targets and 0 for missing ones (NaN), or None if all were observed.

    targets  (..., n_cases, n_targets); the result is (..., n_targets, n_cases) float64
    """
    xp = array_namespace(targets)
    if targets.dtype.kind != "f":
        return None
    is_missing = xp.isnan(targets)
    if not bool(is_missing.any()):
        return None
    return xp.ascontiguousarray(~is_missing.swapaxes(-1, -2), dtype=xp.float64)


def without_missing(rows: Array) -> Array:
    """Return the rows with missing values replaced by zeros."""
    xp = array_namespace(rows)
    return rows if observed_weights(rows) is None else xp.where(xp.isnan(rows), 0.0, rows)


def apply_weights(terms: Array, gradient: Array, weights: Array | None) -> None:
    """Multiply the terms of the log likelihood and their gradient, in place, by the targets' weights.

    terms    (n_chains, n_targets, n_cases)
    gradient (n_chains, n_outputs, n_cases)
    weights  (..., n_targets or 1, n_cases), 0 for terms that do not count; None leaves both unchanged
    """
    if weights is not None:
        terms *= weights
        # A target has one output, or several outputs that are n_targets apart.
        by_target = gradient.reshape(terms.shape[0], -1, *terms.shape[1:])
        by_target *= weights[..., None, :, :]
