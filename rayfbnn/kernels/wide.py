"""Trajectories of large networks on a device.

Gradients may be computed with TF32; energies never are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.kernels import cublas
from rayfbnn.kernels.cuda import Build, build_once, check, check_data
from rayfbnn.kernels.graphs import Recording, Recordings
from rayfbnn.kernels.program import Program, prior_of
from rayfbnn.kernels.wide_pass import Pass, products
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance

_TILE_BYTES = 2 * 2**30  # of the units of all chains at a tile's cases: far above what fills a device
_FEWEST_STEPS_TO_RECORD = 8  # a recording costs some three gradients


def advance_for(
    posterior: Posterior,
    *,
    build: Build = build_once,
    uses_tf32: bool = True,
    tile_bytes: int = _TILE_BYTES,
    recordings: Recordings | None = None,
) -> Advance | str:
    """`state.Advance` for a posterior on a device, or in words why it is not covered.

    As a whole product's rounding may depend on its width, a chain's bits may depend on how many chains are
    in its batch; batches are fixed in the store.

    recordings  where full gradients are CUDA graphs, if they are to be
    """
    program = Program.of(posterior)
    if isinstance(program, str):
        return program
    if program.offsets[0] >= 0:
        return "offsets of the inputs"
    return partial(
        advance,
        program=program,
        build=build,
        uses_tf32=uses_tf32,
        tile_bytes=tile_bytes,
        recordings=recordings,
    )


def advance(
    target: Posterior,
    position: Array,
    momentum: Array,
    precisions: Array,
    stepsizes: Array,
    *,
    n_steps: int,
    order: Array | None = None,
    program: Program,
    build: Build,
    uses_tf32: bool,
    tile_bytes: int,
    recordings: Recordings | None = None,
) -> tuple[Array, Array, Array]:
    """What mcmc.leapfrog.advance does, to the rounding of its gradients; the potential is exact."""
    xp, n_chains = array_namespace(position), position.shape[0]
    dtype = np.dtype(target.dtype)
    for name, array in (("position", position), ("momentum", momentum), ("stepsizes", stepsizes)):
        check(name, array, dtype, (n_chains, program.n_parameters))
    check("precisions", precisions, np.dtype(np.float64), (n_chains, target.n_precisions))
    check_data(target, program, n_chains)
    numbers = prior_of(target, precisions)
    work = Pass(target, program, build, numbers, tile_bytes)
    # Which chains share their cases at each sub-step; the one thing that the host must know.
    blocks = None if order is None or n_steps == 0 else to_host(order)
    n_partitions = 1 if blocks is None else blocks.shape[1]
    if n_partitions > target.n_cases:
        raise ValueError(f"order: at most the {target.n_cases} cases, got {n_partitions} partitions")
    last = n_steps * n_partitions
    recording = None
    if recordings is not None and blocks is None and n_steps >= _FEWEST_STEPS_TO_RECORD:
        recording = _recording(recordings, work, position, uses_tf32)
    position = position.copy() if recording is None else recording.arguments[0]
    momentum = momentum.copy()
    full = stepsizes / n_partitions
    with np.errstate(all="ignore"):
        for number in range(last + 1 if last > 0 else 0):
            if number > 0:
                position += full * momentum
            if recording is not None:
                gradient = recording.launch()
            else:
                part = None if blocks is None else blocks[:, number % n_partitions]
                with products(xp, uses_tf32):
                    gradient = work.gradient(position, part, n_partitions)
            momentum -= (full / 2 if number in (0, last) else full) * gradient
        with products(xp, False):
            potential = work.potential(position)
        # A recording's position is written to by the next trajectory.
        ended = position if recording is None else position.copy()
        return ended, momentum, xp.where(xp.isfinite(potential), potential, xp.inf)


def _recording(recordings: Recordings, work: Pass, position: Array, uses_tf32: bool) -> Recording | None:
    """That of the full gradient, its first argument the position."""
    xp, target, numbers = array_namespace(position), work.target, work.numbers
    own = replace(work, product=partial(cublas.product, uses_tf32=uses_tf32))
    # What is not an argument is in the graph by its address: held by it, so that no other array has the same.
    arrays = target.inputs, target.targets, target.observed
    key = (work.program, uses_tf32, work.tile_bytes, position.shape, *(id(array) for array in arrays))
    tolerance = 1e-9 if position.dtype == np.float64 else 2e-2 if uses_tf32 else 1e-3
    with np.errstate(all="ignore"), products(xp, uses_tf32):
        return recordings.of(
            key,
            own.gradient_given,
            (position, numbers.precisions, numbers.noise, numbers.inverse_temperature),
            plain=work.gradient_given,
            tolerance=tolerance,
        )
