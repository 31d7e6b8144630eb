"""The number of GPUs among which a run divides its chains."""

from __future__ import annotations

from rayfbnn.arrays import gpus_here
from rayfbnn.run.on_ray.cluster import connect
from rayfbnn.run.on_ray.nodes import look_at_nodes


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
