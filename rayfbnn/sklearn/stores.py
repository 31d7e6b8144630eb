"""Temporary stores of estimators, which pickles contain."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path

from rayfbnn.errors import StoreCorruptError
from rayfbnn.output.whole_file import output_errors
from rayfbnn.sklearn.removal import identity, remove, watch
from rayfbnn.store.store import Store

_TEMPORARY = "the folder for temporary files (TMPDIR)"


class TemporaryStore:
    """A place for a store that is removed together with this object, or when its process ends in any way.

    A pickle contains all files of the store, because a path would not be valid elsewhere. An unpickled object
    keeps them in memory, and writes them to its own place when its path is asked for.
    """

    def __init__(self) -> None:
        self._archive: bytes | None = None
        self._path: Path | None = None
        self._make_folder()

    @property
    def path(self) -> Path:
        """Path of the store, in a folder that contains nothing else."""
        return self._path or self._unpack()

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield the path of a store to be read. A store that is in memory is on the disk only meanwhile."""
        if self._path is not None:
            yield self._path
            return
        copy = TemporaryStore.__new__(TemporaryStore)
        copy.__setstate__(self.__getstate__())
        try:
            yield copy.path
        finally:
            copy._remove()

    def check(self) -> None:
        """Raise a StoreError if something has removed the store, or a part that every reader needs."""
        if self._path is not None:
            Store.open(self._path)

    def _make_folder(self) -> Path:
        with output_errors(_TEMPORARY):
            folder = tempfile.mkdtemp(prefix="rayfbnn-")
        # Unlike weakref.finalize, this works at the end of a process of multiprocessing too. A fork, and
        # what removes the object there, leaves the folder to its parent.
        self._remove = Finalize(self, remove, (folder, identity(os.lstat(folder))), exitpriority=-100)
        watch(folder)
        self._path = Path(folder) / "run.zarr"
        return self._path

    def _unpack(self) -> Path:
        assert self._archive is not None
        path = self._make_folder()
        with output_errors(path), tarfile.open(fileobj=io.BytesIO(self._archive)) as files:
            files.extractall(path.parent, filter="data")
        self._archive = None
        return path

    def __getstate__(self) -> bytes:
        if self._archive is not None:
            return self._archive
        self.check()
        archive = io.BytesIO()
        try:
            with tarfile.open(fileobj=archive, mode="w") as files:
                files.add(self.path, arcname=self.path.name)
        except FileNotFoundError as exc:  # something is removing it
            raise StoreCorruptError(f"{exc.filename}: missing") from exc
        return archive.getvalue()

    def __setstate__(self, archive: bytes) -> None:
        self._archive, self._path = archive, None
