"""The records of a run that went on until its verdict was ok: each verdict, and how long the run was made.

A record is for people to read. Draws do not depend on it: they are those of a run that had the final length
from the start.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import COMMITS, DISCARDED, VERDICTS
from rayfbnn.store.checking.documents import VerdictDocument, as_document
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unseal
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

_RECORD = re.compile(r"[0-9]{6,9}\.json")


@dataclass(frozen=True)
class RoundVerdict:
    """The verdict after one round, and what was decided.

    iterations       length of the last phase that was planned when the round ended
    draws            of each chain that were committed then
    decisive         which verdict was asked for, "predictions" or "all"
    predictions, hyperparameters  the grades; "no draws" before there are any
    ok               whether the verdict that was asked for is ok
    seconds          that the round took
    next_iterations  length that the last phase was given then; None if the run was left as it was
    """

    iterations: int
    draws: int
    decisive: str
    predictions: str
    hyperparameters: str
    ok: bool
    seconds: float
    next_iterations: int | None


class VerdictLog:
    """The records `commits/verdicts/<number>.json` of the store with the identity `store` (Root.identity)."""

    def __init__(self, fs: Storage, root: Place, store: str) -> None:
        """Take the file system, the store's folder and its identity."""
        self._fs, self._root, self._store = fs, root, store

    @property
    def folder(self) -> Place:
        """Folder of the records, which is there once there is a record."""
        return self._root / COMMITS / VERDICTS

    def files(self) -> list[Place]:
        """List the files of the records in order."""
        if not self._fs.exists(self.folder):
            return []
        return [self.folder / name for name in self._fs.listdir(self.folder) if _RECORD.fullmatch(name)]

    def read(self, file: Place) -> RoundVerdict:
        """Read one record; StoreCorruptError if it is damaged or in the wrong place."""
        raw = unseal(self._fs.read(file), file)
        document = as_document(VerdictDocument, raw, file, "a record of a verdict").model_dump()
        if (document.pop("store"), document.pop("number")) != (self._store, int(file.stem)):
            raise StoreCorruptError(f"{file}: belongs to another store, or to another place")
        del document["seal"]
        return RoundVerdict(**document)

    def all(self) -> list[RoundVerdict]:
        """Read all records in order."""
        return [self.read(file) for file in self.files()]

    def append(self, verdict: RoundVerdict) -> None:
        """Add a record, durably. Only the holder of the store's lock may do this."""
        self._fs.mkdir(self.folder)
        self._fs.fsync_dir(self.folder.parent)
        number = max((int(file.stem) for file in self.files()), default=-1) + 1
        document = {"store": self._store, "number": number, **asdict(verdict), SEAL: NO_SEAL}
        self._fs.write_exclusive(self.folder / f"{number:06d}.json", seal(document))

    def discard(self, file: Place) -> None:
        """Move a damaged record aside."""
        aside = self._root / COMMITS / DISCARDED
        self._fs.mkdir(aside)
        taken = len(self._fs.listdir(aside))
        kept = aside / f"{taken:04d}-verdict-{file.name}"
        self._fs.rename_new(file, kept, below=self._root)
