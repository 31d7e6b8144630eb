"""The hardware that a run uses: its cores, its GPUs, and the kernel for them."""

from __future__ import annotations

import os

from rayfbnn.arrays import gpus_here
from rayfbnn.kernels import choose
from rayfbnn.run.on_ray.cluster import connect
from rayfbnn.run.on_ray.nodes import look_at_nodes
from rayfbnn.spec import RunSpec


def n_cores() -> int:
    """Return how many cores this process may run on, or all cores if the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def n_gpus(workers: int | None, address: str | None) -> int:
    """Return how many GPUs a run uses: one per worker, limited by the GPUs of this machine.

    A run in this process (workers=0) uses one. A cluster may add nodes, so `workers` is not limited there;
    without it, the run uses the GPUs that the cluster has now.
    """
    if workers == 0:
        return 1
    if address is not None:
        return workers or look_at_nodes(connect(workers, address)[0], 1).room
    here = gpus_here()
    return here if workers is None else min(workers, here)


def with_batches(spec: RunSpec, workers: int | None, address: str | None) -> RunSpec:
    """Return a new run with its chains divided among the workers that it will have; settings stay.

    workers, address  as in RunOptions. The cores of a cluster are not known, so its batches are the default.
    """
    if spec.device == "gpu":
        return spec.with_batches_for(n_gpus(workers, address))
    if address is not None and workers is None:
        return spec
    n_workers = max(1, n_cores() if workers is None else workers)
    return spec.with_batches_for_cores(n_workers, is_asked=bool(workers))


def kernel_name(spec: RunSpec) -> str:
    """Return the name of the code that will run the leapfrog steps of `spec` on this machine.

    The store of the run records the name. Raises ConfigError if the environment asks for a kernel that this
    machine does not have.
    """
    return choose.name_for(spec.network, spec.model, n_targets=len(spec.data.targets), device=spec.device)
