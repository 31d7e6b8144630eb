"""The rounds of iterations that find automatic settings, or the levels of ladders: measurements and words."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rayfbnn.mcmc.automatic import BITS, Measured, lengths
from rayfbnn.mcmc.ladder import adaptation as of_ladder
from rayfbnn.mcmc.ladder.adaptation import Plan, adapted, first_settings
from rayfbnn.mcmc.ladder.records import LadderSettings
from rayfbnn.mcmc.operation import Settings, Tunable, automatic
from rayfbnn.numerals import plain
from rayfbnn.store.catalogue import DATA_ENERGY, LOG_RSS, LOG_SCALE

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec

MOST_ROUNDS = 40  # in a phase; after each round the workers wait for each other
_MOST_STEPS = 128  # of a trajectory of a ladder, see mcmc.ladder.adaptation
_MOST_SUMS = 100_000  # in a row of measurements


@dataclass(frozen=True)
class Round:
    """Iterations first .. last; after them some operations, or all ladders, get new settings.

    of  "operations" if automatic operations are measured; "ladders" if the levels of ladders are; "starts" if
        ladders have no levels yet, and the noise of the chains that they start from is measured
    """

    number: int
    phase: int
    first: int
    last: int
    operations: tuple[Tunable, ...] = ()
    of: Literal["operations", "starts", "ladders"] = "operations"

    @property
    def n_measured(self) -> int:
        """Number of measurements in the record of a block of this round."""
        return len(self.operations) if self.of == "operations" else 1


def rounds(spec: RunSpec) -> tuple[Round, ...]:
    """Return the rounds of a run, in order: at most 40 of equal length in each tuning phase.

    A phase tunes if it has automatic operations, is not kept, and comes before all kept phases. The last of
    these phases finds the levels of a run with a ladder, in rounds of its own.
    """
    return tuple(_rounds(spec))


def _rounds(spec: RunSpec) -> Iterator[Round]:
    number, first = 0, 1
    for index in spec.tuning_phases:
        phase = spec.phase[index]
        end, operations = first + phase.iterations, automatic(phase.operations)
        if spec.ladder is not None and index == spec.annealing_phase:
            yield Round(number, index, first, first + spec.ladder.n_measuring - 1, of="starts")
            number += 1
        elif spec.ladder is not None and index > spec.annealing_phase:
            for length in spec.ladder.rounds:
                yield Round(number, index, first, first + length - 1, of="ladders")
                number, first = number + 1, first + length
        elif operations:
            length = -(-phase.iterations // MOST_ROUNDS)
            for start in range(first, end, length):
                yield Round(number, index, start, min(start + length, end) - 1, operations)
                number += 1
        first = end


def round_of(all_rounds: tuple[Round, ...], iteration: int) -> Round | None:
    """Return the round that an iteration belongs to."""
    return next((one for one in all_rounds if one.first <= iteration <= one.last), None)


def n_finished(all_rounds: tuple[Round, ...], iteration: int) -> int:
    """Return the number of rounds that end before an iteration; their settings apply to it."""
    return sum(one.last < iteration for one in all_rounds)


def n_rounds(all_rounds: tuple[Round, ...], operation: Tunable) -> int:
    """Return the number of rounds that tune an operation."""
    return sum(operation in one.operations for one in all_rounds)


# The coordinates of levels with a noise or power that is a float above 0.
_COORDINATES = {"noise": (-1419.0, 1489.0), "powers": (-744.0, 0.0)}


def measurements_problem(
    measurements: Sequence[Measurements],
    tuning_round: Round | None,
    spec: RunSpec,
    *,
    ladders: int,
    iterations: int,
) -> str:
    """Return why the measurements in a record of iterations cannot belong to the round, or "".

    tuning_round  the round that the iterations belong to, or None
    ladders       number of chains, which are ladders in a run of them
    """
    if len(measurements) != (0 if tuning_round is None else tuning_round.n_measured):
        return f"it has {len(measurements)} measurements, which its iterations do not make"
    if tuning_round is None:
        return ""
    if tuning_round.of == "operations":
        pairs = zip(tuning_round.operations, measurements, strict=True)
        return next(filter(None, (_operation_problem(*pair) for pair in pairs)), "")
    one, n_targets = measurements[0], len(spec.data.targets) if spec.ladder_ends.kind == "noise" else 0
    if tuning_round.of == "starts":
        if not isinstance(one, LadderStarts) or len(one.top) != n_targets:
            return "it does not have the noise of the chains that ladders start from"
        return "" if 1 <= one.n_starts <= _MOST_COUNT and _are_sums(one.top) else _OUT_OF_RANGE
    if not isinstance(one, LadderMeasured):
        return "it does not have the measurements of ladders"
    sums = one.measured
    if (sums.ladders, sums.iterations, len(sums.top)) != (ladders, iterations, n_targets):
        return "it has the measurements of other ladders, iterations or targets"
    return settings_problem(one.settings, spec) or _levels_problem(sums, one.settings.n_levels)


_MOST_COUNT = 2**53
_OUT_OF_RANGE = "its measurements are out of range"
_OF_DIFFERENT_SIZES = "its measurements are of different numbers of levels, lengths or quantities"


def _are_sums(*rows: Sequence[int]) -> bool:
    """Return True if rows may be sums of values of at most 2**50, in units of 2**-40."""
    return all(len(row) <= _MOST_SUMS and all(abs(total) <= 2**120 for total in row) for row in rows)


def _are_shares(n: int, *rows: Sequence[int]) -> bool:
    """Return True if all entries may be sums of n values between 0 and 1, in units of 2**-40."""
    return all(0 <= total <= n << BITS for row in rows for total in row)


def _operation_problem(operation: Tunable, one: Measurements) -> str:
    n = len(one.lengths) if isinstance(one, Measured) else 0
    if not isinstance(one, Measured) or n == 0 or one.lengths != lengths(operation)[:n]:
        return f"it does not have measurements of {operation.op}"
    n_quantities = {len(one.sums), len(one.squares), *map(len, one.jumps)}
    if len(one.acceptance) != n or len(one.jumps) not in (0, n) or len(n_quantities) > 1:
        return _OF_DIFFERENT_SIZES
    is_possible = (
        1 <= one.trajectories <= _MOST_COUNT
        and 0 <= one.diverged <= one.trajectories
        and _are_shares(one.trajectories, one.acceptance)
        and _are_sums(one.sums, one.squares, one.slopes, *one.jumps)
    )
    return "" if is_possible else _OUT_OF_RANGE


def _levels_problem(sums: of_ladder.MeasuredLadders, n_levels: int) -> str:
    rows = (*sums.measure, *sums.squares)
    sizes = len(sums.measure), len(sums.squares), len(sums.accepted), len(sums.rejection)
    if sizes != (sums.ladders, sums.ladders, n_levels, n_levels - 1):
        return _OF_DIFFERENT_SIZES
    if len(sums.diverged) not in (0, n_levels) or {*map(len, rows)} != {n_levels}:
        return _OF_DIFFERENT_SIZES
    n = sums.iterations * sums.ladders
    is_possible = _are_shares(n, sums.rejection, sums.accepted, sums.diverged)
    return "" if is_possible and _are_sums(sums.top, *rows) else _OUT_OF_RANGE


def settings_problem(settings: LadderSettings, spec: RunSpec) -> str:
    """Return why ladders of a run cannot have these settings, or ""."""
    assert spec.ladder is not None
    ends, n_levels, most = spec.ladder_ends, settings.n_levels, spec.ladder.most_levels
    if not 2 <= n_levels <= most or spec.ladder.levels not in ("auto", n_levels):
        return f"its ladders have {n_levels} levels, and those of the run {most}"
    low, high = _COORDINATES[ends.kind]
    if not all(low <= level <= min(high, ends.top) for level in settings.levels):
        return f"its levels are not between {low:g} and {min(high, ends.top):g}"
    n_targets = len(spec.data.targets) if ends.kind == "noise" else 0
    if len(settings.multipliers) != n_targets:
        return f"it has {len(settings.multipliers)} multipliers of the noise, expected {n_targets}"
    if {len(settings.stepsizes), len(settings.steps)} != {n_levels} or len(settings.scales) > _MOST_SUMS:
        return "its stepsizes and steps are not one for each level"
    if min(*settings.stepsizes, *settings.multipliers) <= 0:
        return "its stepsizes and multipliers are not above 0"
    is_possible = all(1 <= n <= _MOST_STEPS for n in settings.steps)
    return "" if is_possible else f"its numbers of steps are not between 1 and {_MOST_STEPS}"


@dataclass(frozen=True)
class LadderStarts:
    """The noise of the chains that ladders start from.

    n_starts  number of chains times iterations
    top       (n_targets,) sums of their log noise precisions, in units of 2**-40; () without noise
    """

    n_starts: int
    top: tuple[int, ...]

    def __add__(self, other: LadderStarts) -> LadderStarts:
        """Return the sums of both."""
        top = tuple(ours + theirs for ours, theirs in zip(self.top, other.top, strict=True))
        return LadderStarts(self.n_starts + other.n_starts, top)


@dataclass(frozen=True)
class LadderMeasured:
    """The measurements of some ladders in a round of the adaptation.

    settings  the settings of the round, which are the same for all batches
    measured  sums over iterations, for each ladder
    """

    settings: LadderSettings
    measured: of_ladder.MeasuredLadders

    def __add__(self, other: LadderMeasured) -> LadderMeasured:
        """Return the measurements of the same ladders in the iterations of both."""
        if self.settings != other.settings:
            raise ValueError("blocks of one round have different settings")
        return LadderMeasured(self.settings, self.measured + other.measured)


Measurements: TypeAlias = Measured | LadderStarts | LadderMeasured


def summed(measurements: Sequence[Sequence[Measurements]]) -> tuple[Measurements, ...]:
    """Return the sums of the measurements of a batch's blocks, given for each block one after the other."""
    return tuple(map(added, zip(*measurements, strict=True)))


def added(measurements: Iterable[Any]) -> Any:
    """Return the sum of measurements of one kind."""
    return reduce(operator.add, measurements)


@dataclass(frozen=True)
class LadderRound:
    """The record of a round of ladders.

    measured  sums over its iterations: of the chains that ladders start from, or of all ladders of the run
    settings  the settings after the round
    """

    measured: LadderStarts | LadderMeasured
    settings: LadderSettings

    @property
    def of_levels(self) -> of_ladder.MeasuredLadders | None:
        """The measurements of all levels, or None before there were any."""
        return self.measured.measured if isinstance(self.measured, LadderMeasured) else None


def plan_of(spec: RunSpec) -> Plan:
    """Return the plan of a run's adaptation."""
    ladder = spec.ladder
    assert ladder is not None
    hot = None if ladder.hot == "auto" else math.log(ladder.hot)
    return Plan(
        rounds=ladder.rounds,
        levels=None if ladder.levels == "auto" else ladder.levels,
        hot=-2 * hot if hot is not None and spec.ladder_ends.kind == "noise" else hot,
        most_levels=ladder.most_levels,
    )


def starting_round(spec: RunSpec, measured: Iterable[LadderStarts], tuned: Settings | None) -> LadderRound:
    """Return the record of the round before annealing.

    ValueError if no noise was measured, but levels of noise need it.

    measured  the measurements of all blocks
    tuned     the settings that the warm-up has found, or None
    """
    starts: LadderStarts = added(measured)
    if spec.ladder_ends.kind == "noise" and not starts.top:
        raise ValueError("no noise of the chains was measured")
    settings = first_settings(
        spec.ladder_ends, plan_of(spec), top=starts.top, n_chains=starts.n_starts, tuned=tuned
    )
    return LadderRound(starts, settings)


def adapting_round(spec: RunSpec, number: int, of_blocks: Sequence[Sequence[LadderMeasured]]) -> LadderRound:
    """Return the record of round `number` of the adaptation, counted from 0.

    ValueError if there can be none.

    of_blocks  the measurements of each batch, block after block
    """
    by_batch: list[LadderMeasured] = list(map(added, of_blocks))
    before = by_batch[0].settings
    if any(one.settings != before for one in by_batch):
        raise ValueError("batches of one round have different settings")
    measured = of_ladder.MeasuredLadders.joined([one.measured for one in by_batch])
    settings = adapted(before, measured, ends=spec.ladder_ends, plan=plan_of(spec), number=number)
    return LadderRound(LadderMeasured(before, measured), settings)


MEASURES = {
    LOG_RSS: "log RSS",
    LOG_SCALE: "the log scale of the residuals",
    DATA_ENERGY: "the energy of the data",
}
_NAMES = {"operations": "tuning", "starts": "first levels", "ladders": "levels"}


def word_of_run(spec: RunSpec) -> str:
    """Return "ladders" if the chains of a run are ladders, or "chains"."""
    return "chains" if spec.ladder is None else "ladders"


def value_of_level(spec: RunSpec, coordinate: float) -> float:
    """Return what a level holds: its noise as a standard deviation of the standardised targets, or its power.

    coordinate  the log of a noise precision, or of a power
    """
    return math.exp(-coordinate / 2 if spec.ladder_ends.kind == "noise" else coordinate)


def level_words(spec: RunSpec, settings: LadderSettings) -> str:
    """Return the values that the hottest and the coldest level hold, such as "noise 0.9 to 0.05"."""
    name = "noise" if spec.ladder_ends.kind == "noise" else "power"
    first, last = (plain(value_of_level(spec, settings.levels[end]), 2) for end in (0, -1))
    return f"{name} {first} to {last}"


def round_words(rounds: Sequence[Round], current: Round) -> str:
    """Return a round and how many of its kind there are, such as "tuning 3/40" or "levels 2/7"."""
    same = [one.number for one in rounds if one.of == current.of]
    return f"{_NAMES[current.of]} {same.index(current.number) + 1}/{len(same)}"


def stage_words(spec: RunSpec, rounds: Sequence[Round], iteration: int) -> str:
    """Return the phase of a run of ladders that comes after `iteration` iterations."""
    ends = [sum(phase.iterations for phase in spec.phase[: number + 1]) for number in range(len(spec.phase))]
    number = next((number for number, end in enumerate(ends) if iteration < end), len(ends))
    if number >= len(spec.phase) - 1:
        return "sampling" if number < len(ends) else "complete"
    if number < spec.annealing_phase:
        return "warming up"
    if number == spec.annealing_phase:
        return "annealing"
    of_levels = [one for one in rounds if one.of == "ladders"]
    finished = sum(one.last <= iteration for one in of_levels)
    return f"adapting levels, round {finished + 1} of {len(of_levels)}"
