"""The plan of a study, in a file that never changes, and its members, which are ordinary stores."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from rayfbnn.data import Dataset
from rayfbnn.errors import (
    ConfigError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreMismatchError,
    StoreMissingError,
    at_most_ten,
)
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec, differences
from rayfbnn.store.documents import as_document, parse_json
from rayfbnn.store.locking import lock_of
from rayfbnn.store.records import NO_SEAL, SEAL, seal, seal_of, unsealed
from rayfbnn.store.storage.building import hidden_name
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.store import Store
from rayfbnn.study.rule import Rule
from rayfbnn.study.sealed import (
    FORMAT_VERSION,
    LARGEST_SEED,
    MOST_MEMBERS,
    MOST_SEEDS,
    TRAIN,
    FailureDocument,
    PlanDocument,
)
from rayfbnn.version import RESULTS, __version__

FILE = "study.json"
_ONE_HASH = 2  # the format with one hash of cases for all configurations


@dataclass(frozen=True)
class StudyConfiguration:
    """One configuration of a study.

    Attributes
    ----------
    number
        Counted from 0 in the order of the grid.
    varied
        The overrides "key.path=value" that distinguish it from the others.
    keys
        All its keys, as `RunSpec.to_dict` returns them, with the first seed.
    data_hash
        Hash of its training cases.
    """

    number: int
    varied: tuple[str, ...]
    keys: dict[str, Any]
    data_hash: str

    @property
    def label(self) -> str:
        """The overrides as one text, or "the configuration" if nothing is varied."""
        return ", ".join(self.varied) or "the configuration"

    @property
    def setting(self) -> str:
        """The label without the training file; configurations that differ only in it share their setting."""
        kept = [text for text in self.varied if not text.startswith(f"{TRAIN}=")]
        return ", ".join(kept) or "the configuration"

    @property
    def iterations(self) -> int:
        """Iterations of the last phase, over all looks."""
        return int((self.keys if "ladder" in self.keys else self.keys["phase"][-1])["iterations"])

    def spec(self, seed: int) -> RunSpec:
        """Return the configuration of the member with a seed. Its inputs follow from the training cases."""
        keys = copy.deepcopy(self.keys)
        keys["seed"] = seed
        return RunSpec.from_dict(keys)


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study.

    Attributes
    ----------
    identity
        The checksum of the file. Every record of the study names it.
    version
        The version of rayfbnn that made it.
    results
        The number of the results of this version.
    configurations, seeds, rule
        The configurations and seeds of the members, and the rule that decides when they stop.
    """

    identity: str
    version: str
    results: int
    configurations: tuple[StudyConfiguration, ...]
    seeds: tuple[int, ...]
    rule: Rule

    @staticmethod
    def from_file(storage: Storage, folder: Place) -> StudyPlan:
        """Read the plan in a folder; StoreMissingError if it has none, StoreCorruptError for a bad file."""
        place = folder / FILE
        try:
            raw = storage.read(place)
        except FileNotFoundError:
            raise StoreMissingError(f"{folder}: is not a study: it has no {FILE}") from None
        seal_of(raw, place)
        document = parse_json(raw, place)
        version = document.get("format_version")
        if version == _ONE_HASH:
            raw = json.dumps(_with_hash_of_each(document)).encode()
        elif version != FORMAT_VERSION:
            raise StoreError(
                f"{folder}: is a study of format {version}, but this version reads format {FORMAT_VERSION};"
                " use the version that made it"
            )
        parsed = as_document(PlanDocument, raw, place, "the plan of a study")
        configurations = tuple(
            StudyConfiguration(number, tuple(entry.varied), entry.keys, entry.data_hash)
            for number, entry in enumerate(parsed.configurations)
        )
        try:
            check_size(len(configurations), len(parsed.seeds))
            for configuration in configurations:
                configuration.spec(parsed.seeds[0])
            return StudyPlan(
                identity=parsed.seal,
                version=parsed.version,
                results=parsed.results,
                configurations=configurations,
                seeds=checked_seeds(parsed.seeds),
                rule=Rule(**parsed.rule.model_dump()),
            )
        except ConfigError as exc:
            raise StoreCorruptError(f"{place}: is not the plan of a study: {exc}") from None

    @cached_property
    def first_with_cases(self) -> dict[str, int]:
        """The number of the first configuration with each set of training cases, by the hash of the cases."""
        return first_with_cases(self.configurations)


def _with_hash_of_each(document: dict[str, Any]) -> dict[str, Any]:
    """Return a plan of format 2, in which all configurations had the same cases, in the present format."""
    document = document | {"format_version": FORMAT_VERSION}
    data_hash, entries = document.pop("data_hash", None), document.get("configurations")
    if isinstance(entries, list):
        document["configurations"] = [
            entry | {"data_hash": data_hash} if isinstance(entry, dict) else entry for entry in entries
        ]
    return document


def write_plan(
    storage: Storage,
    folder: Place,
    configurations: Sequence[StudyConfiguration],
    seeds: Sequence[int],
    rule: Rule,
) -> None:
    """Write the plan durably; StoreExistsError if the folder already has one."""
    document = {
        "format": "rayfbnn study",
        "format_version": FORMAT_VERSION,
        "version": __version__,
        "results": RESULTS,
        "configurations": [
            {name: value for name, value in asdict(one).items() if name != "number"} for one in configurations
        ],
        "seeds": list(seeds),
        "rule": asdict(rule),
        SEAL: NO_SEAL,
    }
    if not storage.write_exclusive(folder / FILE, seal(document)):
        raise StoreExistsError(f"{folder}: is already a study; run it, or choose a new folder")
    storage.fsync_dir(folder)


def first_with_cases(configurations: Sequence[StudyConfiguration]) -> dict[str, int]:
    """Return the number of the first configuration with each set of training cases, by their hash."""
    first: dict[str, int] = {}
    for one in configurations:
        first.setdefault(one.data_hash, one.number)
    return first


def numbered_seeds(count: int, *, after: int = 0) -> range:
    """Return the `count` seeds after the number `after`; ConfigError for more than a study can have."""
    if count > MOST_SEEDS:
        raise ConfigError(f"seeds: a study has at most {MOST_SEEDS}, got {count}")
    return range(after + 1, after + 1 + count)


def check_size(n_configurations: int, n_seeds: int) -> None:
    """Raise ConfigError for more members than a study can have."""
    if n_configurations * n_seeds > MOST_MEMBERS:
        raise ConfigError(
            f"seeds: a study has at most {MOST_MEMBERS} members, got {n_configurations} configurations with"
            f" {n_seeds} seeds each, {n_configurations * n_seeds} in all; give at most"
            f" {MOST_MEMBERS // n_configurations} seeds"
        )


def checked_seeds(seeds: Sequence[Any]) -> tuple[int, ...]:
    """Return the seeds unchanged; ConfigError for none, for a duplicate, and for an invalid seed."""
    if not seeds:
        raise ConfigError("seeds: a study needs at least one; give their number, or a list such as 1,2,5")
    if len(seeds) > MOST_SEEDS:
        raise ConfigError(f"seeds: a study has at most {MOST_SEEDS}, got {len(seeds)}")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
            raise ConfigError(f"seeds: must be whole numbers from 0 to {LARGEST_SEED}, got {seed}")
    seed, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"seeds: {seed} is given twice; the same seed gives the same draws")
    return tuple(seeds)


def lengths(configuration: StudyConfiguration, looks: int) -> list[int]:
    """Return the iterations of the last phase at each planned look, in increasing order."""
    total = configuration.iterations
    return sorted({-(-total * number // looks) for number in range(1, looks + 1)})


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

    def __init__(self, storage: Storage, folder: Place, plan: StudyPlan) -> None:
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
            Store.create(self.place(member), spec, self._cases(member), kernel=kernel_name(spec))

    def _cases(self, member: Member) -> Dataset:
        """Return the training cases of a member. Those of one set stay in memory, until another is needed."""
        store = self.with_cases(member.configuration)
        if self._loaded is None or self._loaded.path != store.path:
            self._loaded = Store.open(store.path)
        return self._loaded.data

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
            document = unsealed(FailureDocument, self._storage.read(place), place, "a record of a failure")
        except FileNotFoundError:
            return None
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
