"""The training cases of a run in parts: how they are read, divided and visited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc.operation import TrajectoryOperation, unrolled
from rayfbnn.model import stepsize
from rayfbnn.model.batches import columns_of_parts
from rayfbnn.model.posterior import Keep
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.parts import Part, part_of, parts_of
from rayfbnn.ring.rounds import Home, Ring
from rayfbnn.ring.shared_posterior import SharedPosterior
from rayfbnn.ring.transport import LocalTransport, Owner
from rayfbnn.run.job import posterior_of_cases
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store

_RATE = 5e10  # operations per second of a core in compiled kernels: 4e10 to 1e11 (docs/benchmarks.md)
# A message costs 1 to 3 ms of processor time, and about 1 ms for each megabyte (docs/scaling.md). Visits of
# this length take nine tenths of the total time.
_WORTH_SECONDS, _WORTH_SECONDS_OF_MEGABYTE = 0.020, 0.012
_LEAST_SECONDS_OF_STAR = 0.001  # a shorter visit takes less time than its message


@dataclass(frozen=True)
class VisitLength:
    """The expected length of a visit with one gradient by the chains of a message.

    seconds        processor time, from the operations of the gradient and the usual rate of a core
    worth_seconds  shortest visit with nine tenths of the time in gradients, and the rest in messages
    n_chains       number of chains in a message
    n_batches      number of batches of the run
    has_full       whether trajectories take full gradients, which need all parts at one position
    """

    seconds: float
    worth_seconds: float
    n_chains: int
    n_batches: int
    has_full: bool

    @property
    def is_short(self) -> bool:
        """True if more than a tenth of the time goes into messages between workers."""
        return self.seconds < self.worth_seconds

    def takes_star(self, n_owners: int) -> bool:
        """Return True if all parts are asked at once, to give every owner work.

        With at least as many batches as owners, all owners have work on a ring too, and no batch waits for
        the slowest owner at each step.
        """
        return self.has_full and self.n_batches < n_owners and self.seconds >= _LEAST_SECONDS_OF_STAR


def visit_length(spec: RunSpec, n_cases: int) -> VisitLength:
    """Return the expected length of the visits of a run with `n_cases` training cases."""
    operations = [operation for phase in spec.phase for operation in unrolled(phase.operations)]
    has_full = any(isinstance(one, TrajectoryOperation) and one.partitions == 1 for one in operations)
    chains = min(spec.chains, spec.chains_per_batch)
    # Chains with the same direction travel together, that is half of them.
    in_message = chains if has_full else math.ceil(chains / 2)
    network = spec.network
    products = sum((3 if group.name.startswith("h") else 2) * group.size for group in network.groups())
    operations_of_chain = 2 * products * math.ceil(n_cases / spec.n_parts)
    megabytes = 3 * network.n_parameters * np.dtype(spec.dtype).itemsize * in_message / 1e6
    return VisitLength(
        seconds=in_message * operations_of_chain / _RATE,
        worth_seconds=_WORTH_SECONDS + _WORTH_SECONDS_OF_MEGABYTE * megabytes,
        n_chains=in_message,
        n_batches=math.ceil(spec.chains / chains),
        has_full=has_full,
    )


def parts_of_run(store: Store, numbers: Sequence[int]) -> list[Part]:
    """Return some parts of a run's training cases. This reads all cases once, and keeps those of these parts.

    numbers  numbers of the parts, in ascending order
    """
    n_parts = store.spec.n_parts

    def columns(n_columns: int, starts: Array | None) -> Array:
        return columns_of_parts(n_columns, starts, numbers=numbers, n_parts=n_parts).ravel()

    cases = _read(store, columns)
    length = cases.inputs.shape[1] // len(numbers)
    return [
        part_of(
            cases,
            number,
            n_parts,
            recorded=store.root.kernel,
            inputs=cases.inputs[:, place * length : (place + 1) * length],
        )
        for place, number in enumerate(numbers)
    ]


def home_of_run(store: Store, ring: Ring) -> SharedPosterior:
    """Return the posterior of a run as a home sees it. This reads all cases once, for their constants."""
    cases = _read(store, lambda n_columns, starts: stepsize.some_columns(n_columns))
    return SharedPosterior.from_whole(cases, ring, inputs=cases.inputs)


def _read(store: Store, keep: Keep) -> SampledPosterior:
    """Read all cases, and keep all targets and the inputs of some columns.

    Only piecewise hazards briefly hold all inputs, because their cells follow from the targets.
    """
    cases = store.standardized_cases()
    return posterior_of_cases(SampledPosterior, store.spec, cases, device="cpu", keep=keep)


def divided(
    whole: SampledPosterior,
    n_parts: int,
    *,
    recorded: str | None = None,
    owners: Sequence[Sequence[int]] | None = None,
) -> tuple[SharedPosterior, str]:
    """Return a posterior with its cases divided into parts, and the name of the kernel of its energies.

    recorded  the name of the kernel that a run started with; it is kept if this machine has it
    owners    the numbers of the parts of each owner; by default one owner has all parts. This has no
              influence on any result
    """
    parts, kernel = parts_of(whole, n_parts, recorded=recorded)
    shares = [range(n_parts)] if owners is None else owners
    transport = LocalTransport([Owner([parts[number] for number in share]) for share in shares])
    return SharedPosterior.from_whole(whole, Ring(Home(transport), n_parts)), kernel
