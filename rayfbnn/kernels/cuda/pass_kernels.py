"""The kernels of products.cu, which run between the products of a network's pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.build import Build, CudaFunction
from rayfbnn.kernels.cuda.checks import stride
from rayfbnn.kernels.cuda.generate import source_of
from rayfbnn.kernels.cuda.launch_plan import WARP, wide_plan
from rayfbnn.kernels.plan import ACTIVATION_CODES, NetworkPlan

_CASES_OF_A_THREAD = 4  # as in products.cu
_STORED = {ACTIVATION_CODES[name] for name in ("softplus", "softplus0", "sin")}  # has_kept_slope there
_MOST_BYTES_OF_OUTPUTS = 64  # of a case: 16 outputs in float32


@dataclass(frozen=True, eq=False)
class Tile:
    """Some of the cases, n of them, as a pass reads them.

    inputs   (n_inputs + 1, n); or (n_chains, n_inputs + 1, n), where each chain has its own
    targets  (..., n_outputs, n_cases); the tile's targets start at case number `begin`
    weights  weights of the targets, (..., n_targets, n_cases), or None
    """

    inputs: Array
    targets: Array
    weights: Array | None
    begin: int

    @property
    def n(self) -> int:
        """Number of cases in the tile."""
        return int(self.inputs.shape[-1])


@dataclass(frozen=True, eq=False)
class PassKernels:
    """The kernels for one network, whose parameters are the `position` (n_chains, n_parameters).

    functions  the kernels in use, by name and by whether they are for weighted targets
    """

    network: NetworkPlan
    dtype: str
    build: Build
    functions: dict[tuple[str, bool], CudaFunction] = field(default_factory=dict)

    @property
    def has_few_outputs(self) -> bool:
        """True if the last hidden layer alone leads to the outputs, and these fit in a thread's registers."""
        network, last = self.network, len(self.network.units) - 2
        sources = [link.source for link in network.links if link.destination == last + 1 and link.n_units > 0]
        n_bytes = network.units[-1] * np.dtype(self.dtype).itemsize
        return last > 0 and sources == [last] and n_bytes <= _MOST_BYTES_OF_OUTPUTS

    def activate(self, position: Array, layer: int, u: Array, slopes: dict[int, Array] | None) -> None:
        """Replace the summed inputs of a hidden layer, which lack biases, by its values with offsets.

        If `slopes` is given, the layer's slopes are put there, unless they follow from the values, and the
        device's fast functions are used. Otherwise accurate ones are.
        """
        n_rows, n = u.shape[0] * u.shape[1], u.shape[2]
        threads = _threads_of_a_row(-(-n // _CASES_OF_A_THREAD))
        n_blocks = n_rows * -(-n // (_CASES_OF_A_THREAD * threads))
        arguments: tuple[Any, ...] = np.int32(layer), position, u, np.int32(n)
        if slopes is None:
            self._launch_blocks("activate_for_energy", n_blocks, *arguments, threads=threads)
            return
        arguments = *arguments[:-1], self._slope_of(layer, u, slopes), np.int32(n)
        self._launch_blocks("activate_for_force", n_blocks, *arguments, threads=threads)

    def slopes_of_outputs(
        self, position: Array, outputs: Array, factor: Array, noise: Array, tile: Tile
    ) -> None:
        """Replace outputs, which lack biases, by minus factor times the likelihood's derivatives by them."""
        arguments = outputs, factor, *self._outputs(position, noise, tile)
        self._launch("slopes_of_outputs", len(position) * tile.n, *arguments, tile=tile)

    def terms_of_outputs(self, position: Array, outputs: Array, noise: Array, tile: Tile) -> Array:
        """Return the log likelihood of each case, (n_chains, n) float64, of outputs that lack biases."""
        terms = array_namespace(position).empty((len(position), tile.n))
        arguments = outputs, terms, *self._outputs(position, noise, tile)
        self._launch("terms_of_outputs", terms.size, *arguments, tile=tile)
        return terms

    def slopes_of_few_outputs(
        self,
        position: Array,
        u: Array,
        slopes: dict[int, Array],
        factor: Array,
        noise: Array,
        tile: Tile,
    ) -> Array:
        """Activate the last hidden layer; return what `slopes_of_outputs` puts in place of the outputs."""
        last = len(self.network.units) - 2
        shape = len(position), self.network.units[-1], tile.n
        outputs = array_namespace(position).empty(shape, dtype=position.dtype)
        arguments = u, self._slope_of(last, u, slopes), outputs, factor
        n = len(position) * tile.n
        self._launch("slopes_of_few_outputs", n, *arguments, *self._outputs(position, noise, tile), tile=tile)
        return outputs

    def finish(
        self, gradient: Array, layer: int, values: Array, slope: Array | None, derivative: Array
    ) -> None:
        """Multiply a layer's derivatives by its slopes; add their sums to the gradient of biases and offsets.

        The derivatives by the outputs are by summed inputs already.
        """
        n_rows, n = derivative.shape[0] * derivative.shape[1], derivative.shape[2]
        arguments = np.int32(layer), values, _or_empty(slope, values), derivative, gradient, np.int32(n)
        self._launch_blocks("finish_derivatives", n_rows, *arguments, threads=_threads_of_a_row(n))

    def by_few_outputs(
        self, gradient: Array, position: Array, values: Array, slope: Array | None, by_outputs: Array
    ) -> Array:
        """Return the derivatives by the summed inputs of the last hidden layer.

        The gradients of its biases and offsets, and of the weights from it, are added.
        """
        n_chains, n_units, n = values.shape
        derivative = array_namespace(values).empty_like(values)
        at_once = 4 if by_outputs.shape[1] * by_outputs.itemsize <= 40 else 2  # UNITS_AT_ONCE of products.cu
        arguments = position, values, _or_empty(slope, values), by_outputs, derivative, gradient, np.int32(n)
        n_blocks, threads = n_chains * -(-n_units // at_once), _threads_of_a_row(n)
        self._launch_blocks("derivatives_by_few_outputs", n_blocks, *arguments, threads=threads)
        return derivative

    def add_prior(self, gradient: Array, position: Array, precisions: Array) -> None:
        """Add the prior's gradient, (n_chains, n_parameters)."""
        self._launch("add_prior", position.size, position, precisions, gradient, np.int32(len(position)))

    def prior_energy(self, position: Array, precisions: Array) -> Array:
        """Return the prior's energy without factors of precisions alone, (n_chains,) float64."""
        energies = array_namespace(position).empty(position.shape)
        self._launch("prior_energies", position.size, position, precisions, energies, np.int32(len(position)))
        return energies.sum(axis=1)

    def _slope_of(self, layer: int, u: Array, slopes: dict[int, Array]) -> Array:
        """Return memory for the slopes of a layer, also in `slopes`, or an empty array if none are stored."""
        if self.network.activations[layer - 1] in _STORED or self.network.offsets[layer] >= 0:
            slopes[layer] = array_namespace(u).empty_like(u)
        return _or_empty(slopes.get(layer), u)

    def _outputs(self, position: Array, noise: Array, tile: Tile) -> tuple[Any, ...]:
        """Return the arguments OUTPUT_ARGUMENTS of products.cu."""
        xp = array_namespace(tile.inputs)
        weights = xp.empty(0) if tile.weights is None else tile.weights
        return (
            position,
            noise,
            xp.ascontiguousarray(tile.targets, dtype=self.dtype),
            tile.targets,
            weights,
            np.int64(stride(tile.targets)),
            np.int64(stride(weights)),
            np.int32(len(position)),
            np.int32(tile.targets.shape[-1]),
            np.int32(tile.begin),
            np.int32(tile.n),
        )

    def _launch(self, name: str, n: int, *arguments: Any, tile: Tile | None = None) -> None:
        """Launch a kernel of n threads, compiled for weighted targets if the tile has weights."""
        is_weighted = tile is not None and tile.weights is not None
        self._launch_blocks(name, -(-n // wide_plan.threads), *arguments, is_weighted=is_weighted)

    def _launch_blocks(
        self,
        name: str,
        n_blocks: int,
        *arguments: Any,
        threads: int = wide_plan.threads,
        is_weighted: bool = False,
    ) -> None:
        if n_blocks == 0:  # a layer without units
            return
        # To find a function by its source takes longer than to launch it.
        function = self.functions.get((name, is_weighted))
        if function is None:
            source = source_of(self.network, wide_plan, dtype=self.dtype, is_weighted=is_weighted)
            function = self.functions[name, is_weighted] = self.build(source, name, 0)
        function((n_blocks,), (threads,), arguments)


def _threads_of_a_row(n: int) -> int:
    """Return the threads of a block that has one row of n numbers: whole warps, or one thread for a few."""
    return 1 if n <= WARP else min(wide_plan.threads, -(-n // WARP) * WARP)


def _or_empty(slope: Array | None, values: Array) -> Array:
    return array_namespace(values).empty(0, dtype=values.dtype) if slope is None else slope
