"""The JSON files of a store as typed records with bounds, so a file from elsewhere can do no harm.

A file with an unknown key, a value of the wrong type or a number out of range is refused as damaged before
anything else happens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic_core import from_json

from rayfbnn.errors import StoreCorruptError, visible_name

MOST_VALUES = 3_000_000  # in a JSON file: each takes up to a hundred bytes once it is parsed
MOST_CHAINS = 1_000_000
MOST_DRAWS = 10_000_000  # of a chain in one section; their numbers are a coordinate held in memory
_MOST_ERRORS = 1_000  # that pydantic is asked to describe, which takes long for millions

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
DigestOrNone = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Name = Annotated[str, Field(max_length=1_000_000), AfterValidator(visible_name)]  # of columns and labels
Plain = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]  # shown to people
ChunkFile = Annotated[str, Field(pattern=r"^(?:[A-Za-z0-9_]{1,200}/){1,2}c(?:\.[0-9]{1,9}){1,8}$")]
Chains = Annotated[int, Field(ge=1, le=MOST_CHAINS)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Draws = Annotated[int, Field(ge=0, le=MOST_DRAWS)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Seal = Annotated[Digest, Field(alias="sha256_of_this_file")]

OwnDigest = Annotated[DigestOrNone, Field(alias="sha256_of_this_file")]
Empty = Annotated[dict[str, str], Field(max_length=0)]
Shapes = Annotated[dict[Plain, tuple[Whole, ...]], Field(max_length=100)]

if TYPE_CHECKING:
    Numbers = dict[str, float]
else:
    Numbers = Annotated[
        dict[Name, float | None],  # null in a file is a number that is not finite
        AfterValidator(lambda numbers: {key: math.nan if n is None else n for key, n in numbers.items()}),
        PlainSerializer(lambda numbers: {key: n if math.isfinite(n) else None for key, n in numbers.items()}),
    ]

Model = TypeVar("Model", bound="Document")


class Document(BaseModel):
    """A JSON object with exactly these keys; text and numbers are not converted into each other."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


RESULTS_BEFORE = 1
"""The results (`rayfbnn.version`) of stores and studies from before their number was recorded."""


class ExtensionDocument(Document):
    """A record that changes the length of the run."""

    store: Digest
    number: Whole
    n_draws: Draws
    n_blocks: Whole
    spec: dict[str, Any]
    seal: Seal


class Head(Document):
    """The number of blocks of a batch, and the digest of the last.

    store   digest of the store's root metadata
    blocks  number of published blocks
    last    digest of the last block, "" before the first
    """

    store: Digest
    batch: Whole
    blocks: Whole
    last: DigestOrNone


class HeadDocument(Head):
    """The file with the head of a batch."""

    seal: Seal


class RoundVerdict(Document):
    """The verdict after one round, and the decision.

    iterations       planned length of the last phase when the round ended
    draws            committed draws of each chain when the round ended
    decisive         the verdict that decides, "predictions" or "all"
    predictions, hyperparameters  the grades; "no draws" before the first draw
    ok               whether the deciding verdict is ok
    seconds          duration of the round
    next_iterations  new length of the last phase; None if the run was not extended
    """

    iterations: Whole
    draws: Draws
    decisive: Plain
    predictions: Plain
    hyperparameters: Plain
    ok: bool
    seconds: float
    next_iterations: Whole | None


class VerdictDocument(RoundVerdict):
    """The file with the verdict on a run in rounds."""

    store: Digest
    number: Whole
    seal: Seal


class HolderDocument(Document):
    """The process that runs the store."""

    host: Plain
    pid: Whole
    seal: Seal


def parse_json(raw: bytes, path: object) -> dict[str, Any]:
    """Return the JSON object in a file; StoreCorruptError, naming `path`, if there is none or it is too big.

    The values are counted before the file is parsed, because a value may take more memory than it has bytes.
    """
    n_values = values_in(raw)
    if n_values > MOST_VALUES:
        raise StoreCorruptError(
            f"{path}: has about {n_values} values, but a file of a store has at most {MOST_VALUES}"
        )
    try:
        document = from_json(raw, allow_inf_nan=False)
    except ValueError as exc:
        raise StoreCorruptError(f"{path}: is not JSON ({exc})") from exc
    if not isinstance(document, dict):
        raise StoreCorruptError(f"{path}: is not a JSON object")
    return document


def values_in(raw: bytes) -> int:
    """Return an upper bound on the number of values in a JSON file."""
    return sum(raw.count(mark) for mark in (b",", b"[", b"{"))


def as_document(model: type[Model], raw: bytes, path: object, what: str) -> Model:
    """Return a JSON file as a typed record; StoreCorruptError names the first key that is wrong.

    what  the expected content in words, such as "a commit record"
    """
    parse_json(raw, path)
    try:
        return model.model_validate_json(raw)
    except ValidationError as exc:
        reason = f"{exc.error_count()} values are wrong"
        if exc.error_count() <= _MOST_ERRORS:
            first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            key = ".".join(str(part) for part in first["loc"])[:200]
            reason = f"{key or 'document'}: {first['msg'][:200]}"
        raise StoreCorruptError(f"{path}: damaged: it is not {what} of this format ({reason})") from exc
