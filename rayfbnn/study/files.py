"""The files of a study: its plan, members, additions of seeds, and looks with their decisions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from rayfbnn.draws.quantities import DENSITIES, Quantities
from rayfbnn.draws.view import Draws, of_store
from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError, at_most_ten
from rayfbnn.run.running import unfinished_batches
from rayfbnn.store.documents import Count, Digest, Document, Name, Whole
from rayfbnn.store.documents import Draws as DrawCount
from rayfbnn.store.repair import check_files
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.places import Place, as_typed, place_of
from rayfbnn.store.store import Store
from rayfbnn.study.plan import (
    FAILURES,
    FILE,
    FOLDER,
    Member,
    Members,
    StudyConfiguration,
    StudyPlan,
    check_size,
    checked_seeds,
    lengths,
    numbered_seeds,
)
from rayfbnn.study.rule import Judged, Rule, judge, reasons
from rayfbnn.study.sealed import (
    MOST_MEMBERS,
    AdditionDocument,
    MemberSeeds,
    Numbered,
    NumberedDocument,
    RecordLog,
    SeedKey,
    Sentences,
)

_ADDITIONS, _LOOKS = "additions", "looks"
_OURS = (FILE, FOLDER, FAILURES, _ADDITIONS, _LOOKS)


class StudyFiles:
    """The content of a study's folder, or of the keys below its address; `Study` lists its attributes."""

    def __init__(self, place: Place, plan: StudyPlan) -> None:
        """Keep the plan that was read."""
        self.place, self.plan = place, plan
        self._storage = storage_of(place)
        self.members = Members(self._storage, place, plan)
        self._additions = self._log(AdditionDocument, place / _ADDITIONS)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a study; ConfigError if its folder contains something that does not belong to a study.

        Raises StoreCorruptError if a folder of the study, a member, or a log is a link.
        """
        place = place_of(path)
        storage = storage_of(place)
        study = cls(place, StudyPlan.from_file(storage, place))
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
    def configurations(self) -> tuple[StudyConfiguration, ...]:
        """The configurations, in the order of the grid."""
        return self.plan.configurations

    @property
    def n_training_files(self) -> int:
        """Number of training files, or rather of different sets of training cases."""
        return len(self.plan.first_with_cases)

    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of the members of each configuration."""
        added = (record.seeds for record in self._checked_additions())
        return tuple(chain(self.plan.seeds, *added))

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
        records = self._look_log(configuration).all()
        return [Look(**{name: getattr(one, name) for name in Look.model_fields}) for one in records]

    def _look_log(self, configuration: int) -> RecordLog[LookDocument]:
        return self._log(LookDocument, self.place / _LOOKS / _folder_of_looks(configuration))

    def _log(self, model: type[Numbered], folder: Place) -> RecordLog[Numbered]:
        owner = ("study", self.plan.identity)
        return RecordLog(self._storage, folder, self.place, model, "a record of a study", owner)

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
            earlier = (one.seeds for one in additions if one.after_looks[configuration.number] <= len(looks))
            seeds = tuple(chain(self.plan.seeds, *earlier))
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
        members = [Member(one.number, seed) for one in self.configurations for seed in self.seeds()]
        there = [one for one in members if self.members.is_there(one) and self.members.failure(one) is None]
        self._storage.each(lambda member: check_files(self.members.open(member)), there)

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
        members = [Member(configuration, seed) for seed in due.seeds]
        failures = {member.seed: self.members.failure(member) for member in members}
        failed = {seed: reason for seed, reason in failures.items() if reason is not None}
        stores = {member.seed: self.members.open(member) for member in members if member.seed not in failed}
        n_draws = self.members.spec(members[0]).with_iterations(due.iterations).kept_draws
        look = take_look(due, n_draws, stores, failed, self.plan.rule)
        is_new = self._look_log(configuration).put(due.number, look.to_document())
        return look if is_new else None

    def check_configuration(self, configuration: int) -> None:
        """Raise ConfigError unless `configuration` is the number of a configuration."""
        if not 0 <= configuration < len(self.configurations):
            raise ConfigError(
                f"configuration: must be from 0 to {len(self.configurations) - 1}, got {configuration}"
            )


def _folder_of_looks(configuration: int) -> str:
    return f"c{configuration:04d}"


@dataclass(frozen=True)
class Due:
    """The next look at a configuration.

    number      number of the look, counted from 1
    iterations  iterations of the last phase that every member must have
    seeds       seeds of the members
    is_last     whether no later look is planned
    """

    number: int
    iterations: int
    seeds: tuple[int, ...]
    is_last: bool


class Look(Document):
    """The result of a look, and the decision.

    Attributes
    ----------
    number
        Number of the look at this configuration, counted from 1.
    iterations, draws
        Iterations of the last phase, and draws of each chain, that were looked at.
    seeds
        Seeds of the members.
    quantities
        Each quantity by its name.
    failed
        The reason for each member that could not be sampled, by its seed.
    digests
        The SHA-256 of the densities of each member's draws, by its seed.
    ok
        Whether the rule allows the study to stop.
    reasons
        A sentence for each reason that the study may not stop.
    action
        "stop" if `ok`; otherwise "continue" to the next look, or "end" if none is planned.
    """

    number: Count
    iterations: Whole
    draws: DrawCount
    seeds: MemberSeeds
    quantities: dict[Name, Judged]
    failed: dict[SeedKey, Name]
    digests: dict[SeedKey, Digest]
    ok: bool
    reasons: Sentences
    action: Literal["stop", "continue", "end"]

    @property
    def max_rhat(self) -> float | None:
        """The largest nested R-hat; None if one is not known, or none was computed."""
        return _largest([one.rhat for one in self.quantities.values()])

    @property
    def max_drift(self) -> float | None:
        """The largest error of a mean from a shared drift, in standard deviations; None as for `max_rhat`."""
        return _largest([one.drift for one in self.quantities.values()])

    def to_document(self) -> dict[str, Any]:
        """Return the look as it is stored, without its number."""
        return self.model_dump(exclude={"number"})


class LookDocument(Look, NumberedDocument):
    """The record of a look."""


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def due_look(looks: Sequence[Look], lengths: Sequence[int], seeds: tuple[int, ...]) -> Due | None:
    """Return the next look at a configuration, or None if it is complete.

    looks    the earlier looks
    lengths  iterations of the last phase at the planned looks
    seeds    seeds of the members at the next look
    """
    if not looks:
        return Due(1, lengths[0], seeds, len(lengths) == 1)
    last = looks[-1]
    if last.action == "continue":
        later = [length for length in lengths if length > last.iterations]
        if not later:
            raise StoreCorruptError(
                f"look {last.number} decided to continue after {last.iterations} iterations, but the plan of"
                " the study has no later look"
            )
        iterations = later[0]
    elif set(seeds) == set(last.seeds):
        return None
    else:  # members were added after the last look, and reach its iterations before the next
        iterations = last.iterations
    return Due(last.number + 1, iterations, seeds, iterations >= lengths[-1])


def take_look(
    due: Due, n_draws: int, stores: Mapping[int, Store], failed: Mapping[int, str], rule: Rule
) -> Look:
    """Judge the first `n_draws` draws of each member by the rule, and return the look.

    stores  stores of the members that could be sampled, by seed
    """
    seeds = tuple(sorted(stores))
    runs = {seed: of_store(stores[seed], n_draws) for seed in seeds}
    quantities, digests = _judged(runs, rule)
    listed = (*reasons(quantities, n_draws, dict(sorted(failed.items())), rule), *_reasons_of_ladders(runs))
    if len(seeds) < 2:
        listed = (*listed, f"{len(seeds)} member with draws: R-hat needs two or more")
    ok = not listed
    return Look(
        number=due.number,
        iterations=due.iterations,
        draws=n_draws,
        seeds=tuple(sorted(due.seeds)),
        quantities=quantities,
        failed=dict(sorted(failed.items())),
        digests=digests,
        ok=ok,
        reasons=listed,
        action="stop" if ok else "end" if due.is_last else "continue",
    )


def _reasons_of_ladders(runs: Mapping[int, Draws]) -> list[str]:
    """Return why ladders of members, by seed, may have missed a part of the posterior; [] for other runs.

    The sentences have no numbers, whose last digits may differ between machines.
    """
    if not any(run.is_of_ladders for run in runs.values()):
        return []
    from rayfbnn.answers.judging.ladder_verdict import verdict_on_ladders, verdict_on_pooled_ladders

    unsound: dict[str, list[str]] = {}
    for seed, run in runs.items():
        if run.is_of_ladders and not (verdict := verdict_on_ladders(run)).is_sound:
            unsound.setdefault(verdict.grade, []).append(str(seed))
    sentences = [
        f"the evidence of the ladders of these seeds is {grade!r}: {', '.join(at_most_ten(seeds))}"
        for grade, seeds in sorted(unsound.items())
    ]
    if unsound or len(runs) < 2:
        return sentences
    pooled = verdict_on_pooled_ladders(list(runs.values()))
    if pooled is None or pooled.is_sound:
        return []
    return [f"the evidence of the ladders of all seeds together is {pooled.grade!r}"]


def _judged(runs: Mapping[int, Draws], rule: Rule) -> tuple[dict[str, Judged], dict[int, str]]:
    """Return each quantity of the members' draws as judged, and the digest of each member's densities."""
    if not runs:
        return {}, {}
    seeds, every = tuple(runs), list(runs.values())
    planned = Quantities.of_run(every[0], cases=rule.cases)
    judged, densities = {}, {seed: hashlib.sha256() for seed in seeds}
    for name, values in planned.each(every):
        of_members = values.reshape(len(seeds), every[0].n_chains, every[0].n_draws)
        judged[name] = judge(of_members, seeds, rule)
        if name in DENSITIES:
            for seed, of_member in zip(seeds, of_members, strict=True):
                densities[seed].update(np.ascontiguousarray(of_member, dtype="<f8").reshape(-1).data)
    digests = {seed: digest.hexdigest() for seed, digest in densities.items()}
    return {name: judged[name] for name in planned.origins}, digests
