"""Temporary stores of estimators, which pickles contain."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from rayfbnn.output.whole_file import output_errors

_TEMPORARY = "the folder for temporary files (TMPDIR)"


class TemporaryStore:
    """A place for a store that is removed together with this object, or when Python ends.

    A pickle contains all files of the store, because a path would not be valid elsewhere. An unpickled object
    has its own place.

    Attributes
    ----------
    path
        Path for the store, in a folder that contains nothing else.
    """

    def __init__(self) -> None:
        self._make_folder()

    def _make_folder(self) -> None:
        with output_errors(_TEMPORARY):
            folder = tempfile.mkdtemp(prefix="rayfbnn-")
        self.path = Path(folder) / "run.zarr"
        weakref.finalize(self, _remove, folder, os.lstat(folder), os.getpid())

    def __getstate__(self) -> bytes:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as files:
            files.add(self.path, arcname=self.path.name)
        return archive.getvalue()

    def __setstate__(self, archive: bytes) -> None:
        self._make_folder()
        with output_errors(self.path), tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(self.path.parent, filter="data")


def _remove(folder: str, made: os.stat_result, process: int) -> None:
    """Remove the folder that this object created, but no other folder that may have its name by now.

    The folder stays if this is not the process that created it, for example if it is a fork.
    """
    if os.getpid() != process:
        return
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.path.samestat(os.fstat(descriptor), made):
                _empty(descriptor)
                os.rmdir(folder)
        finally:
            os.close(descriptor)


def _empty(folder: int) -> None:
    """Remove everything in an open folder; links are removed, not followed."""
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:  # it is a folder
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
