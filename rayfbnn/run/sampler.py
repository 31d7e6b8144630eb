"""The job of a worker that runs chains, and the posterior of a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace, device_namespace
from rayfbnn.kernels import choose
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operation import Operation, automatic, unrolled
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.rounds import Home, Ring, Star
from rayfbnn.ring.shared_posterior import RingAdvance
from rayfbnn.ring.transport import Transport
from rayfbnn.run.in_parts import divided, home_of_run, visit_length
from rayfbnn.run.job import (
    BlockPlan,
    Collected,
    Job,
    names_in_summary,
    posterior_of_cases,
    seconds_of_block,
)
from rayfbnn.state import Advance, ChainState, Trajectory
from rayfbnn.store.records import Block, Record
from rayfbnn.store.rounds import n_finished
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

_log = logging.getLogger(__name__)
_LIMIT_SECONDS = 3600.0  # for a trajectory that owners run; a transport reports known losses earlier


def build_posterior(spec: RunSpec, dataset: Dataset, *, device: str) -> SampledPosterior:
    """Return the target of a run for the standardised training cases, with its arrays on "cpu" or "gpu"."""
    cases = dataset.standardized_pieces(), dataset.standardized_targets
    return posterior_of_cases(SampledPosterior, spec, cases, device=device)


def posterior_of_run(store: Store) -> SampledPosterior:
    """Return the target of a run, read piece by piece from its store, with its arrays on the run's device."""
    spec = store.spec
    return posterior_of_cases(SampledPosterior, spec, store.standardized_cases(), device=spec.device)


def acceptance_by_operation(store: Store, phase: int) -> dict[Operation, float]:
    """Return the acceptance rate so far of each operation of a phase that makes proposals."""
    totals = [store.progress(batch).totals for batch in range(store.n_batches)]
    shares = {}
    for operation in unrolled(store.spec.phase[phase].operations):
        accepted, n = (
            sum(summary.get(name, 0.0) for summary in totals)
            for name in names_in_summary(store.spec, phase, operation)
        )
        if n:
            shares[operation] = accepted / n
    return shares


def densities_of(state: ChainState, posterior: SampledPosterior, advance: Advance) -> dict[str, Array]:
    """Return the total energy (potential plus kinetic), log likelihood and log prior, each (n_chains,).

    The potential is the one that decides acceptance. The log likelihood follows from the potential less the
    energy of the prior.
    """
    xp = array_namespace(state.position)
    still = xp.zeros_like(state.momentum)
    trajectory = Trajectory(state.position, state.momentum, state.precisions, still)
    _, potential = advance(posterior, trajectory, n_steps=0)
    prior_energy = posterior.prior_energy(state.position, state.precisions)
    return {
        "energy": total_energy(potential, state.momentum),
        "log_likelihood": (prior_energy - potential) / posterior.inverse_temperature,
        "log_prior": posterior.log_prior(state.position, state.precisions),
    }


def _target(
    store: Store, transport: Transport | None, n_owners: int
) -> tuple[SampledPosterior, Advance, str]:
    if transport is not None:
        is_star = visit_length(store.spec, store.header.n_cases).takes_star(n_owners)
        ring = (Star if is_star else Ring)(Home(transport, limit=_LIMIT_SECONDS), store.spec.n_parts)
        return home_of_run(store, ring), RingAdvance(), store.root.kernel  # owners look for the kernel
    whole = posterior_of_run(store)
    if store.spec.n_parts == 1:
        return whole, *choose.advance_for(whole, recorded=store.root.kernel)
    posterior, kernel = divided(whole, store.spec.n_parts, recorded=store.root.kernel)
    return posterior, RingAdvance(), kernel


class Sampler(Job):
    """The job of a worker that runs chains: their posterior on the device, and the iteration of each phase.

    On a device, the first iteration of the next block is launched before the draws of this block have left
    the device and are committed. It starts from the state that the store is about to have, and is dropped if
    another block is requested.
    """

    def __init__(
        self, store: Store, *, worker: str = "", transport: Transport | None = None, n_owners: int = 1
    ) -> None:
        """Put the data of the run on its device.

        worker     a name for progress reports
        transport  leads to the owners of the parts of the training cases, if other workers have them
        n_owners   number of these owners
        """
        super().__init__(store, worker=worker)
        # Every worker uses the kernel that the run started with, because others round differently.
        self.posterior, self.advance, self.kernel = _target(store, transport, n_owners)
        self.other_kernel = "" if choose.is_available(store.root.kernel) else self.kernel
        # By phase, the iteration of the latest round. Only one, because it holds the buffers of its updates.
        self._iterations: dict[int, tuple[int, schedule.Iteration]] = {}
        # By batch, the plan of its next block, and the result of the first iteration, launched already.
        self._launched: dict[int, tuple[BlockPlan, ChainState, schedule.IterationInfo]] = {}

    def _block(
        self,
        batch: int,
        last: Record | None,
        plan: BlockPlan,
        collected: Collected,
        should_stop: Callable[[], bool],
    ) -> Iterator[Block | None]:
        streams, n_blocks = self._streams(batch), 0 if last is None else last.progress.blocks
        end = time.monotonic() + seconds_of_block(self.store.spec, n_blocks)
        iteration = self._iteration(plan, len(streams.chains))
        launched: tuple[Any, Any, Any] = self._launched.pop(batch, (None, None, None))
        planned, state, info = launched
        if planned != plan:
            state, info = self._load(last, streams), None
        for number in range(plan.first, plan.last + 1):
            if number > plan.first or info is None:
                state, info = iteration(state, streams.at(iteration=number))
            self._collect(collected, state, info, streams.at(iteration=number))
            is_stopped = should_stop()
            if is_stopped or number == plan.last or time.monotonic() >= end:
                break
            yield None
        collected.send_all(self._stored(state))
        next_step = None if is_stopped else self._launch_next(number, state, streams)
        yield collected.block(self.store.spec, plan)
        if next_step is not None:
            self._launched[batch] = next_step

    def _launch_next(
        self, done: int, state: ChainState, streams: Streams
    ) -> tuple[BlockPlan, ChainState, schedule.IterationInfo] | None:
        """Launch the first iteration of the next block on a device, without waiting for its result."""
        spec = self.store.spec
        following = self._next_block(done)
        if following is None or spec.device == "cpu":
            return None
        rounds = self.store.tuning.rounds
        if n_finished(rounds, done) < len(rounds):  # the next settings may not be known yet
            return None
        try:
            iteration = self._iteration(following, len(streams.chains))
            return following, *iteration(state, streams.at(iteration=following.first))
        except Exception:  # of any kind: this block must still be committed, and the next one raises it again
            _log.debug("the next block could not be launched", exc_info=True)
            return None

    def _iteration(self, plan: BlockPlan, n_chains: int) -> Callable[[Any, Streams], tuple[Any, Any]]:
        return self._iteration_of_chains(plan)

    def _iteration_of_chains(self, plan: BlockPlan) -> schedule.Iteration:
        """Return the iteration of the plan's phase. In a tuning round it has the settings of that round."""
        log, phase = self.store.tuning, self.store.spec.phase[plan.phase]
        current = n_finished(log.rounds, plan.first) if automatic(phase.operations) else 0
        known = self._iterations.get(plan.phase)
        if known is None or known[0] != current:
            built = schedule.build_iteration(
                phase.operations,
                target=self.posterior,
                updates=self.posterior.updates,
                advance=self.advance,
                tuning=log.at(plan.first) if automatic(phase.operations) else None,
            )
            known = self._iterations[plan.phase] = current, built
        return known[1]

    def _collect(self, collected: Collected, state: Any, info: Any, streams: Streams) -> None:
        densities = densities_of(state, self.posterior, self.advance) if collected.keep else {}
        collected.add(state, info, densities, streams)

    def _stored(self, state: Any) -> ChainState | Mapping[str, Array]:
        chains: ChainState = state
        return chains

    def _load(self, last: Record | None, streams: Streams) -> Any:
        spec = self.store.spec
        state = None if last is None else self.store.commits.state_after(last)
        if state is None:
            return self.posterior.initial_state(
                streams.at(iteration=0), sigmas=spec.initial.sigmas, is_shared=spec.initial.shared
            )
        xp = device_namespace(spec.device)
        return ChainState(
            xp.ascontiguousarray(xp.asarray(state.position, dtype=spec.dtype)),
            xp.ascontiguousarray(xp.asarray(state.momentum, dtype=spec.dtype)),
            xp.ascontiguousarray(xp.asarray(state.precisions, dtype=np.float64)),
        )
