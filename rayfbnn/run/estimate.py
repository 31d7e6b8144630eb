"""Estimates the speed of a run's batches and the time that they still need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayfbnn.mcmc.ladder.adaptation import first_settings
from rayfbnn.mcmc.operation import Tuning, gradient_evaluations
from rayfbnn.store.rounds import plan_of, round_of

if TYPE_CHECKING:
    from rayfbnn.mcmc.ladder.records import LadderSettings
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
    spec, rounds = store.spec, store.tuning.ladder_rounds()
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
