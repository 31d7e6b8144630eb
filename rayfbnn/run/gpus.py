"""The number of GPUs that a run divides its chains over."""

from __future__ import annotations

from rayfbnn.arrays import gpus_here
from rayfbnn.run.on_ray.cluster import connect
from rayfbnn.run.on_ray.nodes import look_at_nodes


def n_gpus(workers: int | None, address: str | None) -> int:
    """Return how many GPUs a run uses: one for each worker, as far as this machine or the cluster has them.

    A run without workers of its own uses one. A cluster may add nodes, so there `workers` is taken as given.
    """
    if workers == 0:
        return 1
    if address is not None:
        return workers or look_at_nodes(connect(workers, address)[0], 1).room
    here = gpus_here()
    return here if workers is None else min(workers, here)
