"""Which code runs the leapfrog steps of a configuration, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfbnn.arrays import gpu_is_available
from rayfbnn.data import read_dataset
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda.chip import shared_memory_of_device
from rayfbnn.mcmc.operations import HybridMarginal, inner_operations, unrolled
from rayfbnn.run.kernel import kernel_for
from rayfbnn.run.sampler import build_posterior
from rayfbnn.spec import RunSpec
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.store.store import Store

Over = tuple[Literal["outputs", "precisions"], ...]


def describe_kernels(spec: RunSpec, store: Store | None) -> Iterator[str]:
    """What runs the leapfrog steps: of a store what it was begun with, else what would on this machine.

    On a device the choice depends on its memory: where there is one here, it is that which is made here.
    """
    here = kernel_for(spec)
    begun = name = here if store is None else store.root.kernel
    if not choose.is_available(name):
        name += f"; not to be had here, where it is {here}"
    done = [each for phase in spec.phase for each in unrolled(phase.operations)]
    done += [inner for each in done for inner in unrolled(inner_operations(each))]
    overs = tuple(dict.fromkeys(each.over for each in done if isinstance(each, HybridMarginal)))
    marginal = dict.fromkeys(overs, name)
    if name in (choose.DEVICE, choose.GRAPHS):
        marginal = dict.fromkeys(overs, choose.DEVICE)
        dataset = _dataset(spec, store) if gpu_is_available() else None
        if dataset is not None:
            name, marginal = device_kernels(spec, dataset, overs, begun, shared_memory_of_device())
    yield f"  leapfrog steps: {name}"
    for over, found in marginal.items():
        yield f"  leapfrog steps of hybrid-marginal over {' and '.join(over)}: {found}"
    if any(getattr(each, "integrator", "leapfrog") != "leapfrog" for each in done):
        yield f"  fourth-order steps: {choose.PLAIN if spec.device == 'cpu' else choose.PLAIN_ON_DEVICE}"


def _dataset(spec: RunSpec, store: Store | None) -> Dataset | None:
    if store is not None:
        return store.data
    return read_dataset(spec) if spec.train_path.exists() else None


def device_kernels(
    spec: RunSpec, dataset: Dataset, overs: Iterable[Over], begun: str, max_shared_bytes: int
) -> tuple[str, dict[Over, str]]:
    """What a device of so much shared memory runs a run with that was begun so, and each of `overs`."""
    posterior = build_posterior(spec, dataset, device="cpu")
    advance, name = choose.on_device(posterior, recorded=begun, max_shared_bytes=max_shared_bytes)
    streams = Streams(spec.seed, np.zeros(1, dtype=np.uint64))
    state = posterior.initial_state(streams, sigmas=1.0)
    targets = {over: posterior.marginal(over).given(state, streams) for over in overs}
    return name, {over: choose.marginal_name(target, advance, name) for over, target in targets.items()}
