"""The job of a worker: one block of one batch, committed to the store, with its progress."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace, copies_to_host, device_namespace, to_host
from rayfbnn.errors import StoreOvertakenError
from rayfbnn.kernels import choose
from rayfbnn.mcmc.energy import not_finite
from rayfbnn.mcmc.operation import Operation, unrolled
from rayfbnn.mcmc.schedule import IterationInfo
from rayfbnn.model.posterior import Keep, Posterior
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import STATE, STATS
from rayfbnn.store.records import SECONDS, BatchProgress, Block, Record
from rayfbnn.store.rounds import Measurements, round_of, rounds
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams

_log = logging.getLogger(__name__)
Target = TypeVar("Target", bound=Posterior)


@dataclass(frozen=True)
class BlockPlan:
    """The iterations of a block, and where its draws are stored.

    The block has the iterations first .. first + count - 1 of the run, all in one phase. `section` is None if
    the draws are not kept; otherwise `first_draw` is the number of the first draw in that section.
    """

    phase: int
    first: int
    count: int
    section: Literal["posterior", "warmup"] | None
    first_draw: int

    @property
    def last(self) -> int:
        """Number of the last iteration."""
        return self.first + self.count - 1


MOST_SECONDS = 10.0  # longest block if draws_per_block is not configured


def next_block(spec: RunSpec, iteration: int, *, draws_per_chunk: int) -> BlockPlan | None:
    """Return the block that follows `iteration` finished iterations, or None when the run is complete.

    The block is as long as possible. It ends with a phase or a tuning round, when a chunk is full and, if
    draws_per_block is configured, after that many iterations. A run that was stopped inside a block continues
    with the rest of that block.
    """
    done = 0
    kept = {"posterior": 0, "warmup": 0}
    sections: dict[object, Literal["posterior", "warmup"]] = {True: "posterior", "warmup": "warmup"}
    for number, phase in enumerate(spec.phase):
        section = sections.get(phase.keep)
        within = iteration - done
        if within < phase.iterations:
            first_draw = kept[section] + within if section else 0
            current = round_of(rounds(spec), iteration + 1)
            end = done + phase.iterations if current is None else current.last
            count = end - iteration
            if section:
                count = min(count, draws_per_chunk - first_draw % draws_per_chunk)
            if spec.draws_per_block is not None:
                within_block = (first_draw if section else within) % spec.draws_per_block
                count = min(count, spec.draws_per_block - within_block)
            return BlockPlan(number, iteration + 1, count, section, first_draw)
        done += phase.iterations
        if section:
            kept[section] += phase.iterations
    return None


def seconds_of_block(spec: RunSpec, n_blocks: int) -> float:
    """Return the longest duration, in seconds, of a block that follows `n_blocks` others.

    The first blocks of a run are shorter, because predictions can only use committed draws.
    """
    return min(1.0 + n_blocks, MOST_SECONDS) if spec.draws_per_block is None else math.inf


MOST_BYTES = 2**30  # limit for a block's draws on a device; a larger block is copied to the host in parts


def names_in_summary(spec: RunSpec, phase: int, operation: Operation) -> tuple[str, str]:
    """Return the names of an operation's entries in a block's summary: sum and number of its acceptances."""
    number = unrolled(spec.phase[phase].operations).index(operation)
    return f"accepted_sum_{phase}_{number}", f"n_accepted_{phase}_{number}"


class Collected:
    """The draws and statistics of a block's iterations so far.

    Draws stay on the device that computed them until the block ends, and are then copied to the host
    together. Acceptance and divergence are checked after every iteration. On a device the check is one
    iteration late: the values are copied while the next iteration runs, and never delay it.
    """

    def __init__(self, *, keep: bool = False, of_ladder: Collection[str] = ()) -> None:
        """Begin a block; `of_ladder` names the further arrays of each draw of a ladder."""
        self.keep = keep
        self._of_ladder = of_ladder
        self.started = time.monotonic()
        self.n_iterations = 0
        self.accepted_sum, self.n_accepted, self.diverged = 0.0, 0, 0
        self._draws: list[dict[str, Array]] = []  # one for each iteration, arrays (n_chains, ...)
        self._n_bytes = 0  # size of these draws
        self._sent: list[Callable[[], dict[str, Array]]] = []  # parts of the block, arrays (n_chains, n, ...)
        self._state: Callable[[], dict[str, Array]] = dict
        self._is_of_chains = True
        self._checked: dict[str, list[Array]] = {"accepted": [], "diverged": []}  # each (n_chains,)
        self._measured: dict[object, Any] = {}
        self._shares: dict[Operation, tuple[float, int]] = {}  # sum and number of acceptances
        self._in_transit: list[tuple[Streams, tuple[Operation, ...], Callable[[], dict[str, Array]]]] = []

    @property
    def acceptance(self) -> float:
        """Mean acceptance of the updates so far; NaN if there were none."""
        return self.accepted_sum / self.n_accepted if self.n_accepted else math.nan

    def add(
        self,
        state: ChainState,
        info: IterationInfo,
        densities: dict[str, Array],
        streams: Streams,
    ) -> None:
        """Add an iteration. Its arrays must not be changed afterwards."""
        self.n_iterations += 1
        for operation, measured in info.measured.items():
            self.add_measured(operation, measured)
        operations = tuple(info.accepted_by)
        checked = {"accepted": info.accepted, "diverged": info.diverged}
        checked |= {
            f"accepted_{number}": info.accepted_by[proposing] for number, proposing in enumerate(operations)
        }
        self._in_transit.append((streams, operations, copies_to_host(checked)))
        is_on_host = isinstance(state.position, np.ndarray)
        self._arrive(0 if is_on_host else 1)
        if self.keep:
            draw = {"position": state.position, "precisions": state.precisions}
            draw |= {"energy_change": info.energy_change, **densities}
            self._draws.append(draw)
            self._n_bytes += sum(array.nbytes for array in draw.values())
            if self._n_bytes > MOST_BYTES and not is_on_host:
                self._send()

    def add_measured(self, of: object, measured: Measurements) -> None:
        """Add measurements of an operation, or of ladders, to those of the block."""
        self._measured[of] = self._measured[of] + measured if of in self._measured else measured

    def send_all(self, state: ChainState | Mapping[str, Array]) -> None:
        """End the block: start copying its draws and the state to the host."""
        self._send()
        self._is_of_chains = isinstance(state, ChainState)
        arrays = {name: getattr(state, name) for name in STATE} if isinstance(state, ChainState) else state
        self._state = copies_to_host(dict(arrays))

    def block(self, spec: RunSpec, plan: BlockPlan) -> Block:
        """Wait until the block has arrived on the host, and return it for the store to commit.

        Only SECONDS in its summary depends on the clock or the worker.
        """
        self._arrive(0)
        shares: dict[str, float] = {}
        for operation, both in self._shares.items():
            shares |= dict(zip(names_in_summary(spec, plan.phase, operation), both, strict=True))
        parts = [arrived() for arrived in self._sent]
        draws = {
            name: np.concatenate([part[name] for part in parts], axis=1) if len(parts) > 1 else first
            for name, first in (parts[0] if parts else {}).items()
        }
        if self.keep:
            draws |= {name: np.stack(values, axis=1) for name, values in self._checked.items()}
        return Block(
            first_iteration=plan.first,
            n_iterations=self.n_iterations,
            section=plan.section,
            first_draw=plan.first_draw,
            positions=draws.get("position"),
            precisions=draws.get("precisions"),
            stats={name: np.asarray(draws[name], dtype=np.float64) for name in STATS if self.keep},
            state=ChainState(**self._state()) if self._is_of_chains else self._state(),
            ladder={name: draws[name] for name in self._of_ladder if self.keep},
            summary={
                "accepted_sum": self.accepted_sum,
                "n_accepted": self.n_accepted,
                "diverged": self.diverged,
                SECONDS: time.monotonic() - self.started,
                **shares,
            },
            tuning=tuple(self._measured.values()),
        )

    def _send(self) -> None:
        if not self._draws:
            return
        stack = array_namespace(self._draws[0]["position"]).stack
        together = {name: stack([draw[name] for draw in self._draws], axis=1) for name in self._draws[0]}
        self._sent.append(copies_to_host(together))
        self._draws, self._n_bytes = [], 0

    def _arrive(self, n_left: int) -> None:
        """Check the values that were copied to the host, except those of the last n_left iterations."""
        while len(self._in_transit) > n_left:
            streams, operations, arrived = self._in_transit.pop(0)
            values = arrived()
            accepted, diverged = values["accepted"], values["diverged"]
            if np.isnan(diverged).any():
                chains = to_host(streams.chains)[np.isnan(diverged)]
                raise not_finite(chains, where=f"iteration {streams.iteration}")
            total, n = _sum_and_count(accepted)
            self.accepted_sum, self.n_accepted = self.accepted_sum + total, self.n_accepted + n
            self.diverged += int(diverged.sum())
            for number, operation in enumerate(operations):
                total, n = _sum_and_count(values[f"accepted_{number}"])
                before = self._shares.get(operation, (0.0, 0))
                self._shares[operation] = before[0] + total, before[1] + n
            if self.keep:
                for name, checked in self._checked.items():
                    checked.append(values[name])


def _sum_and_count(values: Array) -> tuple[float, int]:
    """Return the sum and the number of the values that are not NaN; NaN means that nothing was proposed."""
    shares = values[np.isfinite(values)]
    return float(shares.sum()), len(shares)


@dataclass(frozen=True)
class Progress:
    """The progress of a batch, in a few numbers that are cheap to send after every iteration.

    iteration, total_iterations  iterations done so far, and in all
    draws, total_draws  draws kept for the posterior so far, and in all
    acceptance  share of updates accepted in the current block
    divergences, warmup_divergences  updates that diverged so far, in iterations kept for the posterior and in
                the others
    committed   whether everything up to `iteration` is in the store
    block_iterations, seconds  iterations done and seconds spent in the current block
    other_kernel  kernel of the worker if it lacks the one that the run started with, otherwise ""
    """

    batch: int
    iteration: int
    total_iterations: int
    draws: int
    total_draws: int
    phase: int
    acceptance: float
    divergences: int
    warmup_divergences: int
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
        """Return True if `until` iterations are committed (all if None)."""
        return self.committed and self.iteration >= (self.total_iterations if until is None else until)


def posterior_of_cases(
    kind: type[Target],
    spec: RunSpec,
    cases: tuple[Iterable[Array], Array],
    *,
    device: str,
    keep: Keep | None = None,
) -> Target:
    """Return the posterior of a run on "cpu" or "gpu".

    cases  pieces of standardised inputs, which are read once and not kept, and all targets
    keep   the columns to keep, as for `Posterior.from_pieces`
    """
    xp = device_namespace(device)
    posterior = kind.from_pieces(spec.network, spec.model, *cases, dtype=spec.dtype, xp=xp, keep=keep)
    return posterior.tempered(1 / spec.temperature)


def streams_of(spec: RunSpec, chains: Array) -> Streams:
    """Return the random numbers of the chains (or starts) with these numbers."""
    xp = device_namespace(spec.device)
    return choose.streams_class(spec.device)(spec.seed, xp.asarray(chains))


class Job(ABC):
    """An open store, and what a worker needs to run its blocks.

    Each block starts from the state in the store, so a repeated block gives the same bits, here or elsewhere.
    """

    other_kernel = ""
    of_ladder: tuple[str, ...] = ()  # names of the arrays that a draw has beside its parameters

    def __init__(self, store: Store, *, worker: str = "") -> None:
        """Take the store; `worker` is the name in progress reports."""
        self.store, self.worker = store, worker
        self.until: int | None = None  # the iteration at which blocks end for a while; None for the whole run

    def run_block(self, batch: int, *, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Run and commit the batch's next block. Yield Progress after each iteration and after the commit.

        If should_stop returns True, what is done so far is committed as a shorter block. The draws do not
        depend on the ends of blocks. If a worker that was believed dead has meanwhile committed, its progress
        is yielded, and the run continues there.
        """
        # Progress and state come from one record: a worker believed dead may commit between two reads.
        last = self.store.commits.last(batch)
        plan = self._next_block(0 if last is None else last.progress.iteration)
        if plan is None:
            yield self._progress(batch, last, None, Collected(), committed=True)
            return
        collected = Collected(keep=plan.section is not None, of_ladder=self.of_ladder)
        try:
            for block in self._block(batch, last, plan, collected, should_stop):
                if block is not None:
                    self.store.commit(batch, block)
                yield self._progress(batch, last, plan, collected, committed=block is not None)
        except StoreOvertakenError as exc:
            _log.info("%s", exc)
            yield self._progress(batch, self.store.commits.last(batch), None, Collected(), committed=True)

    @abstractmethod
    def _block(
        self,
        batch: int,
        last: Record | None,
        plan: BlockPlan,
        collected: Collected,
        should_stop: Callable[[], bool],
    ) -> Iterator[Block | None]:
        """Yield None after each iteration but the last, and at the end the block to commit.

        last       the record of the batch's last block; None before the first
        collected  counts the iterations, and what else progress tells
        """

    def _next_block(self, iteration: int) -> BlockPlan | None:
        plan = next_block(self.store.spec, iteration, draws_per_chunk=self.store.header.draws_per_chunk)
        if plan is None or self.until is None or not plan.first <= self.until < plan.last:
            return plan
        return replace(plan, count=self.until - iteration)

    def _streams(self, batch: int) -> Streams:
        return streams_of(self.store.spec, np.array(self.store.header.batch_chains(batch), dtype=np.uint64))

    def _progress(
        self,
        batch: int,
        last: Record | None,
        plan: BlockPlan | None,
        collected: Collected,
        *,
        committed: bool = False,
    ) -> Progress:
        spec = self.store.spec
        before = BatchProgress() if last is None else last.progress
        updates = self.store.commits.updates_until(last)
        is_kept = plan is not None and plan.section == "posterior"
        return Progress(
            batch=batch,
            iteration=before.iteration + collected.n_iterations,
            total_iterations=spec.total_iterations,
            draws=before.draws + (collected.n_iterations if is_kept else 0),
            total_draws=spec.kept_draws,
            phase=plan.phase if plan else len(spec.phase) - 1,
            acceptance=collected.acceptance,
            divergences=updates.kept.divergences + (collected.diverged if is_kept else 0),
            warmup_divergences=updates.warmup.divergences + (0 if is_kept else collected.diverged),
            block_iterations=collected.n_iterations,
            seconds=time.monotonic() - collected.started,
            committed=committed,
            worker=self.worker,
            other_kernel=self.other_kernel,
        )
