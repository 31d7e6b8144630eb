"""Records of blocks, and the small JSON files with their own checksum that hold them.

The head of a batch is a file with the number of its blocks and the digest of the last. It is replaced after a
block is published. A crash may therefore leave it one block behind, but never ahead. Without a head, nobody
would notice that the last blocks of a batch are gone.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import COMMITS, DISCARDED, Section
from rayfbnn.store.documents import (
    ChunkFile,
    Digest,
    DigestOrNone,
    Document,
    Draws,
    Empty,
    Head,
    HeadDocument,
    Model,
    Numbers,
    OwnDigest,
    Whole,
    as_document,
)
from rayfbnn.store.rounds import Measurements
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

SEAL = "sha256_of_this_file"
NO_SEAL = "0" * 64  # stands for the digest in the file when the digest is computed
_SEALED = re.compile(rb'"' + SEAL.encode() + rb'": "([0-9a-f]{64})"')

SECONDS = "seconds"  # key in the summary of a block: wall-clock time that its worker took


@dataclass(frozen=True, eq=False)
class Block:
    """The work of a batch of chains since its last commit.

    first_iteration, n_iterations  counted from 1 through all phases
    section     section that the draws go to; None if they are not kept
    first_draw  index of the first draw in its section
    positions   (n_chains, n_draws, n_parameters)
    precisions  (n_chains, n_draws, n_precisions)
    stats       name -> (n_chains, n_draws); missing STATS are stored as NaN
    state       after the last iteration; the arrays of a fit or of ladders by name; None for exact draws and
                draws from the prior, which have no state to continue from
    summary     small numbers that are summed over blocks: updates, acceptances, and SECONDS
    predictive  name -> (n_chains, n_draws, n_cases, ...) for PREDICTIVE, for draws from the prior
    ladder      name -> (n_chains, n_draws, ...) for the arrays of a run with a ladder (catalogue.LADDER)
    tuning      measurements of the automatic operations of a round (mcmc/tuning), or of ladders
    """

    first_iteration: int
    n_iterations: int
    section: Section | None = None
    first_draw: int = 0
    positions: Array | None = None
    precisions: Array | None = None
    stats: dict[str, Array] = field(default_factory=dict)
    state: ChainState | Mapping[str, Array] | None = None
    summary: dict[str, float] = field(default_factory=dict)
    predictive: dict[str, Array] = field(default_factory=dict)
    ladder: dict[str, Array] = field(default_factory=dict)
    tuning: tuple[Measurements, ...] = ()

    @property
    def last_iteration(self) -> int:
        """Number of the block's last iteration, counted from 1 through all phases."""
        return self.first_iteration + self.n_iterations - 1

    @property
    def n_draws(self) -> int:
        """Number of draws of each chain in the block; 0 if its draws are not kept."""
        return 0 if self.section is None or self.positions is None else int(self.positions.shape[1])


class BatchProgress(Document):
    """The progress of a batch of chains, as its last commit record has it.

    iteration  number of the last finished iteration, through all phases
    draws, warmup_draws  numbers of draws of each chain
    blocks     number of blocks
    totals     sum of the blocks' summaries
    last       summary of the last block or segment
    """

    iteration: Whole = 0
    draws: Draws = 0
    warmup_draws: Draws = 0
    blocks: Whole = 0
    totals: Numbers = {}
    last: Numbers = {}

    def draws_of(self, section: Section | None) -> int:
        """Return the number of draws of each chain in a section."""
        return self.warmup_draws if section == "warmup" else self.draws


@dataclass(frozen=True)
class Updates:
    """Counts of accepted and diverged updates, summed over iterations and chains.

    accepted_sum  sum over iterations and chains of the share of accepted updates
    n_accepted    number of terms in accepted_sum
    divergences   number of updates with an energy that was not finite
    """

    accepted_sum: float = 0.0
    n_accepted: int = 0
    divergences: int = 0

    @staticmethod
    def from_summary(summary: Mapping[str, float]) -> Updates:
        """Return the counts in the summary of a block."""
        return Updates(
            summary.get("accepted_sum", 0.0),
            _whole(summary.get("n_accepted", 0)),
            _whole(summary.get("diverged", 0)),
        )

    def __add__(self, other: Updates) -> Updates:
        """Return the counts of both."""
        return Updates(
            self.accepted_sum + other.accepted_sum,
            self.n_accepted + other.n_accepted,
            self.divergences + other.divergences,
        )

    @property
    def acceptance(self) -> float | None:
        """Mean share of accepted updates; None if none were proposed."""
        return self.accepted_sum / self.n_accepted if self.n_accepted else None


@dataclass(frozen=True)
class RunUpdates:
    """Updates in iterations with kept posterior draws, and in all others, which are the warm-up."""

    kept: Updates = Updates()
    warmup: Updates = Updates()

    def __add__(self, other: RunUpdates) -> RunUpdates:
        """Return the counts of both."""
        return RunUpdates(self.kept + other.kept, self.warmup + other.warmup)


@dataclass(frozen=True)
class Problem:
    """A problem with a file of a store; batch and block are None for a file outside all blocks.

    is_chunk       the file is a chunk that a commit record names
    is_read_error  the system could not read the file, or the file was wrong only once: it may be whole
    """

    file: str
    what: str
    batch: int | None = None
    block: int | None = None
    draws: range | None = None
    is_chunk: bool = False
    is_read_error: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`.

    files_checked  number of files
    problems       in the order of the check
    repairs        a line for each step that a repair took, or would take
    """

    files_checked: int
    problems: tuple[Problem, ...]
    repairs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every file could be read and is as it was written."""
        return not self.problems

    @property
    def damage(self) -> tuple[Problem, ...]:
        """The problems that `repair` acts on: the content has changed."""
        return tuple(problem for problem in self.problems if not problem.is_read_error)

    @property
    def read_errors(self) -> tuple[Problem, ...]:
        """The problems that `repair` leaves alone, because the files may be whole."""
        return tuple(problem for problem in self.problems if problem.is_read_error)


class Segment(Document):
    """The blocks that a record stands for, which were single files before.

    first_block  number of the first block; the record itself has the number of the last
    last         digest of the last block, which the next block names as `previous`
    """

    first_block: Whole
    last: Digest


class Record(Document):
    """A commit record: a block, or a segment of blocks, exists if and only if its record does.

    store     digest of the store's root metadata, which ties the record to this store
    block     number of the block, or of the last block of the segment
    previous  digest of the block before, so a swapped or lost block is noticed
    chunks    chunk file -> SHA-256 of this segment's values in it, little-endian, C order; {} for a block
    state     always {} in this format
    tuning    as in Block; the key is absent if nothing is tuned
    payload   SHA-256 of the arrays that follow the record in its file
    segment   the blocks that were gathered; the key is absent in the record of a single block
    progress  after the block
    digest    of this record
    """

    store: Digest
    batch: Whole
    block: Whole
    previous: DigestOrNone
    first_iteration: Whole
    n_iterations: Whole
    section: Section | None
    first_draw: Draws
    n_draws: Draws
    chunks: dict[ChunkFile, Digest]
    state: Empty
    tuning: tuple[Measurements, ...] = ()
    payload: Digest
    segment: Segment | None = None
    progress: BatchProgress
    digest: OwnDigest = ""

    @property
    def first_block(self) -> int:
        """Number of the first block that the record stands for."""
        return self.block if self.segment is None else self.segment.first_block

    @property
    def last_digest(self) -> str:
        """Digest of the last block, which the next block names as `previous`."""
        return self.digest if self.segment is None else self.segment.last

    @property
    def updates(self) -> RunUpdates:
        """Acceptances and divergences of the block's updates."""
        updates = Updates.from_summary(self.progress.last)
        return RunUpdates(kept=updates) if self.section == "posterior" else RunUpdates(warmup=updates)

    def same_block(self, other: Record) -> bool:
        """Return True if both hold the same draws and state; their times may differ."""
        return self == other.model_copy(update={"progress": self.progress, "digest": self.digest})

    def to_bytes(self) -> bytes:
        """Return the record as a sealed JSON file; numbers that are not finite become null."""
        absent = {name for name in ("tuning", "segment") if not getattr(self, name)}
        return seal({**self.model_dump(mode="json", exclude={"digest", *absent}), SEAL: NO_SEAL})


def _whole(number: float) -> int:
    return int(number) if math.isfinite(number) else 0


def seal(document: dict[str, Any]) -> bytes:
    """Return the document as JSON, with NO_SEAL replaced by its digest."""
    raw = json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False).encode()
    placeholder = f'"{SEAL}": "{NO_SEAL}"'.encode()
    if raw.count(placeholder) != 1:
        raise ValueError(f"a document needs {placeholder.decode()} exactly once")
    digest = hashlib.sha256(raw).hexdigest()
    return raw.replace(placeholder, f'"{SEAL}": "{digest}"'.encode())


def seal_of(raw: bytes, path: Place) -> str:
    """Return the digest that a sealed file carries; StoreCorruptError unless it matches the content."""
    seals = _SEALED.findall(raw)
    if len(seals) != 1:
        raise StoreCorruptError(f"{path}: damaged: it has no checksum ({len(raw)} bytes)")
    digest: str = seals[0].decode()
    unsealed = raw.replace(b'"' + seals[0] + b'"', b'"' + NO_SEAL.encode() + b'"')
    if hashlib.sha256(unsealed).hexdigest() != digest:
        raise StoreCorruptError(f"{path}: damaged: its content does not match its checksum")
    return digest


def unsealed(model: type[Model], raw: bytes, path: Place, what: str) -> Model:
    """Return the typed record in a sealed file; StoreCorruptError if a bit of it has changed.

    what  the expected content in words, such as "a commit record"
    """
    seal_of(raw, path)
    return as_document(model, raw, path, what)


HEAD = "head.json"


def batch_folder(store: Place, batch: int) -> Place:
    """Return the folder of a batch's commits in the store at `store`."""
    return store / COMMITS / f"batch{batch:04d}"


def head_after(record: Record) -> Head:
    """Return the head of a batch that ends with a record."""
    return Head(store=record.store, batch=record.batch, blocks=record.block + 1, last=record.last_digest)


def no_blocks(store: str, batch: int) -> Head:
    """Return the head of a batch without blocks."""
    return Head(store=store, batch=batch, blocks=0, last="")


def head_bytes(head: Head) -> bytes:
    """Return the head of a batch as a sealed JSON file."""
    return seal({**head.model_dump(exclude={"seal"}), SEAL: NO_SEAL})


def check_head(head: Head, record: Record, path: Place) -> None:
    """Raise StoreCorruptError if a record, read from `path`, contradicts the head of its batch."""
    if record.block == head.blocks - 1 and record.last_digest != head.last:
        raise StoreCorruptError(f"{path}: is not the block that {HEAD} of batch {head.batch} names")
    if record.first_block == head.blocks and record.previous != head.last:
        raise StoreCorruptError(f"{path}: does not follow the block that {HEAD} of batch {head.batch} names")


def write_head(fs: Storage, folder: Place, head: Head) -> None:
    """Write the head of a batch into its folder, durably."""
    fs.write_atomic(folder / HEAD, head_bytes(head))
    fs.fsync_dir(folder)


def read_head(fs: Storage, folder: Place, store: str, batch: int) -> Head:
    """Read the head of a batch; StoreCorruptError if it is missing, damaged or of another batch."""
    path = folder / HEAD
    try:
        head = unsealed(HeadDocument, fs.read(path), path, "the head of a batch")
    except FileNotFoundError:
        raise StoreCorruptError(f"{path}: missing: the head of batch {batch}") from None
    if (head.store, head.batch) != (store, batch):
        raise StoreCorruptError(f"{path}: belongs to another store or batch")
    return head


class SealedLog(Generic[Model]):
    """Numbered records of one kind, each in a sealed file that is written once.

    folder  of the files; folders between it and `existing` are made when they are needed
    model   type of a record, which is `what` in words
    owner   a key of each record, such as "store", and the digest that it has in all of them
    number  the key with the number, which is also in the name of the file
    prefix, digits  of this name
    """

    def __init__(
        self,
        fs: Storage,
        folder: Place,
        existing: Place,
        model: type[Model],
        what: str,
        owner: tuple[str, str],
        *,
        number: str = "number",
        prefix: str = "",
        digits: int = 6,
    ) -> None:
        self._fs, self.folder, self._existing = fs, folder, existing
        self._model, self._what, self._owner, self._number = model, what, owner, number
        self._prefix, self._digits = prefix, digits
        self._name = re.compile(rf"{prefix}([0-9]{{{digits},9}})\.json")

    def file(self, number: int) -> Place:
        """Return the file of a record."""
        return self.folder / f"{self._prefix}{number:0{self._digits}d}.json"

    def numbers(self) -> list[int]:
        """Return the numbers of the records in order."""
        try:
            names = self._fs.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := self._name.fullmatch(name)))

    def read(self, number: int) -> Model:
        """Read a record; FileNotFoundError without one, StoreCorruptError if it is damaged or elsewhere."""
        place = self.file(number)
        document = unsealed(self._model, self._fs.read(place), place, self._what)
        if any(getattr(document, key) != value for key, value in self._place(number).items()):
            raise StoreCorruptError(
                f"{place}: belongs to another {self._owner[0]} or has another {self._number}"
            )
        return document

    def all(self) -> list[Model]:
        """Read all records in order."""
        return [self.read(number) for number in self.numbers()]

    def content(self, number: int, body: Mapping[str, Any]) -> bytes:
        """Return the content of the file of a record."""
        return seal({**self._place(number), **body, SEAL: NO_SEAL})

    def put(self, number: int, body: Mapping[str, Any]) -> bool:
        """Write a record unless it exists. Return True if it was written, and is durable."""
        self._make_folders()
        return self._fs.write_exclusive(self.file(number), self.content(number, body))

    def append(self, body: Mapping[str, Any]) -> None:
        """Add a record with the next number. Only the holder of the store's lock may do this."""
        self.put(max(self.numbers(), default=-1) + 1, body)

    def _make_folders(self) -> None:
        folders, folder = [], self.folder
        while folder != self._existing:
            folders.append(folder)
            folder = folder.parent
        for folder in reversed(folders):
            self._fs.mkdir(folder)
            self._fs.fsync_dir(folder.parent)

    def _place(self, number: int) -> dict[str, str | int]:
        key, digest = self._owner
        return {key: digest, self._number: number}


def set_aside(fs: Storage, store: Place, file: Place, name: str) -> None:
    """Move a damaged file of a store into its folder of discarded files, where a number precedes the name."""
    folder = store / COMMITS / DISCARDED
    fs.mkdir(folder)
    fs.rename_new(file, folder / f"{len(fs.listdir(folder)):04d}-{name}", below=store)
