"""The kernels that run between the matrix products of a network's pass, or replace those of few outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.build import Build, SourceFunctions
from rayfbnn.kernels.cuda.checks import CaseTile, output_arguments
from rayfbnn.kernels.cuda.launch_plan import WARP, few_outputs_plan, stores_slopes, wide_plan
from rayfbnn.kernels.network_plan import NetworkPlan

_CASES_OF_A_THREAD = 4  # as in products.cu


@dataclass(frozen=True, eq=False)
class PassKernels:
    """The kernels for one network. Its parameters are the `position` (n_chains, n_parameters).

    few_outputs  the kernels that replace products if there are few outputs, or None
    """

    network: NetworkPlan
    functions: SourceFunctions
    few_outputs: FewOutputs | None

    @staticmethod
    def of(network: NetworkPlan, dtype: str, build: Build) -> PassKernels:
        """Return the kernels of a network."""
        few_outputs = FewOutputs.of(network, dtype, build)
        return PassKernels(network, SourceFunctions(network, wide_plan, dtype, build), few_outputs)

    def activate(self, position: Array, layer: int, u: Array, slopes: dict[int, Array] | None) -> None:
        """Replace the summed inputs of a hidden layer, which lack biases, by its values with offsets.

        If `slopes` is given, the device's fast functions are used, and slopes that do not follow from the
        values are stored in `slopes`. Otherwise accurate functions are used.
        """
        n_rows, n = u.shape[0] * u.shape[1], u.shape[2]
        threads = _threads_of_a_row(-(-n // _CASES_OF_A_THREAD))
        n_blocks = n_rows * -(-n // (_CASES_OF_A_THREAD * threads))
        arguments: tuple[Any, ...] = np.int32(layer), position, u, np.int32(n)
        if slopes is None:
            self.functions.launch("activate_for_energy", n_blocks, *arguments, threads=threads)
            return
        arguments = *arguments[:-1], self._slope_of(layer, u, slopes), np.int32(n)
        self.functions.launch("activate_for_force", n_blocks, *arguments, threads=threads)

    def slopes_of_outputs(
        self, position: Array, outputs: Array, factor: Array, noise: Array, tile: CaseTile
    ) -> None:
        """Replace outputs, which lack biases, by minus factor times the likelihood's derivatives by them."""
        arguments = outputs, factor, *output_arguments(position, noise, tile)
        self._launch("slopes_of_outputs", len(position) * tile.n, *arguments, tile=tile)

    def terms_of_outputs(self, position: Array, outputs: Array, noise: Array, tile: CaseTile) -> Array:
        """Return each case's log likelihood (n_chains, n) in float64, given outputs that lack biases."""
        terms = array_namespace(position).empty((len(position), tile.n))
        arguments = outputs, terms, *output_arguments(position, noise, tile)
        self._launch("terms_of_outputs", terms.size, *arguments, tile=tile)
        return terms

    def finish(
        self, gradient: Array, layer: int, values: Array, slope: Array | None, derivative: Array
    ) -> None:
        """Multiply a layer's derivatives by its slopes; add their sums to the gradient of biases and offsets.

        The outputs need no multiplication, because their values are their summed inputs.
        """
        n_rows, n = derivative.shape[0] * derivative.shape[1], derivative.shape[2]
        arguments = np.int32(layer), values, _or_empty(slope, values), derivative, gradient, np.int32(n)
        self.functions.launch("finish_derivatives", n_rows, *arguments, threads=_threads_of_a_row(n))

    def kick_and_drift(
        self,
        position: Array,
        momentum: Array,
        gradient: Array,
        stepsizes: Array,
        *,
        kick: float,
        drift: float,
    ) -> None:
        """Change the momentum by the share `kick` of the stepsizes, then the position by `drift`."""
        arrays = position, momentum, gradient, stepsizes
        shares = np.float64(kick), np.float64(drift)
        self._launch("kick_and_drift", position.size, *arrays, *shares, np.int64(position.size))

    def add_prior(self, gradient: Array, position: Array, precisions: Array) -> None:
        """Add the prior's gradient, (n_chains, n_parameters)."""
        self._launch("add_prior", position.size, position, precisions, gradient, np.int32(len(position)))

    def prior_energy(self, position: Array, precisions: Array) -> Array:
        """Return the prior's energy without factors of precisions alone, (n_chains,) float64."""
        energies = array_namespace(position).empty(position.shape)
        self._launch("prior_energies", position.size, position, precisions, energies, np.int32(len(position)))
        return energies.sum(axis=1)

    def _slope_of(self, layer: int, u: Array, slopes: dict[int, Array]) -> Array:
        """Return an array for a layer's slopes and add it to `slopes`; an empty array if none are stored."""
        if stores_slopes(self.network, layer):
            slopes[layer] = array_namespace(u).empty_like(u)
        return _or_empty(slopes.get(layer), u)

    def _launch(self, name: str, n: int, *arguments: Any, tile: CaseTile | None = None) -> None:
        """Launch a kernel of n threads, compiled for weighted targets if the tile has weights."""
        is_weighted = tile is not None and tile.weights is not None
        self.functions.launch(name, -(-n // wide_plan.threads), *arguments, is_weighted=is_weighted)


def _threads_of_a_row(n: int) -> int:
    """Return the threads of a block for one row of n numbers: whole warps, or one thread for a short row."""
    return 1 if n <= WARP else min(wide_plan.threads, -(-n // WARP) * WARP)


def _or_empty(slope: Array | None, values: Array) -> Array:
    return array_namespace(values).empty(0, dtype=values.dtype) if slope is None else slope


_BLOCKS = 1024  # in a launch, if there are enough cases: several for each place on a device


@dataclass(frozen=True, eq=False)
class FewOutputs:
    """The kernels for one network. Its parameters are the `position` (n_chains, n_parameters)."""

    network: NetworkPlan
    functions: SourceFunctions

    @staticmethod
    def of(network: NetworkPlan, dtype: str, build: Build) -> FewOutputs | None:
        """Return the kernels of a network, or None if they do not cover it."""
        plan = few_outputs_plan(network, dtype)
        return None if plan is None else FewOutputs(network, SourceFunctions(network, plan, dtype, build))

    def add_gradient(
        self, gradient: Array, position: Array, u: Array, factor: Array, noise: Array, tile: CaseTile
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
