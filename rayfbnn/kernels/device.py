"""Which kernel advances a posterior whose arrays are on a CUDA device."""

from __future__ import annotations

from functools import partial

from rayfbnn.kernels import cuda, wide
from rayfbnn.kernels.graphs import Recordings
from rayfbnn.kernels.program import Program
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance


def advance_for(
    posterior: Posterior,
    *,
    build: cuda.Build = cuda.build_once,
    max_shared_bytes: int | None = None,
    recordings: Recordings | None = None,
) -> tuple[Advance, str] | str:
    """The kernel and its name for people, or in words why only array code covers the posterior.

    Whole trajectories on the chip where the network's state fits there, products over all chains otherwise:
    the first reads nothing but cases from device memory, so where it fits nothing else comes near it. Either
    runs what the posterior was tempered or given other targets to as well: what differs goes in as numbers.

    max_shared_bytes  of a block; what the device has unless given
    recordings        where the full gradients of products are CUDA graphs, if they are to be
    """
    program = Program.of(posterior)
    if isinstance(program, str):
        return program
    limit = cuda.shared_memory_of_device() if max_shared_bytes is None else max_shared_bytes
    plan = cuda.plan_of(program, dtype=posterior.dtype, max_shared_bytes=limit)
    if isinstance(plan, cuda.Plan):
        on_chip = partial(cuda.advance, program=program, plan=plan, build=build)
        return on_chip, f"CUDA, whole trajectories, a {plan.kernel} a chain"
    in_products = wide.advance_for(posterior, build=build, recordings=recordings)
    if isinstance(in_products, str):
        return in_products
    gradients = ", gradients in TF32" if posterior.dtype == "float32" else ""
    gradients += "" if recordings is None else ", full gradients as CUDA graphs"
    return in_products, f"CUDA, products over all chains{gradients} ({plan})"
