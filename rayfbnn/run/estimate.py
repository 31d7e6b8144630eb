"""Estimates the speed of a run's batches and the time that they still need."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayfbnn.mcmc.ladder.adaptation import first_settings
from rayfbnn.mcmc.operation import AUTO, Tuning, gradient_evaluations
from rayfbnn.numerals import plain
from rayfbnn.store.rounds import plan_of, round_of, round_words
from rayfbnn.store.store import word_for_chains

if TYPE_CHECKING:
    from rayfbnn.mcmc.ladder.records import LadderSettings
    from rayfbnn.run.job import Progress
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store


def relative_times(store: Store) -> list[float]:
    """Return the time of an iteration of each phase with the latest tuned settings, in any unit.

    For chains it is the number of gradient evaluations plus one, which accounts for iterations without any.
    """
    spec, settings = store.spec, store.tuning.latest()[1]
    gradients = [
        gradient_evaluations(
            phase.operations, tuning=Tuning(settings, is_measured=number in spec.tuning_phases)
        )
        for number, phase in enumerate(spec.phase)
    ]
    return [1.0 + count for count in gradients] if spec.ladder is None else times_of_ladders(store, gradients)


def iterations_by_phase(spec: RunSpec, first: int, last: int) -> dict[int, int]:
    """Return how many of the iterations `first` to `last` each phase has; phases without any are left out.

    Iterations are counted from 1.
    """
    counts, start = {}, 1
    for number, phase in enumerate(spec.phase):
        end = start + phase.iterations - 1
        count = min(last, end) - max(first, start) + 1
        if count > 0:
            counts[number] = count
        start = end + 1
    return counts


@dataclass(frozen=True)
class Pace:
    """The seconds that a worker took for the iterations of each phase, taken from blocks or their records.

    In a phase that tunes, only the iterations of its latest round count, because each has other settings.

    phases  the round of tuning, the seconds, and the number of iterations of each phase
    """

    phases: Mapping[int, tuple[int | None, float, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return True if any iterations have been seen."""
        return any(iterations for _, _, iterations in self.phases.values())

    def after(self, phase: int, seconds: float, iterations: int, tuning_round: int | None) -> Pace:
        """Return the pace after more iterations of a phase, and the seconds that they took."""
        known = self.phases.get(phase)
        _, before, n = known if known is not None and known[0] == tuning_round else (None, 0.0, 0)
        return Pace({**self.phases, phase: (tuning_round, before + seconds, n + iterations)})

    def seconds_of(self, spec: RunSpec, times: list[float], first: int, last: int) -> tuple[float, bool]:
        """Return the seconds that one worker needs for some iterations, and whether all phases are known.

        The time of a phase that has not been seen is extrapolated from the last phase that has, in proportion
        to `relative_times`. The draws of a fit have no such relation to its steps, and are left out until
        some have been seen.

        first, last  numbers of the first and last iteration
        times        relative times of an iteration of each phase
        """
        of_one = {phase: seconds / n for phase, (_, seconds, n) in self.phases.items() if n}
        total, is_known = 0.0, True
        for phase, count in iterations_by_phase(spec, first, last).items():
            if phase in of_one:
                total += count * of_one[phase]
            elif of_one and spec.fit is None:
                latest = max(of_one)
                total += count * of_one[latest] * times[phase] / times[latest]
            else:
                is_known = False
        return total, is_known


def round_with_own_pace(store: Store, iteration: int) -> int | None:
    """Return the number of the round of tuning that an iteration is in; None outside of rounds.

    Rounds that tune the chains of ladders have few iterations, and change their time by little. They count as
    one.
    """
    current = round_of(store.tuning.rounds, iteration)
    if current is None or (store.spec.ladder is not None and current.of == "operations"):
        return None
    return current.number


def n_at_work(commits: Sequence[tuple[float, float]]) -> int:
    """Return how many batches are at work at once: the number that committed during the newest block.

    Each worker commits one block in the time that a block takes.

    commits  the time of the last commit of each batch, and the seconds that its block took
    """
    newest, seconds = max(commits, default=(0.0, 0.0))
    return max(1, sum(newest - when < 0.99 * seconds for when, _ in commits))


class Estimate:
    """Rates and the time left, estimated from the Progress seen in this run.

    The remaining iterations of a batch take its worker a known time. If batches wait for workers, this time
    is multiplied by the number of incomplete batches over the number at work.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any Progress. `clock` returns the time in seconds."""
        self._store, self._word = store, word_for_chains(store)
        self._clock = clock
        total = store.spec.total_iterations
        self._unfinished = {n for n, done in enumerate(store.all_progress()) if done.iteration < total}
        self._latest: dict[int, Progress] = {}  # by batch
        self._paces: dict[int, Pace] = {}  # of finished blocks, by batch
        self._committed: dict[int, tuple[float, float]] = {}  # time and seconds of the last block, by batch
        self._times: list[float] = []  # relative times of an iteration of each phase, once known
        self._commits: list[float] = []  # seconds of the commits of blocks in rounds of tuning

    def hear(self, progress: Progress) -> None:
        """Record the progress of a batch. This is cheap enough for every iteration, unlike `row`."""
        before = self._latest.get(progress.batch)
        if before is None or _start(before) != _start(progress):
            # Settings change only between blocks. Looking them up at each iteration took a quarter as long as
            # sampling the robot arm.
            self._times = relative_times(self._store)
        if before is not None and _start(progress) >= before.iteration:
            self._paces[progress.batch] = self._pace(before)
        self._latest[progress.batch] = progress
        if progress.committed:
            self._committed[progress.batch] = self._clock(), progress.seconds
            if progress.commit_seconds and round_of(self._store.tuning.rounds, _start(progress) + 1):
                self._commits.append(progress.commit_seconds)
        if progress.is_complete:
            self._unfinished.discard(progress.batch)
            del self._committed[progress.batch]

    def _pace(self, latest: Progress) -> Pace:
        """Return the pace of a batch with its latest block.

        The commits of rounds of tuning are left out. Their clock ends a little later than that of the block.
        """
        first = _start(latest) + 1
        seconds = latest.seconds
        if round_of(self._store.tuning.rounds, first):
            seconds = max(0.0, seconds - latest.commit_seconds)
        pace, own_round = self._paces.get(latest.batch, Pace()), round_with_own_pace(self._store, first)
        return pace.after(latest.phase, seconds, latest.block_iterations, own_round)

    def row(self, progress: Progress) -> dict[str, str]:
        """Record the progress of a batch, and return its texts by heading; the first names its chains."""
        self.hear(progress)
        chains = self._store.header.batch_chains(progress.batch)
        n_draws, seconds = len(chains) * progress.block_iterations, progress.seconds
        is_kept = self._store.spec.phase[progress.phase].keep is True
        return {
            self._word: f"{chains[0]}-{chains[-1]}" if len(chains) > 1 else str(chains[0]),
            "iteration": f"{progress.iteration}/{progress.total_iterations}{self._round(progress)}",
            "draws": f"{progress.draws}/{progress.total_draws}",
            "acceptance": _acceptance(progress.acceptance, is_warmup=not is_kept),
            "divergences": f"{progress.divergences} (warm-up {progress.warmup_divergences})",
            "draws/s": plain(n_draws / seconds, 3) if is_kept and seconds > 0 else "-",
            "time left": self._left(progress) + self._reservation(progress),
        }

    def _reservation(self, progress: Progress) -> str:
        """Return a note if the lengths of trajectories may still change, otherwise ""."""
        is_open = any(
            one.last > progress.iteration and any(operation.steps == AUTO for operation in one.operations)
            for one in self._store.tuning.rounds
        )
        return " at current lengths" if is_open else ""

    def _round(self, progress: Progress) -> str:
        rounds = self._store.tuning.rounds
        current = round_of(rounds, progress.iteration)
        return "" if current is None else f", {round_words(rounds, current)}"

    def _left(self, progress: Progress) -> str:
        spec, first = self._store.spec, progress.iteration + 1
        pace = self._pace(progress)
        seconds, is_known = pace.seconds_of(spec, self._times, first, spec.total_iterations)
        if not is_known and (spec.fit is None or not seconds):
            return clock_time(math.nan)
        if self._commits:  # each round of tuning ends with one; they may take longer than its iterations
            n_commits = sum(one.last >= first for one in self._store.tuning.rounds)
            seconds += n_commits * statistics.fmean(self._commits)
        n_workers = n_at_work([*self._committed.values()]) if self._committed else len(self._latest)
        share = max(1.0, len(self._unfinished) / n_workers)
        return clock_time(seconds * share) + ("" if is_known else " plus the draws")


def _start(progress: Progress) -> int:
    return progress.iteration - progress.block_iterations


def _acceptance(share: float, *, is_warmup: bool) -> str:
    """Format the share of updates accepted in a block, such as 0.83, or (warm-up 0.83) during warm-up."""
    if math.isnan(share):
        return "-"
    return f"(warm-up {share:.2f})" if is_warmup else f"{share:.2f}"


def clock_time(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, or "-" for NaN."""
    if math.isnan(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


_USUAL_LEVELS = 24  # what the adaptation found for yacht and energy
_USUAL_NOISE = 0.1  # of the coldest level; it changes the lengths of trajectories little
# Seconds of compiled code on one core of an AMD EPYC, for networks of 3 to 64 units with 12 to 5,000 cases.
# Only their ratios matter, which are similar on slower machines.
_OF_CHAINS, _OF_ANNEALING, _OF_EXCHANGES = 2.0e-3, 3.4e-3, 2.8e-3  # an iteration without gradients
_OF_WEIGHT, _OF_UNIT = 0.07e-9, 1e-9  # at a case, in a gradient


def usual_settings(spec: RunSpec) -> LadderSettings:
    """Return the settings before any are known, with 24 levels if they are automatic."""
    ends, plan = spec.ladder_ends, plan_of(spec)
    if plan.levels is None:
        plan = replace(plan, levels=min(_USUAL_LEVELS, plan.most_levels))
    coldest = [round(-2 * math.log(_USUAL_NOISE) * 2**40)] * len(spec.data.targets)
    return first_settings(ends, plan, top=coldest if ends.kind == "noise" else [], n_chains=1)


def times_of_ladders(store: Store, gradients: Sequence[int]) -> list[float]:
    """Return the relative time of an iteration of a batch of ladders in each phase.

    In a small network a gradient takes less time than the rest of an iteration. Most of this rest does not
    depend on the number of levels.

    gradients  of the chain that each second ladder starts from, in an iteration of each phase
    """
    spec, rounds = store.spec, store.tuning.latest_ladder_rounds()
    settings = rounds[-1].settings if rounds else usual_settings(spec)
    of_levels, annealing = sum(settings.steps), spec.annealing_phase
    pairs = min(spec.chains, spec.chains_per_batch) / 2
    n_weights = sum(group.size for group in spec.network.groups())
    n_units = sum(layer.units for layer in spec.network.hidden)
    seconds = pairs * store.header.n_cases * (_OF_WEIGHT * n_weights + _OF_UNIT * n_units)
    before = [_OF_CHAINS + seconds * count for count in gradients[:annealing]]
    annealed = _OF_ANNEALING + seconds * (gradients[annealing] + of_levels)
    exchanged = _OF_EXCHANGES + seconds * 2 * of_levels
    return [*before, annealed, exchanged, exchanged]
