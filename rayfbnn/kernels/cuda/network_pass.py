"""Forward and backward passes of large networks on a device, as products over all chains at once.

The forward passes are those of forward.py. As there, the gradient of the first layers of all chains is one
product, and further layers take one for each chain, all in one call. With partial gradients each chain has
its own block of cases. The blocks are gathered on the device, and the first layer is then computed like the
others. The host therefore does not need to know which chain has which block. The kernels of pass_kernels.py
run between the products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.checks import CaseTile
from rayfbnn.kernels.cuda.forward import Forward, matrix_of, tile_size
from rayfbnn.kernels.network_plan import LinkPlan
from rayfbnn.kernels.numbers import ChainNumbers
from rayfbnn.model.posterior import Posterior


@dataclass(frozen=True, eq=False)
class Pass(Forward):
    """Forward and backward passes of one posterior's networks, given the numbers of its chains.

    If `uses_tf32` is True, products for gradients use TF32; energies never use it.
    """

    target: Posterior
    numbers: ChainNumbers

    def gradient_given(
        self, position: Array, precisions: Array, noise: Array, inverse_temperature: Array
    ) -> Array:
        """Return the gradient of the potential for other precisions, noise and temperatures of the chains."""
        numbers = ChainNumbers(precisions, noise, inverse_temperature, self.numbers.normaliser)
        return replace(self, numbers=numbers).gradient(position, None, 1)

    def gradient(self, position: Array, part: Array | None, n_partitions: int) -> Array:
        """Return the gradient of the potential, or a partial gradient: each chain's for its block `part`.

        The result is (n_chains, n_parameters), and `part` is (n_chains,).
        """
        gradient = array_namespace(position).zeros_like(position)
        factor = n_partitions * self.numbers.inverse_temperature
        tiles = self.tiles(len(position)) if part is None else self._tiles_of_blocks(part, n_partitions)
        for tile in tiles:
            slopes: dict[int, Array] = {}
            if self.kernels.few_outputs is None:
                values = self.forward(position, tile.inputs, slopes=slopes)
                self.kernels.slopes_of_outputs(position, values[-1], factor, self.numbers.noise, tile)
            else:
                last_hidden = len(self.network.units) - 2
                values = self.forward(position, tile.inputs, slopes=slopes, last=last_hidden)
                noise = self.numbers.noise
                self.kernels.few_outputs.add_gradient(gradient, position, values[-1], factor, noise, tile)
            self.backward(gradient, position, tile, values, slopes)
        self.add_prior(gradient, position)
        return gradient

    def potential(self, position: Array) -> Array:
        """Return the potential, (n_chains,) float64."""
        xp, n_chains = array_namespace(position), len(position)
        total, exact = xp.zeros(n_chains), replace(self, uses_tf32=False)
        for tile in self.tiles(n_chains):
            outputs = exact.forward(position, tile.inputs, slopes=None)[-1]
            terms = self.kernels.terms_of_outputs(position, outputs, self.numbers.noise, tile)
            total += terms.sum(axis=1)
        return self.numbers.potential(self.prior_energy(position), total)

    def add_prior(self, gradient: Array, position: Array) -> None:
        """Add the prior's gradient, (n_chains, n_parameters)."""
        self.kernels.add_prior(gradient, position, self.numbers.precisions)

    def prior_energy(self, position: Array) -> Array:
        """Return the prior's energy without terms that depend on precisions alone, (n_chains,) float64."""
        return self.kernels.prior_energy(position, self.numbers.precisions)

    def backward(
        self,
        gradient: Array,
        position: Array,
        tile: CaseTile,
        values: list[Array],
        slopes: dict[int, Array],
        *,
        value_gradients: Mapping[int, Array] = MappingProxyType({}),
    ) -> None:
        """Add a tile's share of the gradient, given the derivatives by a layer's summed inputs as values[-1].

        The layer is the outputs or the last hidden layer. In the latter case the gradient already includes
        the sums of these derivatives.

        value_gradients  derivatives by the values (n_chains, n_units, n) of hidden layers that are also used
                         outside the network's links, such as by a regression
        """
        last, of_outputs = len(values) - 1, len(self.network.units) - 1
        summed = {last: values[-1]}  # derivatives by the summed inputs of each layer
        for layer in range(last, 0, -1):
            if layer < last:
                summed[layer] = self._by_values(
                    position, values[layer], summed, layer, value_gradients.get(layer)
                )
            if layer < last or layer == of_outputs:
                self.kernels.finish(gradient, layer, values[layer], slopes.get(layer), summed[layer])
            for link in self.network.links:
                if link.destination == layer and link.n_units > 0:
                    self._add_weight_gradient(gradient, position, link, values[link.source], summed[layer])

    def _by_values(
        self,
        position: Array,
        values: Array,
        summed: dict[int, Array],
        layer: int,
        value_gradient: Array | None,
    ) -> Array:
        """Return the derivatives by the values of a hidden layer, (n_chains, n_units, n), in a new array."""
        network, xp = self.network, array_namespace(position)
        derivative = None if value_gradient is None else value_gradient.copy()
        for link in network.links:
            if link.source == layer and link.n_units > 0:
                weights = matrix_of(position, link, network)[:, : link.n_units]
                product = xp.multiply if weights.shape[2] == 1 else self.product
                part = product(weights, summed[link.destination])
                derivative = part if derivative is None else derivative + part
        return xp.zeros_like(values) if derivative is None else derivative

    def _add_weight_gradient(
        self, gradient: Array, position: Array, link: LinkPlan, values: Array, summed: Array
    ) -> None:
        """Add the gradient of a link's weights; a link from the inputs also adds to their offsets."""
        part = matrix_of(gradient, link, self.network)[:, : link.n_units]  # a view
        if link.source > 0:
            part += self.product(values, summed.swapaxes(1, 2))
            return
        rows = values[..., link.first_row : link.first_row + link.n_units, :]
        if rows.ndim == 3:
            part += self.product(rows, summed.swapaxes(1, 2))
        else:
            stacked = summed.reshape(-1, summed.shape[2])
            product = self.product(rows, stacked.T)  # (n_units, n_chains * n_destinations)
            part += product.reshape(len(rows), len(summed), -1).swapaxes(0, 1)
        offsets, to_offsets = self.input_offsets(position), self.input_offsets(gradient)
        if offsets is not None and to_offsets is not None:
            totals = summed.sum(axis=2)[:, None]
            part += offsets[:, :, None] * totals
            matrix = matrix_of(position, link, self.network)[:, : link.n_units]
            to_offsets += (matrix * totals).sum(axis=2)

    def tile_of_all(self) -> CaseTile:
        """Return all cases as one tile."""
        target = self.target
        return CaseTile(target.inputs, target.targets, target.observed, 0)

    def tiles(self, n_chains: int) -> Iterator[CaseTile]:
        """Yield all cases in tiles of about equal size. The units of a tile take at most tile_bytes."""
        target = self.target
        n = tile_size(target.n_cases, self.tile_bytes // self.bytes_of_a_case(n_chains))
        for first in range(0, target.n_cases, n):
            yield CaseTile(target.inputs[:, first : first + n], target.targets, target.observed, first)

    def _tiles_of_blocks(self, part: Array, n_partitions: int) -> Iterator[CaseTile]:
        """Yield tiles of each chain's block, gathered on the device."""
        blocks, xp, n_chains = self.target.blocks_of(n_partitions), array_namespace(part), len(part)
        n_inputs = self.network.units[0] + 1
        size = self.bytes_of_a_case(n_chains) + n_chains * n_inputs * np.dtype(self.target.dtype).itemsize
        n = max(1, self.tile_bytes // size)
        for first in range(0, blocks.inputs.shape[-1], n):
            inputs, targets, weights, _ = blocks.cases(first, first + n).at(part)
            if weights is not None:  # padding cases of a block have the same weight for all targets
                shape = (n_chains, self.network.n_targets, inputs.shape[-1])
                weights = xp.ascontiguousarray(xp.broadcast_to(weights, shape))
            yield CaseTile(inputs, xp.ascontiguousarray(targets), weights, 0)
