"""The job of a worker: one block of iterations of one batch of chains, committed to the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array, array_namespace, device_namespace
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operation import Operation, automatic, unrolled
from rayfbnn.model.posterior import Posterior
from rayfbnn.run.blocks import BlockPlan, next_block
from rayfbnn.run.collecting import Collected, names_in_summary
from rayfbnn.state import ChainState, Trajectory
from rayfbnn.store.records import BatchProgress
from rayfbnn.store.rounds import n_finished
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a batch is; a few numbers, cheap to send after every iteration.

    iteration   done so far, of total_iterations; draws (kept for the posterior) of total_draws
    acceptance  share of updates accepted in the current block; diverged: trajectories of the whole run
    committed   whether everything up to `iteration` is in the store
    block_iterations, seconds  done and spent in the current block
    other_kernel  what the worker has in place of the kernel that the run began with; "" where it has that
    """

    batch: int
    iteration: int
    total_iterations: int
    draws: int
    total_draws: int
    phase: int
    acceptance: float
    diverged: int
    block_iterations: int
    seconds: float
    committed: bool
    worker: str = ""
    other_kernel: str = ""

    @property
    def is_complete(self) -> bool:
        """True if the batch has done all its iterations."""
        return self.has_done(None)

    def has_done(self, until: int | None) -> bool:
        """Whether so many iterations (all of them, with None) are committed."""
        return self.committed and self.iteration >= (self.total_iterations if until is None else until)


def build_posterior(spec: RunSpec, dataset: Dataset, *, device: str) -> Posterior:
    """The target of a run, for the standardised training cases, with its arrays on "cpu" or "gpu"."""
    posterior = Posterior.of(
        spec.network,
        spec.model,
        dataset.standardized_inputs,
        dataset.standardized_targets,
        dtype=spec.dtype,
        xp=device_namespace(device),
    )
    return posterior.tempered(1 / spec.temperature)


def acceptance_by_operation(store: Store, phase: int) -> dict[Operation, float]:
    """What a phase's operations have had accepted so far, of those that propose."""
    totals = [store.progress(batch).totals for batch in range(store.n_batches)]
    shares = {}
    for operation in unrolled(store.spec.phase[phase].operations):
        accepted, n = (
            sum(each.get(name, 0.0) for each in totals)
            for name in names_in_summary(store.spec, phase, operation)
        )
        if n:
            shares[operation] = accepted / n
    return shares


@dataclass(frozen=True)
class _Begun:
    """A block whose first iteration was launched while the one before was on its way to the store."""

    plan: BlockPlan
    iterations: Iterator[schedule.Step]


class Sampler:
    """An open store, its posterior on the device, and the iteration of each phase: what a worker holds.

    Each block starts from the state that the store has, so a block that is run again, here or elsewhere,
    gives the same bits. While a block's draws leave a device and are committed, the device has the first
    iteration of the next block to do, from what the store is about to have. It is dropped if another block
    is asked for.
    """

    def __init__(self, store: Store, *, worker: str = "") -> None:
        self.store = store
        self.worker = worker
        self.posterior = build_posterior(store.spec, store.data, device=store.spec.device)
        # The kernel that the run began with, wherever this worker is: others round differently.
        self.advance, self.kernel = choose.advance_for(self.posterior, recorded=store.root.kernel)
        self.other_kernel = "" if choose.is_available(store.root.kernel) else self.kernel
        # Of each phase, the latest round's: each holds the buffers of its updates.
        self._iterations: dict[int, tuple[int, schedule.Iteration]] = {}
        self._begun: dict[int, _Begun] = {}  # by batch

    def run_block(self, batch: int, *, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Run and commit the batch's next block, yielding Progress after each iteration and after the commit.

        When should_stop answers true the iterations done so far are committed as a shorter block: where
        blocks end has no influence on the draws.
        """
        before = self.store.progress(batch)
        plan = next_block(self.store.spec, before.iteration)
        if plan is None:
            yield self._progress(batch, before, None, before.iteration, Collected())
            return
        streams = self._streams(batch)
        collected = Collected(keep=plan.section is not None)
        begun = self._begun.pop(batch, None)
        if begun is not None and begun.plan == plan:
            iterations = begun.iterations
        else:
            iterations = self._run(plan, self._load(batch, streams), streams)
        for number, state, info in iterations:
            densities = self._densities(state) if collected.keep else {}
            collected.add(state, info, densities, streams.at(iteration=number))
            if number == plan.last or should_stop():
                break
            yield self._progress(batch, before, plan, number, collected)
        collected.leave(state)
        begun = self._begin_next(plan, state, streams) if number == plan.last else None
        self.store.commit(batch, collected.block(self.store.spec, plan))
        if begun is not None:
            self._begun[batch] = begun
        yield self._progress(batch, before, plan, number, collected, committed=True)

    def _run(self, plan: BlockPlan, state: ChainState, streams: Streams) -> Iterator[schedule.Step]:
        return schedule.run(
            state, streams, iteration=self._iteration(plan), first=plan.first, count=plan.count
        )

    def _begin_next(self, plan: BlockPlan, state: ChainState, streams: Streams) -> _Begun | None:
        """Launch the first iteration of the block behind `plan`; nobody waits for it before that is run."""
        spec = self.store.spec
        following = next_block(spec, plan.last)
        if following is None or spec.device == "cpu":
            return None
        found = self.store.tuning.rounds
        if n_finished(found, plan.first) < len(found):  # the settings of the next one may not be found yet
            return None
        try:
            iterations = self._run(following, state, streams)
            return _Begun(following, chain([next(iterations)], iterations))
        except Exception:  # whatever it is: this block is to be committed, and the next one raises it again
            _log.debug("the next block could not be begun", exc_info=True)
            return None

    def _iteration(self, plan: BlockPlan) -> schedule.Iteration:
        """The iteration of a phase, in a round that tunes with the settings of that round."""
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

    def _densities(self, state: ChainState) -> dict[str, Array]:
        """Total energy (potential and kinetic), log likelihood and log prior, (n_chains,) float64 each.

        The potential is the one that accept decisions see, and the log likelihood is what it has beside the
        prior's energy.
        """
        xp = array_namespace(state.position)
        still = xp.zeros_like(state.momentum)
        here = Trajectory(state.position, state.momentum, state.precisions, still)
        _, potential = self.advance(self.posterior, here, n_steps=0)
        prior_energy = self.posterior.prior_energy(state.position, state.precisions)
        return {
            "energy": total_energy(potential, state.momentum),
            "log_likelihood": (prior_energy - potential) / self.posterior.inverse_temperature,
            "log_prior": self.posterior.log_prior(state.position, state.precisions),
        }

    def _streams(self, batch: int) -> Streams:
        xp = device_namespace(self.store.spec.device)
        chains = xp.asarray(np.array(self.store.batch_chains(batch), dtype=np.uint64))
        made = Streams if self.store.spec.device == "cpu" else DeviceStreams
        return made(self.store.spec.seed, chains)

    def _load(self, batch: int, streams: Streams) -> ChainState:
        """The batch's committed state on the device, or the initial one."""
        spec = self.store.spec
        stored = self.store.load_state(batch)
        if stored is None:
            return self.posterior.initial_state(streams.at(iteration=0), sigmas=spec.initial.sigmas)
        state, _ = stored
        xp = device_namespace(spec.device)
        return ChainState(
            xp.ascontiguousarray(xp.asarray(state.position, dtype=spec.dtype)),
            xp.ascontiguousarray(xp.asarray(state.momentum, dtype=spec.dtype)),
            xp.ascontiguousarray(xp.asarray(state.precisions, dtype=np.float64)),
        )

    def _progress(
        self,
        batch: int,
        before: BatchProgress,
        plan: BlockPlan | None,
        iteration: int,
        collected: Collected,
        *,
        committed: bool = False,
    ) -> Progress:
        spec = self.store.spec
        is_kept = plan is not None and plan.section == "posterior"
        return Progress(
            batch=batch,
            iteration=iteration,
            total_iterations=spec.total_iterations,
            draws=before.draws + (collected.n_iterations if is_kept else 0),
            total_draws=spec.kept_draws,
            phase=plan.phase if plan else len(spec.phase) - 1,
            acceptance=collected.acceptance,
            diverged=int(before.totals.get("diverged", 0)) + collected.diverged,
            block_iterations=collected.n_iterations,
            seconds=time.monotonic() - collected.started,
            committed=committed or plan is None,
            worker=self.worker,
            other_kernel=self.other_kernel,
        )
