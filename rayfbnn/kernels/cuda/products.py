"""Trajectories of large networks on a device, computed as matrix products over all chains.

Gradients may be computed with TF32. Energies never are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda.build import Build, build_once
from rayfbnn.kernels.cuda.checks import check_posterior, check_trajectory
from rayfbnn.kernels.cuda.graphs import Recording, Recordings
from rayfbnn.kernels.cuda.network_pass import Pass
from rayfbnn.kernels.cuda.pass_kernels import PassKernels
from rayfbnn.kernels.network_plan import plan_of
from rayfbnn.kernels.numbers import numbers_of_posterior, posterior_behind
from rayfbnn.model.integrated import WithoutPrecisions
from rayfbnn.model.output_layer import Integrated, add_integrated, with_columns
from rayfbnn.state import Target, Trajectory

TILE_BYTES = 2 * 2**30
"""Memory budget, in bytes, for one tile of cases over all chains: far more than it takes to fill a device."""
_FEWEST_STEPS_TO_RECORD = 8  # a recording costs about three gradients
# Bytes of the units at all cases. A kernel that reads this much takes about 0.1 ms at 3 TB/s, which is longer
# than the host takes to launch it, and a recording holds more memory than that.
_MOST_BYTES_TO_RECORD = 2**28


@dataclass(frozen=True, eq=False)
class Products:
    """Trajectories and kicks on a device for a posterior, or for one with common precisions integrated out.

    The rounding of a product may depend on its width, so a chain's bits may depend on the number of chains in
    its batch. A store fixes its batches.

    recordings  keeps the CUDA graphs of full gradients; None for no graphs
    """

    kernels: PassKernels
    uses_tf32: bool = True
    tile_bytes: int = TILE_BYTES
    recordings: Recordings | None = None

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Run `mcmc.leapfrog.advance` to the rounding of its gradients; the potential is exact."""
        xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
        work, groups = self._pass(target, trajectory), _groups(target)
        posterior = work.target
        n_partitions = 1 if order is None else order.shape[1]
        if n_partitions > posterior.n_cases:
            raise ValueError(
                f"order: must have at most {posterior.n_cases} partitions (cases), got {n_partitions}"
            )
        is_worth_it = (
            n_steps >= _FEWEST_STEPS_TO_RECORD
            and work.bytes_of_a_case(n_chains) * posterior.n_cases <= _MOST_BYTES_TO_RECORD
        )
        recording = None
        if self.recordings is not None and order is None and is_worth_it:
            recording = _recording(self.recordings, work, trajectory.position)
        position = trajectory.position.copy() if recording is None else recording.arguments[0]
        momentum = trajectory.momentum.copy()

        def gradient(position: Array, number: int) -> Array:
            """Return the gradient at a sub-step, over all cases or over each chain's current block."""
            if recording is not None:
                gradient = recording.launch()
            else:
                part = None if order is None else order[:, number % n_partitions]
                gradient = work.gradient(position, part, n_partitions)
            if groups:
                add_integrated(position, trajectory.precisions, groups, gradient=gradient)
            return gradient

        with np.errstate(all="ignore"):
            take_steps(
                self.kernels,
                gradient,
                position,
                momentum,
                trajectory.stepsizes,
                n_steps=n_steps,
                n_partitions=n_partitions,
            )
            potential = work.potential(position)
            potential += add_integrated(position, trajectory.precisions, groups)
            # The next trajectory overwrites the position of a recording.
            end = position if recording is None else position.copy()
            return trajectory.moved(end, momentum), xp.where(xp.isfinite(potential), potential, xp.inf)

    def kick(self, target: Target, trajectory: Trajectory, *, share: float) -> Array:
        """Return the momentum after a kick, as `mcmc.leapfrog.kick` does, to the rounding of its gradient."""
        position, precisions = trajectory.position, trajectory.precisions
        with np.errstate(all="ignore"):
            gradient = self._pass(target, trajectory).gradient(position, None, 1)
            add_integrated(position, precisions, _groups(target), gradient=gradient)
            return trajectory.momentum - share * trajectory.stepsizes * gradient

    def _pass(self, target: Target, trajectory: Trajectory) -> Pass:
        """Check the arrays; return the pass that computes gradients and energies with these precisions."""
        posterior, groups = posterior_behind(target), _groups(target)
        check_trajectory(trajectory, posterior, self.kernels.network.n_parameters)
        check_posterior(posterior, self.kernels.network, len(trajectory.position))
        numbers = numbers_of_posterior(posterior, with_columns(trajectory.precisions, groups, value=0.0))
        return Pass(self.kernels, self.tile_bytes, posterior, numbers, uses_tf32=self.uses_tf32)


def compile_for(target: Target, *, build: Build = build_once, **options: Any) -> Products | NotCovered:
    """Return the products for a target, or the reason why compiled code does not cover it.

    options  fields of `Products`
    """
    posterior = posterior_behind(target)
    network = plan_of(posterior)
    if isinstance(network, NotCovered):
        return network
    return Products(PassKernels.of(network, posterior.dtype, build), **options)


def take_steps(
    kernels: PassKernels,
    gradient: Callable[[Array, int], Array],
    position: Array,
    momentum: Array,
    stepsizes: Array,
    *,
    n_steps: int,
    n_partitions: int = 1,
) -> None:
    """Take the steps of mcmc.leapfrog.advance, changing position and momentum in place.

    gradient  returns the gradient at a position (n_chains, n_parameters), given the number of the sub-step
    """
    last = n_steps * n_partitions
    for number in range(last + 1 if last > 0 else 0):
        kernels.kick_and_drift(
            position,
            momentum,
            gradient(position, number),
            stepsizes,
            kick=(0.5 if number in (0, last) else 1) / n_partitions,
            drift=0 if number == last else 1 / n_partitions,
        )


def _groups(target: Target) -> tuple[Integrated, ...]:
    """Return the groups with common precisions that are integrated out."""
    return target.groups if isinstance(target, WithoutPrecisions) else ()


def _recording(recordings: Recordings, work: Pass, position: Array) -> Recording | None:
    """Return a recording of the full gradient; its first argument is the position."""
    target, numbers = work.target, work.numbers
    # The graph refers to these arrays by address. `work` holds them, so the addresses are not reused.
    arrays = target.inputs, target.targets, target.observed
    key = (work.network, work.uses_tf32, work.tile_bytes, position.shape, *(id(array) for array in arrays))
    tolerance = 1e-9 if position.dtype == np.float64 else 2e-2 if work.uses_tf32 else 1e-3
    with np.errstate(all="ignore"):
        return recordings.of(
            key,
            work.gradient_given,
            (position, numbers.precisions, numbers.noise, numbers.inverse_temperature),
            plain=work.gradient_given,
            tolerance=tolerance,
        )
