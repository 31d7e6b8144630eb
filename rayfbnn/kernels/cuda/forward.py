"""Forward passes of networks on a device, as products over all chains or draws at once.

All chains have the same inputs, so their first layers are one product, of (chains * units, inputs) and
(inputs, cases). Further layers take one product for each chain, all in one call. The kernels of
pass_kernels.py run between the products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda import cublas
from rayfbnn.kernels.cuda.pass_kernels import PassKernels
from rayfbnn.kernels.network_plan import LinkPlan, NetworkPlan

_ALIGNED = 4  # numbers: 16 bytes of float32
_CASES = 64  # the number of cases in a tile is a multiple of this


@dataclass(frozen=True, eq=False)
class Forward:
    """Forward passes of networks, whose parameters are the `position` (n_chains, n_parameters).

    tile_bytes  for the units of the cases that are evaluated at once
    uses_tf32   whether products in float32 may use TF32
    """

    kernels: PassKernels
    tile_bytes: int
    uses_tf32: bool = field(default=False, kw_only=True)

    @property
    def network(self) -> NetworkPlan:
        """The wiring of the networks."""
        return self.kernels.network

    def networks_at_once(self, n_cases: int) -> int:
        """Return how many networks fit in a tile with their parameters and all cases; at least one."""
        of_weights = 2 * self.network.n_parameters * np.dtype(self.kernels.functions.dtype).itemsize
        return max(1, self.tile_bytes // (self.bytes_of_a_case(1) * n_cases + of_weights))

    def outputs(self, position: Array, inputs: Array) -> Array:
        """Return the outputs without biases, (n_chains, n_outputs, n), at inputs (n_inputs + 1, n).

        The cases are evaluated in tiles.
        """
        n = inputs.shape[1]
        size = tile_size(n, self.tile_bytes // self.bytes_of_a_case(len(position)))
        shape = len(position), self.network.units[-1], n
        outputs = array_namespace(position).empty(shape, dtype=position.dtype)
        with np.errstate(all="ignore"):
            for first in range(0, n, size):
                some = slice(first, first + size)
                outputs[..., some] = self.forward(position, inputs[:, some], slopes=None)[-1]
        return outputs

    def forward(
        self, position: Array, inputs: Array, *, slopes: dict[int, Array] | None, last: int | None = None
    ) -> list[Array]:
        """Return the values of each layer's units, (n_chains, n_units, n); of the last, its summed inputs.

        These lack their biases. If `slopes` is given, activations are computed with the device's fast
        functions, and slopes of hidden layers that do not follow from the values are stored in `slopes`.
        Otherwise activations are computed with accurate functions.

        inputs  (n_inputs + 1, n), or (n_chains, n_inputs + 1, n) if each chain has its own
        last    the last layer; None for the outputs
        """
        values, last = [inputs], len(self.network.units) - 1 if last is None else last
        for layer in range(1, last + 1):
            values.append(self._all_summed(position, layer, values))
            if layer < last:
                self.kernels.activate(position, layer, values[-1], slopes)
        return values

    def _all_summed(self, position: Array, layer: int, values: list[Array]) -> Array:
        """Return a layer's summed inputs without biases, (n_chains, n_units, n), in a new array."""
        u: Array = None
        for link in self.network.links:
            if link.destination == layer and link.n_units > 0:
                part = self._summed(position, link, values[link.source])
                u = part if u is None else u + part
        if u is None:
            shape = len(position), self.network.units[layer], values[0].shape[-1]
            u = array_namespace(position).zeros(shape, dtype=position.dtype)
        return u

    def product(self, a: Array, b: Array) -> Array:
        """Return a @ b, for matrices or equally long stacks of matrices."""
        return cublas.product(a, b, uses_tf32=self.uses_tf32)

    def input_offsets(self, vector: Array) -> Array | None:
        """Return a view of the offsets of the inputs in (n_chains, n_parameters), or None."""
        network = self.network
        if network.offsets[0] < 0:
            return None
        return vector[:, network.offsets[0] : network.offsets[0] + network.units[0]]

    def _summed(self, position: Array, link: LinkPlan, values: Array) -> Array:
        """Return a link's part of the summed inputs without biases, (n_chains, n_destinations, n)."""
        matrix = matrix_of(position, link, self.network)[:, : link.n_units]
        if link.source > 0:
            return self.product(matrix.swapaxes(1, 2), values)
        rows = values[..., link.first_row : link.first_row + link.n_units, :]
        if rows.ndim == 3:
            summed = self.product(matrix.swapaxes(1, 2), rows)
        else:
            summed = self.product(_stacked(matrix), rows).reshape(matrix.shape[0], matrix.shape[2], -1)
        offsets = self.input_offsets(position)
        if offsets is not None:  # the same for all cases
            summed += (matrix * offsets[:, :, None]).sum(axis=1)[:, :, None]
        return summed

    def bytes_of_a_case(self, n_chains: int) -> int:
        """Return the bytes of a case: values and slopes of all units, and the widest layer's derivatives."""
        units = self.network.units[1:]
        return n_chains * (2 * sum(units) + max(units)) * np.dtype(self.kernels.functions.dtype).itemsize


def _stacked(matrix: Array) -> Array:
    """Return the transposed matrices of all chains as one, (n_chains * n_destinations, n_units).

    Its rows begin at multiples of 16 bytes, which lets the library load several numbers at a time.
    """
    xp, (n_chains, n_units, n_destinations) = array_namespace(matrix), matrix.shape
    aligned = -(-n_units // _ALIGNED) * _ALIGNED
    stacked = xp.empty((n_chains, n_destinations, aligned), dtype=matrix.dtype)
    stacked[..., :n_units] = matrix.swapaxes(1, 2)
    return stacked.reshape(-1, aligned)[:, :n_units]


def tile_size(n_cases: int, most: int) -> int:
    """Return the number of cases in a tile, from 1 to `most`: a multiple of 64 if possible."""
    most = max(1, most if most < _CASES else most // _CASES * _CASES)
    size = -(-n_cases // -(-n_cases // most))
    return size if most < _CASES else -(-size // _CASES) * _CASES


def matrix_of(vector: Array, link: LinkPlan, network: NetworkPlan) -> Array:
    """Return a view (n_chains, n_rows, n_destinations) of the link's part of (n_chains, n_parameters)."""
    n = network.units[link.destination]
    return vector[:, link.start : link.start + link.n_rows * n].reshape(len(vector), link.n_rows, n)
