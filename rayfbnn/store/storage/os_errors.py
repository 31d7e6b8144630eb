"""Errors of the operating system as StoreErrors, which name the file and say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from rayfbnn.errors import (
    NO_SPACE,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreReadError,
)
from rayfbnn.store.storage.places import Place

NO_FOLDER = {errno.ENOTDIR, errno.ELOOP}  # errors of opening a link as a folder without following it

# A file is missing, too, if a part of its path is not a folder, or if its name is too long.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
_NO_FILE = {errno.ELOOP, errno.ENXIO, errno.EISDIR}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR}
_READING = {"read", "list", "look at"}


@contextmanager
def translated(action: str, place: Place) -> Iterator[None]:
    """Raise an OSError as a StoreError that says which action on `place` failed.

    If the action is "read" or "list", a missing file or folder is a FileNotFoundError, because only the
    caller knows the meaning.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in _MISSING and action in ("read", "list"):
            raise FileNotFoundError(*exc.args) from exc
        raise store_error(action, place, exc) from exc


def store_error(action: str, place: Place, exc: OSError) -> StoreError:
    """Return the StoreError for an error of an action on a file."""
    reason = exc.strerror or str(exc)
    if isinstance(exc, BlockingIOError):
        return StoreBusyError(f"{place}: another process holds this lock")
    if action in ("read", "lock") and exc.errno in _NO_FILE:
        return StoreCorruptError(
            f"{place}: damaged: it is not a file but a link, a pipe, a device or a folder"
        )
    if action in ("make", "rename") and exc.errno in _TAKEN:
        return StoreExistsError(f"{place}: already exists; choose another path, or remove it")
    if action in ("remove", "rename") and exc.errno in NO_FOLDER:
        return StoreCorruptError(
            f"{place}: nothing was changed, because a part of its path is a link or a file"
        )
    if exc.errno in NO_SPACE:
        return StoreFullError(f"{place}: no space to write it ({reason}); all committed draws are kept")
    error = StoreReadError if action in _READING else StoreError
    return error(f"{place}: cannot {action} it: {reason}")
