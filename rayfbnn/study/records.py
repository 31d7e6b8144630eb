"""The records of a study: sealed JSON files that are written once and never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.checking.documents import as_document
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unseal
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.study.documents import NumberedDocument

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
                raise StoreCorruptError(f"{place}: belongs to another study, or has another number")
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
