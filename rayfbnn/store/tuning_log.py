"""The records of a run's tuning: the measurements of each round, and the settings that follow from them.

The driver publishes a record once every batch has committed the round. The record is a function of these
commits, so any process that computes it again gets the same bytes. Workers do not continue without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from pydantic_core import to_jsonable_python

from rayfbnn.errors import StoreCorruptError, StoreError, StoreReadError
from rayfbnn.mcmc.automatic import Measured, first_settings, lengths, settings_after, with_steps
from rayfbnn.mcmc.operation import AUTO, Settings, Tunable, Tuning, automatic
from rayfbnn.store.catalogue import COMMITS, TUNING, Root
from rayfbnn.store.documents import Digest, DigestOrNone, Document, Plain, Seal, Whole
from rayfbnn.store.known import Seen
from rayfbnn.store.log import CommitLog
from rayfbnn.store.records import Record, SealedLog, set_aside
from rayfbnn.store.rounds import (
    LadderRound,
    Measurements,
    Round,
    adapting_round,
    added,
    measurements_problem,
    n_finished,
    n_rounds,
    round_of,
    rounds,
    settings_problem,
    starting_round,
)
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage


class TunedOperation(Document):
    """The measurements of a round of tuning for one operation, and the settings found."""

    op: Plain
    measured: Measured
    settings: Settings

    @property
    def mean_acceptance(self) -> float:
        """Mean acceptance over all trajectories of the round, at the longest measured length."""
        return self.measured.mean_acceptance(self.measured.lengths[-1])


class TuningDocument(Document):
    """The record of a round of tuning; `operations` is empty in a round of a ladder's adaptation."""

    store: Digest
    round: Whole
    iterations: tuple[Whole, Whole]
    previous: DigestOrNone
    operations: tuple[TunedOperation, ...]
    ladder: LadderRound | None = None
    seal: Seal


class TuningLog:
    """The records `commits/tuning/<round>.json` of the store at `path`."""

    def __init__(self, fs: Storage, path: Place, root: Root, commits: CommitLog) -> None:
        self._fs, self._root, self._spec = fs, path, root.spec
        commits_folder, owner = path / COMMITS, ("store", root.identity)
        self.log = SealedLog(
            fs,
            commits_folder / TUNING,
            commits_folder,
            TuningDocument,
            "a record of tuning",
            owner,
            number="round",
        )
        self._commits = commits
        self._n_batches = root.header.n_batches
        self._cache: dict[int, TuningDocument] = {}
        self._seen: set[int] = set()  # rounds with a record
        self._commits_cache: dict[tuple[int, int], Record] = {}

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of the run, in order."""
        return rounds(self._spec)

    @property
    def first_of_annealing(self) -> int:
        """The first iteration in which the levels of ladders are annealed."""
        return next(one.last for one in self.rounds if one.of == "starts") + 1

    def file(self, number: int) -> Place:
        """Return the file of the record of a round."""
        return self.log.file(number)

    def at(self, iteration: int) -> Tuning:
        """Return the settings of automatic operations in an iteration; StoreCorruptError if unknown."""
        settings = self._settings(n_finished(self.rounds, iteration))
        current = round_of(self.rounds, iteration)
        return Tuning(settings, is_measured=current is not None and current.of == "operations")

    def check_until(self, iteration: int) -> None:
        """Raise StoreCorruptError if the record of a round that ends before an iteration is damaged.

        A missing record is computed again when the run goes on.
        """
        finished = n_finished(self.rounds, iteration)
        self._fs.each(self._document, [number for number in self.log.numbers() if number < finished])

    def latest(self) -> tuple[int, Mapping[Tunable, Settings]]:
        """Return the number of rounds that have a record, and the settings of each operation after them."""
        n = next(
            (tuning_round.number for tuning_round in self.rounds if not self._is_there(tuning_round.number)),
            len(self.rounds),
        )
        return n, self._settings(n)

    def _is_there(self, number: int) -> bool:
        """Return True if a round has a record; a record that was seen once is not looked for again."""
        if number not in self._seen and (number in self._cache or self._fs.exists(self.file(number))):
            self._seen.add(number)
        return number in self._seen

    def _settings(self, n_finished: int) -> dict[Tunable, Settings]:
        settings = {op: first_settings(op) for tuning_round in self.rounds for op in tuning_round.operations}
        # A record holds only the operations of its round; others are in records of earlier phases.
        last = {
            op: tuning_round.number
            for tuning_round in self.rounds[:n_finished]
            for op in tuning_round.operations
        }
        return settings | {op: self.read(number)[op].settings for op, number in last.items()}

    def read(self, number: int) -> dict[Tunable, TunedOperation]:
        """Read one record of automatic operations, and check its checksum and its place."""
        return dict(zip(self.rounds[number].operations, self._document(number).operations, strict=True))

    def read_ladder(self, number: int) -> LadderRound:
        """Read one record of ladders, and check its checksum and its place."""
        ladder = self._document(number).ladder
        assert ladder is not None
        return ladder

    def ladder_rounds(self, iteration: int | None = None) -> list[LadderRound]:
        """Return the records of the rounds of ladders that end before an iteration, or all there are."""
        n = self.latest()[0] if iteration is None else n_finished(self.rounds, iteration)
        return [self.read_ladder(one.number) for one in self.rounds[:n] if one.of != "operations"]

    def _document(self, number: int) -> TuningDocument:
        """Read one record, which is not read again."""
        if number not in self._cache:
            path = self.file(number)
            try:
                parsed = self.log.read(number)
            except FileNotFoundError:
                raise StoreCorruptError(f"{path}: missing: the settings found in round {number}") from None
            problem = self._problem(parsed.operations, parsed.ladder, self.rounds[number])
            if problem:
                raise StoreCorruptError(f"{path}: damaged: {problem}")
            for operation, entry in zip(self.rounds[number].operations, parsed.operations, strict=True):
                if not _is_possible(operation, entry.measured, entry.settings):
                    raise StoreCorruptError(f"{path}: has settings that tuning cannot give {operation.op}")
            self._cache[number] = parsed
        return self._cache[number]

    def _problem(
        self, operations: Sequence[TunedOperation], ladder: LadderRound | None, tuning_round: Round
    ) -> str:
        """Return why these measurements and settings cannot be those of a round of this run, or ""."""
        measured: list[Measurements]
        if tuning_round.of == "operations":
            if ladder is not None or [entry.op for entry in operations] != [
                operation.op for operation in tuning_round.operations
            ]:
                return f"it does not have the operations that round {tuning_round.number} tunes"
            measured = [entry.measured for entry in operations]
        else:
            if ladder is None or operations:
                return f"it is not of the kind of round {tuning_round.number}"
            measured = [ladder.measured]
        return measurements_problem(
            measured,
            tuning_round,
            self._spec,
            ladders=self._spec.chains,
            iterations=tuning_round.last - tuning_round.first + 1,
        ) or ("" if ladder is None else settings_problem(ladder.settings, self._spec))

    def publish(self, number: int) -> None:
        """Publish the record of a round that every batch has committed, durably, unless it exists."""
        if not self._is_there(number):
            self.log.put(number, self._body(number))

    def check(self, number: int) -> None:
        """Raise StoreCorruptError if a record does not follow from the commits of the batches.

        If the commits of the round are incomplete or damaged, only the record's own checksum and place are
        checked.
        """
        self._document(number)
        try:
            expected = self.content(number)
        except StoreReadError:
            raise
        except StoreError:
            return
        if self._fs.read(self.file(number)) != expected:
            raise StoreCorruptError(
                f"{self.file(number)}: does not follow from the commits of round {number} of the tuning"
            )

    def is_readable(self, number: int) -> bool:
        """Return True if a record exists and is whole; StoreReadError if it cannot be read."""
        try:
            self._document(number)
        except StoreCorruptError:
            return False
        return True

    def discard(self, number: int) -> None:
        """Move a record aside, if there is one; `publish` computes it again."""
        self._cache.pop(number, None)
        self._seen.discard(number)
        if self._fs.exists(file := self.file(number)):
            set_aside(self._fs, self._root, file, f"tuning-{file.name}")

    def content(self, number: int) -> bytes:
        """Compute the content of a record from the commits; StoreError if a batch lacks some of them."""
        return self.log.content(number, self._body(number))

    def _body(self, number: int) -> dict[str, Any]:
        tuning_round = self.rounds[number]
        operations: list[TunedOperation] = []
        ladder: LadderRound | None = None
        try:
            if tuning_round.of == "operations":
                operations = self._tuned(tuning_round)
            else:
                ladder = self._adapted(tuning_round)
            problem = self._problem(operations, ladder, tuning_round)
            if problem:
                raise ValueError(problem)
        except (ValueError, IndexError, ArithmeticError) as exc:  # numbers that no round measures
            raise StoreCorruptError(
                f"{self._root}: the measurements of round {number} of the tuning give no settings ({exc})"
            ) from exc
        body: dict[str, Any] = to_jsonable_python(
            {
                "iterations": (tuning_round.first, tuning_round.last),
                "previous": self._document(number - 1).seal if number else "",
                "operations": operations,
            }
            | ({} if ladder is None else {"ladder": ladder})
        )
        return body

    def _tuned(self, tuning_round: Round) -> list[TunedOperation]:
        blocks = list(chain.from_iterable(self._blocks(tuning_round)))
        tuned = []
        for place, operation in enumerate(tuning_round.operations):
            before = [
                self.read(earlier.number)[operation].measured
                for earlier in self.rounds[: tuning_round.number]
                if operation in earlier.operations
            ]
            measured: Measured = added(record.tuning[place] for record in blocks)
            n = n_rounds(self.rounds, operation)
            settings = settings_after([*before, measured], operation, n_rounds=n)
            tuned.append(TunedOperation(op=operation.op, measured=measured, settings=settings))
        return tuned

    def _adapted(self, tuning_round: Round) -> LadderRound:
        spec = self._spec
        measured: list[list[Any]] = [
            [record.tuning[0] for record in blocks] for blocks in self._blocks(tuning_round)
        ]
        if tuning_round.of == "starts":
            settings = self._settings(tuning_round.number)
            tuned = next((settings[one] for one in automatic(spec.phase[-1].operations)), None)
            return starting_round(spec, list(chain.from_iterable(measured)), tuned)
        number = sum(one.of == "ladders" for one in self.rounds[: tuning_round.number])
        return adapting_round(spec, number, measured)

    def _blocks(self, tuning_round: Round) -> list[list[Record]]:
        """Return the records of each batch's blocks in a round; StoreError unless they cover it."""
        batches = range(self._n_batches)
        seen = self._commits.look(batches)
        return [self._blocks_of(tuning_round, batch, seen.get(batch)) for batch in batches]

    def _blocks_of(self, tuning_round: Round, batch: int, seen: Seen | None) -> list[Record]:
        """Return a batch's records in a round, read from the last on, because earlier ones may be damaged.

        seen  as in CommitLog.records
        """
        records: list[Record] = []
        block = self._commits.n_blocks(batch, seen)
        while block and (not records or records[0].first_iteration > tuning_round.first):
            if (batch, block) not in self._commits_cache:
                self._commits_cache[batch, block] = self._commits.read(batch, block - 1, seen)
            record = self._commits_cache[batch, block]
            block = record.first_block
            if record.first_iteration <= tuning_round.last:
                records.insert(0, record)
        first, last = tuning_round.first, tuning_round.last
        if not records or (records[0].first_iteration, records[-1].progress.iteration) != (first, last):
            raise StoreError(f"{self._root}: batch {batch} has not finished round {tuning_round.number}")
        return records


def _is_possible(operation: Tunable, measured: Measured, settings: Settings) -> bool:
    n_scales = len(measured.slopes) if operation.scaling == AUTO else 0
    return (
        settings.stepsize > 0
        and settings.steps in lengths(operation)
        and settings == with_steps(operation, settings.stepsize, settings.steps, settings.scales)
        and len(settings.scales) in (0, n_scales)
    )
