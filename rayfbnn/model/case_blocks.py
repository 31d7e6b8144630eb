"""The training cases divided into blocks, for partial gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host


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

        observed  (..., n_targets, n_cases) from `missing.observed_weights`
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
