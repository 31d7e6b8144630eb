"""The training cases cut into blocks, for partial gradients."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace


@dataclass(frozen=True, eq=False)
class Blocks:
    """The training cases cut into blocks, short ones filled up with a case that counts for nothing.

    inputs  (n_partitions, n_inputs + 1, n_block_cases)
    targets (..., n_partitions, n_outputs, n_block_cases)
    weights (n_partitions, 1, n_block_cases): 1, or 0 for filling; None when all blocks are equally long
    sizes   (n_partitions,)
    """

    inputs: Array
    targets: Array
    weights: Array | None
    sizes: Array

    @staticmethod
    def cut(inputs: Array, targets: Array, n_partitions: int) -> Blocks:
        """Blocks of inputs (n_inputs + 1, n_cases) and targets (..., n_outputs, n_cases).

        Block k holds the cases floor(N k/K) .. floor(N (k+1)/K) - 1, as in FBM.
        """
        xp = array_namespace(inputs)
        n_cases = inputs.shape[-1]
        if n_partitions > n_cases:
            raise ValueError(f"n_partitions: at most the {n_cases} cases, got {n_partitions}")
        bounds = n_cases * xp.arange(n_partitions + 1) // n_partitions
        sizes = bounds[1:] - bounds[:-1]
        places = xp.arange(int(sizes.max()))
        cases = xp.minimum(bounds[:-1, None] + places, bounds[1:, None] - 1)  # filled up with the last case
        is_case = (places < sizes[:, None])[:, None, :]
        return Blocks(
            inputs=xp.ascontiguousarray(inputs[:, cases].swapaxes(0, 1)),
            targets=xp.ascontiguousarray(targets[..., cases].swapaxes(-3, -2)),
            weights=None if bool(is_case.all()) else is_case.astype(xp.float64),
            sizes=sizes,
        )

    def of(self, partition: Array) -> tuple[Array, Array, Array | None, Array]:
        """Each chain's own block: inputs, targets, weights (chain axis first), sizes (n_chains,)."""
        xp = array_namespace(partition)
        targets = self.targets
        if targets.ndim == 3:
            targets = targets[partition]
        else:
            targets = targets[xp.arange(targets.shape[0]), partition]
        weights = None if self.weights is None else self.weights[partition]
        return self.inputs[partition], targets, weights, self.sizes[partition]
