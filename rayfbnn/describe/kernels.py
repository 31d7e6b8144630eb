"""Describes the kernels that run the leapfrog steps of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfbnn.arrays import gpu_is_available
from rayfbnn.data import read_dataset
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda.advance import GRAPHS, LAUNCHES
from rayfbnn.kernels.cuda.build import shared_memory_of_device
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.operation import TrajectoryOperation, with_inner
from rayfbnn.run.kernel import kernel_name
from rayfbnn.run.sampler import build_posterior
from rayfbnn.spec import RunSpec
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.store.store import Store

Over = tuple[Literal["outputs", "precisions"], ...]


def describe_kernels(spec: RunSpec, store: Store | None) -> Iterator[str]:
    """Yield lines that name the kernels of each kind of leapfrog step.

    With a store the lines name the kernels that its run started with, otherwise the kernels that this machine
    would use. On a GPU the choice depends on its memory, so it is certain only on a machine with a GPU.
    """
    current = kernel_name(spec)
    recorded = name = current if store is None else store.root.kernel
    if not choose.is_available(name):
        name += f"; not available on this machine, which would use {current}"
    operations = [update for phase in spec.phase for update in with_inner(phase.operations)]
    overs = tuple(dict.fromkeys(one.over for one in operations if isinstance(one, HybridMarginal)))
    marginal = dict.fromkeys(overs, name)
    if name in (LAUNCHES, GRAPHS):
        marginal = dict.fromkeys(overs, LAUNCHES)
        dataset = _dataset(spec, store) if gpu_is_available() else None
        if dataset is not None:
            name, marginal = device_kernels(spec, dataset, overs, recorded, shared_memory_of_device())
    yield f"  leapfrog steps: {name}"
    for over, marginal_name in marginal.items():
        yield f"  leapfrog steps of hybrid-marginal over {' and '.join(over)}: {marginal_name}"
    integrators = [one.integrator for one in operations if isinstance(one, TrajectoryOperation)]
    for integrator in dict.fromkeys(integrators):
        if integrator != "leapfrog":
            yield f"  {integrator} steps: {choose.ARRAY_CODE[spec.device].name}"


def _dataset(spec: RunSpec, store: Store | None) -> Dataset | None:
    if store is not None:
        return store.data
    path = spec.train_path
    return read_dataset(spec) if path is not None and path.exists() else None


def device_kernels(
    spec: RunSpec, dataset: Dataset, overs: Iterable[Over], recorded: str, max_shared_bytes: int
) -> tuple[str, dict[Over, str]]:
    """Return the names of the kernels on a GPU: for the posterior, and for hybrid-marginal over `overs`.

    recorded          name of the kernel that the run started with
    max_shared_bytes  shared memory of a thread block on the GPU
    """
    posterior = build_posterior(spec, dataset, device="cpu")
    choice = partial(choose.advance_on, "gpu", recorded=recorded, max_shared_bytes=max_shared_bytes)
    streams = Streams(spec.seed, np.zeros(1, dtype=np.uint64))
    state = posterior.initial_state(streams, sigmas=1.0)
    targets = {over: posterior.marginal(over).given(state, streams) for over in overs}
    return choice(posterior)[1], {over: choice(target)[1] for over, target in targets.items()}
