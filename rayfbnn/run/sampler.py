"""The job of a worker: one block of iterations of one batch of chains, committed to the store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfbnn.arrays import Array, array_namespace, copies_to_host, device_namespace, to_host
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda_streams import DeviceStreams
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.energy import not_finite, total_energy
from rayfbnn.mcmc.tuning import Measured
from rayfbnn.model.posterior import Posterior
from rayfbnn.operations import Operation, Tunable, automatic, unrolled
from rayfbnn.run.catalogue import STATS
from rayfbnn.run.rounds import n_finished, round_of, rounds
from rayfbnn.run.store import BatchProgress, Block, Store
from rayfbnn.run.tuning import to_document
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.run.data import Dataset
    from rayfbnn.spec import RunSpec

SUMMARY = (
    "accepted_sum",
    "n_accepted",
    "diverged",
)  # what a block counts, summed over its chains and iterations


@dataclass(frozen=True)
class BlockPlan:
    """Which iterations make up a block, and where their draws go.

    Iterations first .. first + count - 1 of the run, all in one phase. section is None where draws are not
    kept; else first_draw is the place of the first one in that section.
    """

    phase: int
    first: int
    count: int
    section: Literal["posterior", "warmup"] | None
    first_draw: int


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
        return self.has_done(None)

    def has_done(self, until: int | None) -> bool:
        """Whether so many iterations (all of them, with None) are committed."""
        return self.committed and self.iteration >= (self.total_iterations if until is None else until)


def next_block(spec: RunSpec, iteration: int) -> BlockPlan | None:
    """The block that follows `iteration` finished iterations, or None when the run is complete.

    Blocks end where a phase or a round of tuning ends and, while draws are kept, where a chunk of
    draws_per_block draws is full. A run that was stopped inside a block goes on with what is left of it, so a
    chunk is soon whole again.
    """
    done = 0
    kept = {"posterior": 0, "warmup": 0}
    sections: dict[object, Literal["posterior", "warmup"]] = {True: "posterior", "warmup": "warmup"}
    for number, phase in enumerate(spec.phase):
        section = sections.get(phase.keep)
        within = iteration - done
        if within < phase.iterations:
            first_draw = kept[section] + within if section else 0
            room = spec.draws_per_block - (first_draw if section else within) % spec.draws_per_block
            current = round_of(rounds(spec), iteration + 1)
            end = done + phase.iterations if current is None else current.last
            count = min(room, end - iteration)
            return BlockPlan(number, iteration + 1, count, section, first_draw)
        done += phase.iterations
        if section:
            kept[section] += phase.iterations
    return None


def build_posterior(spec: RunSpec, dataset: Dataset, *, device: str) -> Posterior:
    """The target of a run, for the standardised training cases, with its arrays on "cpu" or "gpu"."""
    posterior = Posterior.of(
        spec.network_spec(dataset.n_targets),
        spec.model_spec(),
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
            for name in _names_in_summary(store.spec, phase, operation)
        )
        if n:
            shares[operation] = accepted / n
    return shares


def _names_in_summary(spec: RunSpec, phase: int, operation: Operation) -> tuple[str, str]:
    """Of the sum of an operation's shares of acceptances, and of how many there are."""
    number = unrolled(spec.phase[phase].operations).index(operation)
    return f"accepted_sum_{phase}_{number}", f"n_accepted_{phase}_{number}"


class Sampler:
    """An open store, its posterior on the device, and the iteration of each phase: what a worker holds.

    A worker keeps no chains: each block starts from the state that the store has, so a block that is run
    again, here or elsewhere, gives the same bits.
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

    def run_block(self, batch: int, *, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Run and commit the batch's next block, yielding Progress after each iteration and after the commit.

        When should_stop answers true the iterations done so far are committed as a shorter block: where
        blocks end has no influence on the draws.
        """
        before = self.store.progress(batch)
        plan = next_block(self.store.spec, before.iteration)
        if plan is None:
            yield self._progress(batch, before, None, before.iteration, _Collected())
            return
        streams = self._streams(batch)
        collected = _Collected(keep=plan.section is not None)
        iterations = schedule.run(
            self._load(batch, streams),
            streams,
            iteration=self._iteration(plan),
            first=plan.first,
            count=plan.count,
        )
        for number, state, info in iterations:
            densities = self._densities(state) if collected.keep else {}
            collected.add(state, info, densities, streams.at(iteration=number))
            if number == plan.first + plan.count - 1 or should_stop():
                break
            yield self._progress(batch, before, plan, number, collected)
        self.store.commit(batch, collected.block(self.store.spec, plan, state))
        yield self._progress(batch, before, plan, number, collected, committed=True)

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
        at = state.position, state.momentum, state.precisions
        *_, potential = self.advance(self.posterior, *at, xp.zeros_like(state.momentum), n_steps=0)
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
        collected: _Collected,
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


class _Collected:
    """The draws and statistics of a block in the making: on the host, or on their way there."""

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.started = time.monotonic()
        self.n_iterations = 0
        self.accepted_sum, self.n_accepted, self.diverged = 0.0, 0, 0
        self.positions: list[Array] = []  # each (n_chains, n_parameters)
        self.precisions: list[Array] = []  # each (n_chains, n_precisions)
        self.stats: dict[str, list[Array]] = {name: [] for name in STATS}  # each (n_chains,)
        self.measured: dict[Tunable, Measured] = {}
        self.shares: dict[Operation, tuple[float, int]] = {}  # of acceptances: their sum, their number
        self.on_the_way: list[tuple[Streams, tuple[Operation, ...], Callable[[], dict[str, Array]]]] = []

    @property
    def acceptance(self) -> float:
        return self.accepted_sum / self.n_accepted if self.n_accepted else math.nan

    def add(
        self,
        state: ChainState,
        info: schedule.IterationInfo,
        densities: dict[str, Array],
        streams: Streams,
    ) -> None:
        self.n_iterations += 1
        for operation, measured in info.measured.items():
            before = self.measured.get(operation)
            self.measured[operation] = measured if before is None else before + measured
        arrays = {"accepted": info.accepted, "diverged": info.diverged}
        if self.keep:
            arrays |= {"energy_change": info.energy_change, **densities}
            arrays |= {"position": state.position, "precisions": state.precisions}
        operations = tuple(info.accepted_by)
        arrays |= {f"accepted_{number}": info.accepted_by[each] for number, each in enumerate(operations)}
        self.on_the_way.append((streams, operations, copies_to_host(arrays)))
        # On a device the copies of one iteration go beside the work of the next, which never waits for them.
        self._arrive(0 if isinstance(state.position, np.ndarray) else 1)

    def _arrive(self, n_left: int) -> None:
        """Take in what was sent, but for the last n_left iterations."""
        while len(self.on_the_way) > n_left:
            streams, operations, arrived = self.on_the_way.pop(0)
            values = arrived()
            accepted, diverged = values["accepted"], values["diverged"]
            if np.isnan(diverged).any():
                chains = to_host(streams.chains)[np.isnan(diverged)]
                raise not_finite(chains, where=f"iteration {streams.iteration}")
            total, n = _sum_and_count(accepted)
            self.accepted_sum, self.n_accepted = self.accepted_sum + total, self.n_accepted + n
            self.diverged += int(diverged.sum())
            for number, operation in enumerate(operations):
                total, n = _sum_and_count(values.pop(f"accepted_{number}"))
                before = self.shares.get(operation, (0.0, 0))
                self.shares[operation] = before[0] + total, before[1] + n
            if self.keep:
                self.positions.append(values.pop("position"))
                self.precisions.append(values.pop("precisions"))
                for name, value in values.items():
                    self.stats[name].append(np.asarray(value, dtype=np.float64))

    def block(self, spec: RunSpec, plan: BlockPlan, state: ChainState) -> Block:
        """What the store is to commit. Nothing in it depends on the clock or the worker."""
        self._arrive(0)
        shares: dict[str, float] = {}
        for operation, both in self.shares.items():
            shares |= dict(zip(_names_in_summary(spec, plan.phase, operation), both, strict=True))
        return Block(
            first_iteration=plan.first,
            n_iterations=self.n_iterations,
            section=plan.section,
            first_draw=plan.first_draw,
            positions=np.stack(self.positions, axis=1) if self.keep else None,
            precisions=np.stack(self.precisions, axis=1) if self.keep else None,
            stats={name: np.stack(values, axis=1) for name, values in self.stats.items()}
            if self.keep
            else {},
            state=ChainState(to_host(state.position), to_host(state.momentum), to_host(state.precisions)),
            summary={
                "accepted_sum": self.accepted_sum,
                "n_accepted": self.n_accepted,
                "diverged": self.diverged,
                **shares,
            },
            tuning=[to_document(measured) for measured in self.measured.values()],
        )


def _sum_and_count(values: Array) -> tuple[float, int]:
    """Of those that are numbers: NaN stands where nothing was proposed."""
    there = values[np.isfinite(values)]
    return float(there.sum()), len(there)
