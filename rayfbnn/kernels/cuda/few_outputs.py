"""The kernels of few_outputs.cu: from the last hidden layer to few outputs and back, without a product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.build import Build
from rayfbnn.kernels.cuda.launch_plan import WARP, few_outputs_plan
from rayfbnn.kernels.cuda.source_functions import Functions
from rayfbnn.kernels.cuda.tile import Tile, output_arguments
from rayfbnn.kernels.network_plan import NetworkPlan

_BLOCKS = 1024  # in a launch, if there are enough cases: several for each place on a device


@dataclass(frozen=True, eq=False)
class FewOutputs:
    """The kernels for one network. Its parameters are the `position` (n_chains, n_parameters)."""

    network: NetworkPlan
    functions: Functions

    @staticmethod
    def of(network: NetworkPlan, dtype: str, build: Build) -> FewOutputs | None:
        """Return the kernels of a network, or None if they do not cover it."""
        plan = few_outputs_plan(network, dtype)
        return None if plan is None else FewOutputs(network, Functions(network, plan, dtype, build))

    def add_gradient(
        self, gradient: Array, position: Array, u: Array, factor: Array, noise: Array, tile: Tile
    ) -> None:
        """Replace the last hidden layer's summed inputs, which lack biases, by the derivatives by them.

        This adds the gradients of the layer's biases and offsets, of the weights from it, and of the outputs'
        biases.

        u       summed inputs, (n_chains, n_units, n)
        factor  factor on the likelihood, (n_chains,) float64
        """
        n_chains, n_units, n = u.shape
        has_offsets = self.network.offsets[len(self.network.units) - 2] >= 0
        n_sums = (n_units + 1) * self.network.units[-1] + n_units * (2 if has_offsets else 1)
        n_parts = min(-(-n // WARP), -(-_BLOCKS // n_chains))
        sums = array_namespace(u).empty((n_chains, n_parts, n_sums), dtype=u.dtype)
        arguments = u, sums, factor, np.int32(n_parts), *output_arguments(position, noise, tile)
        is_weighted = tile.weights is not None
        self.functions.launch("through_outputs", n_chains * n_parts, *arguments, is_weighted=is_weighted)
        counts = np.int32(n_chains), np.int32(n_parts)
        n_blocks = -(-n_chains * n_sums // self.functions.plan.threads)
        self.functions.launch("add_sums", n_blocks, sums, gradient, *counts, is_weighted=is_weighted)
