"""The records of a run that is extended until its verdict is ok: each verdict, and the next length.

The records are for people. Draws do not depend on them: a run that has the final length from the start gives
the same draws.
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
    """The verdict after one round, and the decision.

    iterations       planned length of the last phase when the round ended
    draws            committed draws of each chain when the round ended
    decisive         the verdict that decides, "predictions" or "all"
    predictions, hyperparameters  the grades; "no draws" before the first draw
    ok               whether the deciding verdict is ok
    seconds          duration of the round
    next_iterations  new length of the last phase; None if the run was not extended
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
        """Keep the storage, the store's folder and its identity."""
        self._fs, self._root, self._store = fs, root, store

    @property
    def folder(self) -> Place:
        """Folder of the records, which exists once there is a record."""
        return self._root / COMMITS / VERDICTS

    def files(self) -> list[Place]:
        """Return the files of the records in order."""
        if not self._fs.exists(self.folder):
            return []
        return [self.folder / name for name in self._fs.listdir(self.folder) if _RECORD.fullmatch(name)]

    def read(self, file: Place) -> RoundVerdict:
        """Read one record; StoreCorruptError if it is damaged or in the wrong place."""
        raw = unseal(self._fs.read(file), file)
        document = as_document(VerdictDocument, raw, file, "a record of a verdict").model_dump()
        if (document.pop("store"), document.pop("number")) != (self._store, int(file.stem)):
            raise StoreCorruptError(f"{file}: belongs to another store or has another number")
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
