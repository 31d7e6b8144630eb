"""The plan of a study: its configurations, seeds and rule, in a file that never changes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError, StoreExistsError, StoreMissingError
from rayfbnn.spec import RunSpec
from rayfbnn.store.checking.documents import as_document
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unseal
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.study.grid import TRAIN
from rayfbnn.study.rule import Rule
from rayfbnn.study.sealed import FORMAT_VERSION, LARGEST_SEED, MOST_MEMBERS, MOST_SEEDS, PlanDocument
from rayfbnn.version import RESULTS, __version__

FILE = "study.json"
_ONE_HASH = 2  # the format with one hash of cases for all configurations


@dataclass(frozen=True)
class Configuration:
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
class Plan:
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
    configurations: tuple[Configuration, ...]
    seeds: tuple[int, ...]
    rule: Rule

    @staticmethod
    def from_file(storage: Storage, folder: Place) -> Plan:
        """Read the plan in a folder; StoreMissingError if it has none, StoreCorruptError for a bad file."""
        place = folder / FILE
        try:
            raw = storage.read(place)
        except FileNotFoundError:
            raise StoreMissingError(f"{folder}: is not a study: it has no {FILE}") from None
        document = unseal(raw, place)
        version = document.get("format_version")
        if version == _ONE_HASH:
            document = _with_hash_of_each(document)
        elif version != FORMAT_VERSION:
            raise StoreError(
                f"{folder}: is a study of format {version}, but this version reads format {FORMAT_VERSION};"
                " use the version that made it"
            )
        parsed = as_document(PlanDocument, document, place, "the plan of a study")
        configurations = tuple(
            Configuration(number, tuple(entry.varied), entry.keys, entry.data_hash)
            for number, entry in enumerate(parsed.configurations)
        )
        try:
            check_size(len(configurations), len(parsed.seeds))
            for configuration in configurations:
                configuration.spec(parsed.seeds[0])
            return Plan(
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
    configurations: Sequence[Configuration],
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
            {"varied": list(one.varied), "keys": one.keys, "data_hash": one.data_hash}
            for one in configurations
        ],
        "seeds": list(seeds),
        "rule": rule.to_dict(),
        SEAL: NO_SEAL,
    }
    if not storage.write_exclusive(folder / FILE, seal(document)):
        raise StoreExistsError(f"{folder}: is already a study; run it, or choose a new folder")
    storage.fsync_dir(folder)


def first_with_cases(configurations: Sequence[Configuration]) -> dict[str, int]:
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


def lengths(configuration: Configuration, looks: int) -> list[int]:
    """Return the iterations of the last phase at each planned look, in increasing order."""
    total = configuration.iterations
    return sorted({-(-total * number // looks) for number in range(1, looks + 1)})
