"""The files of a study: its plan, members, additions of seeds and looks, and which look is due."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError
from rayfbnn.run.running import unfinished_batches
from rayfbnn.store.checking.presence import check_files
from rayfbnn.store.storage.homes import storage_of
from rayfbnn.store.storage.places import Place, as_typed, place_of
from rayfbnn.study.looks import Due, Look, due_look, take_look
from rayfbnn.study.members import FAILURES, FOLDER, Member, Members
from rayfbnn.study.plan import (
    FILE,
    Configuration,
    Plan,
    check_size,
    checked_seeds,
    lengths,
    numbered_seeds,
)
from rayfbnn.study.sealed import MOST_MEMBERS, AdditionDocument, LookDocument, RecordLog

_ADDITIONS, _LOOKS = "additions", "looks"
_OURS = (FILE, FOLDER, FAILURES, _ADDITIONS, _LOOKS)


class StudyFiles:
    """The content of a study's folder, or of the keys below its address.

    Attributes
    ----------
    place
        The folder.
    plan
        Its configurations, seeds and rule.
    members
        The stores of its members.
    """

    def __init__(self, place: Place, plan: Plan) -> None:
        """Keep the plan that was read."""
        self.place, self.plan = place, plan
        self._storage = storage_of(place)
        self.members = Members(self._storage, place, plan)
        self._additions = RecordLog(self._storage, place, [_ADDITIONS], plan.identity, AdditionDocument)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a study; ConfigError if its folder contains something that does not belong to a study.

        Raises StoreCorruptError if a folder of the study, a member, or a log is a link.
        """
        place = place_of(path)
        storage = storage_of(place)
        study = cls(place, Plan.from_file(storage, place))
        foreign = [name for name in storage.listdir(place) if name not in _OURS and name[0] != "."]
        if foreign:
            raise ConfigError(f"{place}: {foreign[0]} does not belong to a study; move it elsewhere")
        looks = (_folder_of_looks(configuration.number) for configuration in study.configurations)
        storage.check_folders(place / name for name in (FOLDER, FAILURES, _ADDITIONS, _LOOKS))
        storage.check_folders(place / _LOOKS / name for name in looks)
        names = study.members.names()  # before the seeds, because another driver may add seeds meanwhile
        study.members.check(names, study.seeds())
        return study

    @property
    def typed(self) -> str:
        """The folder or the address, as a command takes it."""
        return as_typed(self.place)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations, in the order of the grid."""
        return self.plan.configurations

    @property
    def n_training_files(self) -> int:
        """Number of training files, or rather of different sets of training cases."""
        return len(self.plan.first_with_cases)

    def seeds(self, configuration: int = 0, *, look: int | None = None) -> tuple[int, ...]:
        """Return the seeds of a configuration's members, or of the members at one of its looks."""
        return self._seeds_of(self._checked_additions(), configuration, look)

    def _seeds_of(
        self, additions: Sequence[AdditionDocument], configuration: int, look: int | None
    ) -> tuple[int, ...]:
        seeds = list(self.plan.seeds)
        for record in additions:
            if look is None or record.after_looks[configuration] < look:
                seeds += record.seeds
        return tuple(seeds)

    def _checked_additions(self) -> list[AdditionDocument]:
        """Read the records of added seeds; StoreCorruptError if a study cannot have them."""
        additions, n_configurations = self._additions.all(), len(self.configurations)
        seeds = set(self.plan.seeds)
        for record in additions:
            if len(record.after_looks) != n_configurations:
                raise StoreCorruptError(f"{self.place}: addition {record.number} has other configurations")
            if len(set(record.seeds) - seeds) < len(record.seeds):
                raise StoreCorruptError(f"{self.place}: a seed was added that the study already has")
            seeds.update(record.seeds)
        n_members = n_configurations * len(seeds)
        if n_members > MOST_MEMBERS:
            raise StoreCorruptError(
                f"{self.place}: has {n_members} members with added seeds, expected at most {MOST_MEMBERS}"
            )
        return additions

    def looks(self, configuration: int = 0) -> list[Look]:
        """Return the looks taken at a configuration, in order."""
        return [Look.from_document(document) for document in self._look_log(configuration).all()]

    def _look_log(self, configuration: int) -> RecordLog[LookDocument]:
        folders = [_LOOKS, _folder_of_looks(configuration)]
        return RecordLog(self._storage, self.place, folders, self.plan.identity, LookDocument)

    @property
    def is_complete(self) -> bool:
        """True if no look is due."""
        return not self.due()

    @property
    def ok(self) -> bool:
        """True if the last look at each configuration allowed it to stop, and none is due."""
        return self.is_complete and all(self.looks(one.number)[-1].ok for one in self.configurations)

    def due(self) -> dict[int, Due]:
        """Return the look that is due at each incomplete configuration, by the configuration's number."""
        result, additions = {}, self._checked_additions()
        for configuration in self.configurations:
            looks = self.looks(configuration.number)
            seeds = self._seeds_of(additions, configuration.number, len(looks) + 1)
            due = due_look(looks, lengths(configuration, self.plan.rule.looks), seeds)
            if due is not None:
                result[configuration.number] = due
        return result

    def add(self, seeds: int | Sequence[int]) -> tuple[int, ...]:
        """Add members with new seeds to every configuration; `run` then takes another look.

        Seeds can be added at any time, also after the last look. None is ever taken away.

        Parameters
        ----------
        seeds
            The number of seeds, such as 20, which then follow the largest seed of the study, or the seeds,
            such as 1,2,5.

        Raises
        ------
        ConfigError
            If the study has one of the seeds.
        """
        present = self.seeds()
        if isinstance(seeds, int):
            seeds = numbered_seeds(seeds, after=max(present))
        new = checked_seeds(seeds)
        check_size(len(self.configurations), len(present) + len(new))
        taken = [seed for seed in new if seed in present]
        if taken:
            raise ConfigError(
                f"seeds: {taken[0]} is already in the study; the same seed gives the same draws"
            )
        number = len(self._additions.all()) + 1
        after = [len(self.looks(one.number)) for one in self.configurations]
        if not self._additions.put(number, {"seeds": list(new), "after_looks": after}):
            raise StoreError(f"{self.place}: another process added seeds at the same time; try again")
        return new

    def check_members(self) -> None:
        """Raise StoreCorruptError if a member lacks a file that a longer run or a look builds on."""
        members = [Member(one.number, seed) for one in self.configurations for seed in self.seeds(one.number)]
        there = [one for one in members if self.members.is_there(one) and self.members.failure(one) is None]
        self._storage.each(lambda member: check_files(self.members.open(member).opened), there)

    def is_ready(self, member: Member, due: Due) -> bool:
        """Return True if a member has the iterations that a look needs, or is known to have failed."""
        if self.members.failure(member) is not None:
            return True
        if not self.members.is_there(member):
            return False
        store = self.members.open(member, headers_only=True)
        return not unfinished_batches(store, self.needed_iterations(member, due))

    def needed_iterations(self, member: Member, due: Due) -> int:
        """Return the number of iterations, of all phases together, that a look needs of a member."""
        missing = self.configurations[member.configuration].iterations - due.iterations
        return self.members.total_iterations(member.configuration) - missing

    def decide(self, configuration: int, due: Due) -> Look | None:
        """Look at the draws of all members and record the decision; return None if another driver has."""
        look = self._look(configuration, due)
        is_new = self._look_log(configuration).put(due.number, look.to_document())
        return look if is_new else None

    def _look(self, configuration: int, due: Due) -> Look:
        members = [Member(configuration, seed) for seed in due.seeds]
        failures = {member.seed: self.members.failure(member) for member in members}
        failed = {seed: reason for seed, reason in failures.items() if reason is not None}
        stores = {member.seed: self.members.open(member) for member in members if member.seed not in failed}
        n_draws = self.members.draws_at(self.configurations[configuration], due.iterations)
        return take_look(due, n_draws, stores, failed, self.plan.rule)

    def check_configuration(self, configuration: int) -> None:
        """Raise ConfigError unless `configuration` is the number of a configuration."""
        if not 0 <= configuration < len(self.configurations):
            raise ConfigError(
                f"configuration: must be from 0 to {len(self.configurations) - 1}, got {configuration}"
            )


def _folder_of_looks(configuration: int) -> str:
    return f"c{configuration:04d}"
