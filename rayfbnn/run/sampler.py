"""The job of a worker: one block of iterations of one batch of chains, committed to the store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfbnn.arrays import Array, device_namespace, to_host
from rayfbnn.mcmc import schedule
from rayfbnn.model.posterior import Posterior
from rayfbnn.run.catalogue import STATS
from rayfbnn.run.store import BatchProgress, Block, Store
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

    @property
    def is_complete(self) -> bool:
        return self.committed and self.iteration >= self.total_iterations


def next_block(spec: RunSpec, iteration: int) -> BlockPlan | None:
    """The block that follows `iteration` finished iterations, or None when the run is complete.

    Blocks end where a phase ends and, while draws are kept, where a chunk of draws_per_block draws is full. A
    run that was stopped inside a block goes on with what is left of it, so a chunk is soon whole again.
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
            count = min(room, phase.iterations - within)
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


class Sampler:
    """An open store, its posterior on the device, and the iteration of each phase: what a worker holds.

    A worker keeps no chains: each block starts from the state that the store has, so a block that is run
    again, here or elsewhere, gives the same bits.
    """

    def __init__(self, store: Store, *, worker: str = "") -> None:
        self.store = store
        self.worker = worker
        self.posterior = build_posterior(store.spec, store.data, device=store.spec.device)
        self.iterations = [
            schedule.build_iteration(phase.operations, target=self.posterior, updates=self.posterior.updates)
            for phase in store.spec.phase
        ]

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
            iteration=self.iterations[plan.phase],
            first=plan.first,
            count=plan.count,
        )
        for number, state, info in iterations:
            collected.add(self.posterior, state, info)
            if number == plan.first + plan.count - 1 or should_stop():
                break
            yield self._progress(batch, before, plan, number, collected)
        self.store.commit(batch, collected.block(plan, state))
        yield self._progress(batch, before, plan, number, collected, committed=True)

    def _streams(self, batch: int) -> Streams:
        xp = device_namespace(self.store.spec.device)
        chains = xp.asarray(np.array(self.store.batch_chains(batch), dtype=np.uint64))
        return Streams(self.store.spec.seed, chains)

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
        )


class _Collected:
    """The draws and statistics of a block in the making, on the host."""

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.started = time.monotonic()
        self.n_iterations = 0
        self.accepted_sum, self.n_accepted, self.diverged = 0.0, 0, 0
        self.positions: list[Array] = []  # each (n_chains, n_parameters)
        self.precisions: list[Array] = []  # each (n_chains, n_precisions)
        self.stats: dict[str, list[Array]] = {name: [] for name in STATS}  # each (n_chains,)

    @property
    def acceptance(self) -> float:
        return self.accepted_sum / self.n_accepted if self.n_accepted else math.nan

    def add(self, posterior: Posterior, state: ChainState, info: schedule.IterationInfo) -> None:
        accepted, diverged = to_host(info.accepted), to_host(info.diverged)
        self.n_iterations += 1
        self.accepted_sum += float(np.nansum(accepted))
        self.n_accepted += int(np.isfinite(accepted).sum())
        self.diverged += int(diverged.sum())
        if not self.keep:
            return
        self.positions.append(to_host(state.position).copy())
        self.precisions.append(to_host(state.precisions).copy())
        values = {"accepted": accepted, "energy_change": info.energy_change, "diverged": diverged}
        for name, value in (values | _densities(posterior, state)).items():
            self.stats[name].append(np.asarray(to_host(value), dtype=np.float64))

    def block(self, plan: BlockPlan, state: ChainState) -> Block:
        """What the store is to commit. Nothing in it depends on the clock or the worker."""
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
            },
        )


def _densities(posterior: Posterior, state: ChainState) -> dict[str, Array]:
    """Total energy (potential and kinetic), log likelihood and log prior, (n_chains,) float64 each."""
    kinetic = 0.5 * (state.momentum.astype(np.float64) ** 2).sum(axis=1)
    return {
        "energy": posterior.potential(state.position, state.precisions) + kinetic,
        "log_likelihood": posterior.log_likelihood(state.position, state.precisions),
        "log_prior": posterior.log_prior(state.position, state.precisions),
    }
