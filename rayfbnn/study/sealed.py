"""The JSON files of a study, typed, bounded, sealed, and written once; grids of configurations."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from rayfbnn.errors import ConfigError, StoreCorruptError
from rayfbnn.store.documents import (
    RESULTS_BEFORE,
    Count,
    Digest,
    Document,
    Name,
    Plain,
    Seal,
    Whole,
)
from rayfbnn.store.records import SealedLog

_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_FIXED = ("seed", "data", "model.kind", "dtype", "device")
MOST_CONFIGURATIONS = 1000
TRAIN = "data.train"
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}", re.ASCII)


def grid(vary: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the overrides "key.path=value" of each configuration of a grid; one without any for no grid.

    Raises ConfigError for a text without values, a key or point given twice, keys that go together with
    different numbers of values, and a key that members must share.

    vary  texts "key.path=a,b,c", and its values are combined with those of every other text. In a text
          "key=a,b; other=c,d" the keys go together: its points are a with c, and b with d. A separator in
          brackets, braces or quotes does not count
    """
    axes = [_axis(text) for text in vary]
    keys = [key for axis in axes for key, _ in axis]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"vary: {key} is given twice; give all its values at once")
    points = [_points(axis) for axis in axes]
    count = math.prod(map(len, points))
    if count > MOST_CONFIGURATIONS:
        raise ConfigError(f"vary: a study has at most {MOST_CONFIGURATIONS} configurations, got {count}")
    return [
        tuple(f"{key}={value}" for key, value in zip(keys, itertools.chain(*combination), strict=True))
        for combination in itertools.product(*points)
    ]


def _axis(text: str) -> list[tuple[str, list[str]]]:
    """Return each key of a text with its values, as many for each; ConfigError if it is not an axis."""
    axis = [_key_and_values(part) for part in _split(text, ";")]
    (first, values), *others = axis
    for key, more in others:
        if len(more) != len(values):
            raise ConfigError(
                f"vary: keys that go together need as many values each, but {first} has {len(values)}"
                f" and {key} has {len(more)}"
            )
    points = _points(axis)
    if len(set(points)) < len(points):
        raise ConfigError(f'vary: {", ".join(key for key, _ in axis)} has the same value twice in "{text}"')
    return axis


def _points(axis: Sequence[tuple[str, list[str]]]) -> list[tuple[str, ...]]:
    return list(zip(*(values for _, values in axis), strict=True))


def _key_and_values(text: str) -> tuple[str, list[str]]:
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(f'vary: must be key.path=a,b,c, got "{text}"')
    if key != TRAIN and any(
        key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in _FIXED
    ):
        raise ConfigError(
            f"vary: {key} cannot be varied: all members of a study have the same columns, kind of targets,"
            f" dtype and device, and the study gives them their seeds; of the data only {TRAIN} can be varied"
        )
    values = listed(rest)
    if "" in values:
        raise ConfigError(f'vary: {key} has no value, or an empty one, in "{text}"')
    return key, values


def listed(text: str) -> list[str]:
    """Return the values of a list "a,b,c", where fold_{0..9}.csv stands for ten values.

    A value with quotes stays as it is.
    """
    return [one for value in _split(text, ",") for one in _of_range(value)]


def _of_range(value: str) -> list[str]:
    match = _RANGE.search(value)
    if match is None or "'" in value or '"' in value:
        return [value]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MOST_CONFIGURATIONS:
        raise ConfigError(f"{value}: must be a range of 1 to {MOST_CONFIGURATIONS} numbers, such as {{0..9}}")
    n_digits = len(match[1]) if match[1].startswith("0") else 0  # 08, 09, 10
    before, after = value[: match.start()], value[match.end() :]
    return [f"{before}{number:0{n_digits}d}{after}" for number in range(first, last + 1)]


def _split(text: str, separator: str) -> list[str]:
    """Split a text at its separators, except those in brackets, braces and quotes."""
    values, depth, quote, value = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        if character == separator and depth == 0 and not quote:
            values.append(value.strip())
            value = ""
        else:
            value += character
    return [*values, value.strip()]


FORMAT_VERSION = 3
MOST_SEEDS = 10_000  # given at once
MOST_MEMBERS = 100_000  # of all configurations together; a status looks at each
LARGEST_SEED = 2**32 - 1

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Seeds = Annotated[list[Seed], Field(min_length=1, max_length=MOST_SEEDS)]
_SEED = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def _seed_of_key(value: object) -> object:
    """Read a seed that is the key of a JSON object."""
    return int(value) if isinstance(value, str) and _SEED.fullmatch(value) else value


SeedKey = Annotated[Seed, BeforeValidator(_seed_of_key)]
# JSON has lists in the place of tuples.
SomeSeeds = Annotated[tuple[Seed, ...], Field(strict=False, max_length=MOST_MEMBERS)]
MemberSeeds = Annotated[tuple[Seed, ...], Field(strict=False, min_length=1, max_length=MOST_MEMBERS)]
Sentences = Annotated[tuple[Name, ...], Field(strict=False)]


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
    """The content of study.json; see `plan.StudyPlan`."""

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


class NumberedDocument(Document):
    """A record in a log of the study with the identity `study`."""

    study: Digest
    number: Count
    seal: Seal


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


Numbered = TypeVar("Numbered", bound=NumberedDocument)


class RecordLog(SealedLog[Numbered]):
    """The records of a study, counted from 1."""

    def all(self) -> list[Numbered]:
        """Return the records in order; StoreCorruptError if one is damaged, missing or another study's."""
        return [self._numbered(number) for number in range(1, len(self.numbers()) + 1)]

    def _numbered(self, number: int) -> Numbered:
        try:
            return self.read(number)
        except FileNotFoundError:
            raise StoreCorruptError(f"{self.file(number)}: missing, although later records exist") from None
