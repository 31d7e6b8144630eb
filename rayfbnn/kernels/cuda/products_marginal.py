"""Trajectories of large networks on a device with the outputs integrated out.

Networks run as in products.py, but without TF32, because the factorisation magnifies errors of the features.
The regression on the features is the one of model/regression.py, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda.build import Build, build_once
from rayfbnn.kernels.cuda.checks import check_regression, check_trajectory
from rayfbnn.kernels.cuda.generate import runs_of
from rayfbnn.kernels.cuda.launch_plan import NOTHING_KEPT
from rayfbnn.kernels.cuda.network_pass import Pass
from rayfbnn.kernels.cuda.pass_kernels import PassKernels
from rayfbnn.kernels.cuda.products import TILE_BYTES, take_steps
from rayfbnn.kernels.network_plan import plan_of
from rayfbnn.kernels.numbers import kept_precisions, numbers_of_posterior
from rayfbnn.model import regression
from rayfbnn.model.integrated import OutputMarginal, WithoutOutputs
from rayfbnn.model.output_layer import add_integrated
from rayfbnn.state import Advance, Trajectory

# Factorising a few matrices takes as long as factorising many, so a piece of chains is larger than a tile.
_PIECE_BYTES = 2 * TILE_BYTES
# Number of arrays of features and of matrices that the regression holds at once for each system of targets.
_OF_FEATURES, _OF_MATRICES = 5, 6


def compile_for(
    marginal: OutputMarginal, *, build: Build = build_once, tile_bytes: int = _PIECE_BYTES
) -> Advance | NotCovered:
    """Return an `Advance` on a device for the targets of a marginal without outputs."""
    network = plan_of(marginal)
    if isinstance(network, NotCovered):
        return network
    if network.n_parameters == 0:
        return NOTHING_KEPT
    kernels = PassKernels.of(network, marginal.posterior.dtype, build)
    return partial(advance, kernels=kernels, tile_bytes=tile_bytes)


def advance(
    target: WithoutOutputs,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    kernels: PassKernels,
    tile_bytes: int,
) -> tuple[Trajectory, Array]:
    """Run `mcmc.leapfrog.advance` to rounding; forces use the device's fast functions."""
    assert order is None  # the determinant is not a sum over cases
    network = kernels.network
    check_trajectory(trajectory, target.marginal.posterior, network.n_parameters)
    check_regression(target, network, len(trajectory.position))
    precisions = trajectory.precisions
    xp, posterior = array_namespace(trajectory.position), target.marginal.posterior
    with np.errstate(all="ignore"):
        numbers = numbers_of_posterior(posterior, precisions)
        numbers = replace(numbers, precisions=kept_precisions(target, precisions, integrated=0.0))
        layers = Pass(kernels, tile_bytes, posterior, numbers)
        assert network.regression is not None
        work = _Energy(target, precisions, layers, runs_of(network.regression.features))
        position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
        take_steps(kernels, work.gradient, position, momentum, trajectory.stepsizes, n_steps=n_steps)
        potential = work.potential(position)
        return trajectory.moved(position, momentum), xp.where(xp.isfinite(potential), potential, xp.inf)


@dataclass(frozen=True, eq=False)
class _Energy:
    """Gradients and energies of a target with given precisions (n_chains, n_precisions).

    runs  the features in runs, from `runs_of`
    """

    target: WithoutOutputs
    precisions: Array
    layers: Pass
    runs: list[tuple[int, int, int, int]]

    def gradient(self, position: Array, number: int) -> Array:
        """Return the gradient of the potential, (n_chains, n_parameters), for any number of the step."""
        gradient = array_namespace(position).zeros_like(position)
        for chains in self._pieces(len(position)):
            self._add_gradient(gradient[chains], position[chains], self._of_chains(chains))
        self.layers.add_prior(gradient, position)
        add_integrated(position, self.precisions, self.target.marginal.groups, gradient=gradient)
        return gradient

    def potential(self, position: Array) -> Array:
        """Return the potential, (n_chains,) float64."""
        cases = self.layers.tile_of_all()
        energy = self.layers.prior_energy(position) + self.target.prior_of_moved(position)[0]
        energy += add_integrated(position, self.precisions, self.target.marginal.groups)
        for chains in self._pieces(len(position)):
            piece, target = position[chains], self._of_chains(chains)
            phi = self._features(piece, self.layers.forward(piece, cases.inputs, slopes=None))
            data = target.regression_at(piece)
            energy[chains] += regression.energy_and_slopes(phi, data, with_slopes=False)[0]
        return energy

    def _add_gradient(self, gradient: Array, position: Array, target: WithoutOutputs) -> None:
        marginal, cases = target.marginal, self.layers.tile_of_all()
        units: dict[int, Array] = {}
        values = self.layers.forward(position, cases.inputs, slopes=units)
        phi = self._features(position, values)
        _, slopes = regression.energy_and_slopes(phi, target.regression_at(position))
        assert slopes is not None
        value_gradients = marginal.layer.value_gradients(slopes.features, position.dtype)
        self.layers.backward(gradient, position, cases, values, units, value_gradients=value_gradients)
        to_offsets = self.layers.input_offsets(gradient)
        if to_offsets is not None:
            for start, layer, row, size in self.runs:
                if layer == 0:
                    to_offsets[:, row : row + size] += slopes.features[:, start : start + size].sum(axis=2)
        _, of_moved = target.prior_of_moved(position)
        target.add_slopes_of_moved(slopes, gradient=of_moved)
        gradient[:, target.n_kept :] += of_moved.astype(position.dtype)

    def _features(self, position: Array, values: list[Array]) -> Array:
        """Return the features (n_chains, n_features, n_cases) in float64, from each layer's values."""
        n_features, n_cases = self.target.marginal.layer.n_features, values[0].shape[-1]
        phi = array_namespace(position).empty((len(position), n_features, n_cases))
        offsets = self.layers.input_offsets(position)
        for start, layer, row, size in self.runs:
            part = phi[:, start : start + size]
            part[...] = 1 if layer < 0 else values[layer][..., row : row + size, :]
            if layer == 0 and offsets is not None:
                part += offsets[:, row : row + size, None]
        return phi

    def _of_chains(self, chains: slice) -> WithoutOutputs:
        return replace(self.target, regression=self.target.regression.of_chains(chains))

    def _pieces(self, n_chains: int) -> Iterator[slice]:
        """Yield slices of the chains. The units, features and matrices of a slice take about tile_bytes."""
        n = max(1, self.layers.tile_bytes // self._bytes_of_a_chain())
        for first in range(0, n_chains, n):
            yield slice(first, min(first + n, n_chains))

    def _bytes_of_a_chain(self) -> int:
        layer, n_cases = self.target.marginal.layer, self.target.marginal.posterior.n_cases
        size = n_cases if layer.is_dual else layer.n_features
        doubles = layer.n_systems * (_OF_FEATURES * layer.n_features * n_cases + _OF_MATRICES * size**2)
        return 8 * doubles + self.layers.bytes_of_a_case(1) * n_cases
