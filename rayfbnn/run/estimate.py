"""The speed of the batches of a run, and the time that they still need."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayfbnn.mcmc.operation import AUTO, Tuning, gradient_evaluations
from rayfbnn.store.rounds import round_of

if TYPE_CHECKING:
    from rayfbnn.run.sampler import Progress
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store


@dataclass(frozen=True)
class BatchRow:
    """The texts that are shown for one batch."""

    batch: str
    iteration: str
    draws: str
    acceptance: str
    divergences: str
    rate: str
    left: str


HEADINGS = BatchRow("chains", "iteration", "draws", "acceptance", "divergences", "draws/s", "time left")


def current_costs(store: Store) -> list[int]:
    """Count the gradient evaluations of an iteration of each phase, with the latest tuned settings."""
    spec, settings = store.spec, store.tuning.latest()[1]
    return [
        gradient_evaluations(
            phase.operations, tuning=Tuning(settings, is_measured=number in spec.tuning_phases)
        )
        for number, phase in enumerate(spec.phase)
    ]


def work(spec: RunSpec, costs: list[int], iteration: int) -> float:
    """Return the work of the iterations up to this one: their gradient evaluations, plus one for each.

    costs  gradient evaluations of an iteration of each phase
    """
    total = 0.0
    for phase, cost in zip(spec.phase, costs, strict=True):
        count = min(iteration, phase.iterations)
        total += count * (1 + cost)
        iteration -= count
    return total


class Estimate:
    """Rates and the time left, estimated from the Progress seen so far.

    The work of an iteration is the number of its gradient evaluations plus one, so that none is free:
    iterations of the first phases often are far shorter than later ones.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without any Progress; `clock` gives the time in seconds."""
        self._store = store
        self._clock = clock
        self._started = math.nan  # time at which the first block began
        self._done_before: dict[int, int] = {}  # for each batch, its iterations before this run
        self._done: dict[int, int] = {}  # for each batch, its iterations so far
        self._block_start: dict[int, int] = {}  # for each batch, its iterations before its current block
        self._costs: list[int] = []  # gradient evaluations of an iteration of each phase, as far as known

    def hear(self, progress: Progress) -> None:
        """Remember how far a batch is. This is cheap enough for every iteration, unlike `row`."""
        if not self._done:
            self._started = self._clock() - progress.seconds
        block_start = progress.iteration - progress.block_iterations
        self._done_before.setdefault(progress.batch, block_start)
        if self._block_start.get(progress.batch) != block_start:
            # Settings change only between blocks. Looking them up at each iteration took a quarter as long as
            # the sampling of the robot arm.
            self._block_start[progress.batch], self._costs = block_start, current_costs(self._store)
        self._done[progress.batch] = progress.iteration

    def row(self, progress: Progress) -> BatchRow:
        """Return the texts for one batch."""
        self.hear(progress)
        chains = self._store.batch_chains(progress.batch)
        rate = (
            len(chains) * progress.block_iterations / progress.seconds if progress.seconds > 0 else math.nan
        )
        is_kept = self._store.spec.phase[progress.phase].keep is True
        return BatchRow(
            batch=f"{chains[0]}-{chains[-1]}" if len(chains) > 1 else str(chains[0]),
            iteration=f"{progress.iteration}/{progress.total_iterations}{self._round(progress)}",
            draws=f"{progress.draws}/{progress.total_draws}",
            acceptance=_acceptance(progress.acceptance, is_warmup=not is_kept),
            divergences=f"{progress.divergences} (warm-up {progress.warmup_divergences})",
            rate="-" if math.isnan(rate) or not is_kept else f"{rate:.3g}",
            left=duration(self._seconds_left(progress.batch)) + self._reservation(progress),
        )

    def _reservation(self, progress: Progress) -> str:
        """Say that lengths of trajectories may still change; "" once they cannot."""
        is_open = any(
            one.last > progress.iteration and any(operation.steps == AUTO for operation in one.operations)
            for one in self._store.tuning.rounds
        )
        return " if lengths stay" if is_open else ""

    def _round(self, progress: Progress) -> str:
        """Name the tuning round that a batch is in, if it is in one."""
        rounds = self._store.tuning.rounds
        current = round_of(rounds, progress.iteration)
        return "" if current is None else f", tuning {current.number + 1}/{len(rounds)}"

    def _seconds_left(self, batch: int) -> float:
        spec, costs = self._store.spec, self._costs
        done = work(spec, costs, self._done[batch])
        done_now = done - work(spec, costs, self._done_before[batch])
        if done_now <= 0:
            return math.nan
        remaining = work(spec, costs, spec.total_iterations) - done
        return remaining * (self._clock() - self._started) / done_now


def _acceptance(share: float, *, is_warmup: bool) -> str:
    """Format the share of updates accepted in a block, such as 0.83, or (warm-up 0.83) in the warm-up."""
    if math.isnan(share):
        return "-"
    return f"(warm-up {share:.2f})" if is_warmup else f"{share:.2f}"


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds; "-" for NaN."""
    if math.isnan(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
