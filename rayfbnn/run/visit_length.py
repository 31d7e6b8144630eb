"""The expected length of a visit to a part, and the choice between ring and star that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.mcmc.operation import TrajectoryOperation, unrolled
from rayfbnn.spec import RunSpec

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
