"""The JSON files of a study: typed, bounded, sealed, and written once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.checking.documents import (
    RESULTS_BEFORE,
    Count,
    Digest,
    Document,
    Draws,
    Name,
    Plain,
    Seal,
    Whole,
    as_document,
)
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unseal
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.study.grid import MOST_CONFIGURATIONS

FORMAT_VERSION = 3
MOST_SEEDS = 10_000  # given at once
MOST_MEMBERS = 100_000  # of all configurations together; a status looks at each
LARGEST_SEED = 2**32 - 1

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Seeds = Annotated[list[Seed], Field(min_length=1, max_length=MOST_SEEDS)]
SeedText = Annotated[str, Field(pattern=r"^(?:0|[1-9][0-9]{0,9})$")]  # the key of a JSON object


class ConfigurationDocument(Document):
    """A configuration of the plan. `RunSpec` checks its keys."""

    varied: list[Name]
    keys: dict[str, Any]
    data_hash: Digest


class RuleDocument(Document):
    """The limits of the plan's rule. `rule.Rule` checks their ranges."""

    max_rhat: float
    max_mcse: float
    least_draws: Whole
    looks: Whole
    cases: Whole


class PlanDocument(Document):
    """The content of study.json; see `plan.Plan`."""

    format: Literal["rayfbnn study"]
    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    version: Plain
    results: Whole = RESULTS_BEFORE
    configurations: Annotated[
        list[ConfigurationDocument], Field(min_length=1, max_length=MOST_CONFIGURATIONS)
    ]
    seeds: Seeds
    rule: RuleDocument
    seal: Seal


class JudgedDocument(Document):
    """A quantity at a look; see `rule.Judged`."""

    mean: float | None
    sd: float | None
    rhat: float | None
    mcse: float | None
    drift: float | None
    late: float | None
    growth: float | None
    stuck: list[Seed]
    ok: bool
    apart: list[Seed]


class NumberedDocument(Document):
    """A record in a log of the study with the identity `study`."""

    study: Digest
    number: Count
    seal: Seal


class LookDocument(NumberedDocument):
    """The record of a look; see `looks.Look`."""

    iterations: Whole
    draws: Draws
    seeds: Seeds
    quantities: dict[Name, JudgedDocument]
    failed: dict[SeedText, Name]
    digests: dict[SeedText, Digest]
    ok: bool
    reasons: list[Name]
    action: Literal["stop", "continue", "end"]


class AdditionDocument(NumberedDocument):
    """Seeds that were added, and the number of looks that each configuration had then."""

    seeds: Seeds
    after_looks: list[Whole]


class FailureDocument(Document):
    """The reason that a member cannot be sampled."""

    study: Digest
    member: Plain
    reason: Name
    seal: Seal


_NUMBERED = re.compile(r"(\d{6})\.json", re.ASCII)
_Record = TypeVar("_Record", bound=NumberedDocument)


class RecordLog(Generic[_Record]):
    """The records `<number>.json`, counted from 1, of the study with the identity `study`.

    The folders are nested below `root`, each in the one before it. The records are in the last folder.
    """

    def __init__(
        self, storage: Storage, root: Place, folders: Sequence[str], study: str, model: type[_Record]
    ) -> None:
        self._storage, self._study, self._model = storage, study, model
        self._folders: list[Place] = []
        for name in folders:
            root = root / name
            self._folders.append(root)

    def all(self) -> list[_Record]:
        """Return the records in order; StoreCorruptError if one is damaged, missing or another study's."""
        return list(self._read())

    def _read(self) -> Iterator[_Record]:
        for number in range(1, len(self._numbers()) + 1):
            place = self._place(number)
            try:
                content = unseal(self._storage.read(place), place)
            except FileNotFoundError:
                raise StoreCorruptError(f"{place}: missing, although later records exist") from None
            document = as_document(self._model, content, place, "a record of a study")
            if (document.study, document.number) != (self._study, number):
                raise StoreCorruptError(
                    f"{place}: this record is of another study, or its number differs from its name"
                )
            yield document

    def put(self, number: int, document: dict[str, Any]) -> bool:
        """Write the record of a number unless it exists. Return True if it was written, and is durable."""
        for folder in self._folders:
            self._storage.mkdir(folder)
            self._storage.fsync_dir(folder.parent)
        content = seal({"study": self._study, "number": number, **document, SEAL: NO_SEAL})
        return self._storage.write_exclusive(self._place(number), content)

    def _numbers(self) -> list[int]:
        try:
            names = self._storage.listdir(self._folders[-1])
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name))]

    def _place(self, number: int) -> Place:
        return self._folders[-1] / f"{number:06d}.json"
