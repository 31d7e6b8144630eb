"""The members of a study: ordinary stores, one for each configuration and seed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from rayfbnn.data import Dataset
from rayfbnn.errors import ConfigError, StoreCorruptError, StoreExistsError, StoreMismatchError, at_most_ten
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec, differences
from rayfbnn.store.checking.documents import as_document
from rayfbnn.store.locking import lock_of
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unseal
from rayfbnn.store.storage.building import hidden_name
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.store import Store
from rayfbnn.study.plan import Configuration, Plan
from rayfbnn.study.sealed import FailureDocument

FOLDER, FAILURES = "members", "failures"
_NAME = re.compile(r"\.?c(\d{4})-s(\d{10})\.zarr(\.log\.jsonl|\.creating)?", re.ASCII)


@dataclass(frozen=True, order=True)
class Member:
    """One run of a study: the number of its configuration, and its seed."""

    configuration: int
    seed: int

    @property
    def name(self) -> str:
        """The name of its store."""
        return f"c{self.configuration:04d}-s{self.seed:010d}.zarr"


class Members:
    """The stores of a study's members."""

    def __init__(self, storage: Storage, folder: Place, plan: Plan) -> None:
        self._storage, self._folder, self._plan = storage, folder, plan
        self._with_cases: dict[int, Store] = {}  # by the number of the first configuration with the cases
        self._total_iterations: dict[int, int] = {}  # by the number of the configuration
        self._loaded: Store | None = None  # one of these, whose cases are in memory

    def place(self, member: Member) -> Place:
        """Return the place of a member's store."""
        return self._folder / FOLDER / member.name

    def with_cases(self, configuration: int = 0) -> Store:
        """Return the store that was made with the study for the training cases of a configuration."""
        number = self._plan.first_with_cases[self._plan.configurations[configuration].data_hash]
        if number not in self._with_cases:
            self._with_cases[number] = self._opened(Member(number, self._plan.seeds[0]))
        return self._with_cases[number]

    def _opened(self, member: Member, *, headers_only: bool = False) -> Store:
        """Open a member's store; StoreCorruptError if the store or its folder is a link."""
        place = self.place(member)
        self._storage.check_folders([self._folder / FOLDER, place])
        return Store.open(place, headers_only=headers_only)

    def spec(self, member: Member) -> RunSpec:
        """Return the configuration of a member, with the total length of all looks."""
        configuration = self._plan.configurations[member.configuration]
        encoding = self.with_cases(member.configuration).spec.encoding
        return configuration.spec(member.seed).resolved(encoding)

    def total_iterations(self, configuration: int) -> int:
        """Return the iterations of all phases of a configuration, with all looks; seeds do not change it."""
        if configuration not in self._total_iterations:
            first = Member(configuration, self._plan.seeds[0])
            self._total_iterations[configuration] = self.spec(first).total_iterations
        return self._total_iterations[configuration]

    def is_there(self, member: Member) -> bool:
        """Return True if the member's store has been made."""
        return self._storage.is_taken(self.place(member))

    def is_busy(self, member: Member) -> bool:
        """Return True if a process is sampling the member; this looks at one file or object."""
        return self._storage.is_locked(lock_of(self.place(member)))

    def open(self, member: Member, *, headers_only: bool = False) -> Store:
        """Open a member's store; StoreMismatchError if it has a different configuration or different data.

        headers_only  as in Store.open, for callers that only need the member's progress
        """
        store = self._opened(member, headers_only=headers_only)
        expected = self.spec(member).with_iterations(store.spec.phase[-1].iterations)
        lines = [line for line in differences(expected, store.spec) if not line.startswith("data.train:")]
        if store.root.header.data_hash != self._plan.configurations[member.configuration].data_hash:
            lines.append("data: the training cases differ")
        if lines:
            listed = "".join(f"\n  {line}" for line in at_most_ten(lines))
            raise StoreMismatchError(f"{store.path}: is not a member of this study:{listed}")
        return store

    def create(self, member: Member, iterations: int) -> None:
        """Create a member's store with a last phase of this length, unless another driver was first."""
        spec = self.spec(member).with_iterations(iterations)
        self._storage.check_folders([self._folder / FOLDER])
        with suppress(StoreExistsError):
            Store.for_run(self.place(member), spec, self._cases(member), kernel=kernel_name(spec))

    def _cases(self, member: Member) -> Dataset:
        """Return the training cases of a member. Those of one set stay in memory, until another is needed."""
        store = self.with_cases(member.configuration)
        if self._loaded is None or self._loaded.path != store.path:
            self._loaded = Store.open(store.path)
        return self._loaded.data

    def draws_at(self, configuration: Configuration, iterations: int) -> int:
        """Return the number of draws of each chain when the last phase has this many iterations."""
        seed = self._plan.seeds[0]
        return self.spec(Member(configuration.number, seed)).with_iterations(iterations).kept_draws

    def fail(self, member: Member, reason: str) -> None:
        """Record durably the reason that a member cannot be sampled."""
        folder = self._folder / FAILURES
        self._storage.mkdir(folder)
        self._storage.fsync_dir(self._folder)
        document = {"study": self._plan.identity, "member": member.name, "reason": reason, SEAL: NO_SEAL}
        self._storage.write_exclusive(folder / f"{member.name}.json", seal(document))

    def failure(self, member: Member) -> str | None:
        """Return the reason that a member cannot be sampled, or None if none is known."""
        place = self._folder / FAILURES / f"{member.name}.json"
        try:
            content = unseal(self._storage.read(place), place)
        except FileNotFoundError:
            return None
        document = as_document(FailureDocument, content, place, "a record of a failure")
        if (document.study, document.member) != (self._plan.identity, member.name):
            raise StoreCorruptError(f"{place}: this record is about another member or another study")
        return document.reason

    def names(self) -> list[str]:
        """Return all names in the folder of the members; StoreCorruptError if the folder is missing."""
        try:
            return self._storage.listdir(self._folder / FOLDER)
        except FileNotFoundError:
            raise StoreCorruptError(f"{self._folder / FOLDER}: the members' folder is missing") from None

    def check(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        """Check names in the folder of the members, given the seeds of the members.

        Raises ConfigError for a name that belongs neither to a member, nor to its log, nor to a creation that
        crashed, and StoreCorruptError if a link has such a name.
        """
        folder = self._folder / FOLDER
        n_configurations, expected = len(self._plan.configurations), frozenset(seeds)
        kinds = {name: _kind(name, n_configurations, expected) for name in names}
        foreign = [name for name, kind in kinds.items() if kind is None]
        if foreign:
            raise ConfigError(f"{folder}: {foreign[0]} is not a member of the study; move it elsewhere")
        self._storage.check_files(folder / name for name, kind in kinds.items() if kind == "log")
        self._storage.check_folders(folder / name for name, kind in kinds.items() if kind == "store")


def _kind(name: str, n_configurations: int, seeds: Collection[int]) -> Literal["store", "log"] | None:
    """Return "store" for the name of a member's store, maybe unfinished, "log" for its log, else None."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    member = Member(int(match[1]), int(match[2]))
    if member.configuration >= n_configurations or member.seed not in seeds:
        return None
    if name == f"{member.name}.log.jsonl":
        return "log"
    return "store" if name in (member.name, hidden_name(member.name)) else None
