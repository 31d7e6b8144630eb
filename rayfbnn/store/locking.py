"""The lock of the process that runs a store, and the record that names this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rayfbnn.errors import StoreBusyError, StoreError
from rayfbnn.store.catalogue import COMMITS
from rayfbnn.store.checking.documents import HolderDocument, as_document
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unseal
from rayfbnn.store.root import HOLDER, LOCK
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage


@contextmanager
def locked(fs: Storage, path: Place) -> Iterator[None]:
    """Hold the lock of a store and record the holder; StoreBusyError names another holder."""
    holder = path / COMMITS / HOLDER
    with ExitStack() as stack:
        try:
            stack.enter_context(fs.lock(lock_of(path)))
        except StoreBusyError as exc:
            raise StoreBusyError(f"{path}: is in use by {_in_words(fs, path)}; nothing was changed") from exc
        fs.write_atomic(holder, seal({"host": socket.gethostname(), "pid": os.getpid(), SEAL: NO_SEAL}))
        stack.callback(fs.unlink, holder, below=path)
        yield


def lock_of(path: Place) -> Place:
    """Return the place of the lock of the store at `path`."""
    return path / COMMITS / LOCK


def read_holder(fs: Storage, path: Place) -> HolderDocument:
    """Return the record of the process that runs the store at `path`, or that was killed while it did.

    FileNotFoundError without a record; StoreCorruptError if it is damaged.
    """
    holder = path / COMMITS / HOLDER
    raw = fs.read(holder)
    if not raw:  # the copy of a store from a bucket, where an empty object counts as none
        raise FileNotFoundError(holder)
    document = unseal(raw, holder)
    return as_document(HolderDocument, document, holder, "the process that runs a store")


def has_lock_open(path: Place, pid: int) -> bool | None:
    """Return True if a process of this machine has the lock file of a store open, as a driver does.

    None if the system does not tell: without /proc, for a process of another user, and in a bucket.
    """
    if not isinstance(path, Path):
        return None
    try:
        lock = os.stat(path / COMMITS / LOCK)
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    return any(_is_file(f"/proc/{pid}/fd/{name}", lock) for name in names)


def _is_file(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:  # closed in the meantime
        return False


def _in_words(fs: Storage, path: Place) -> str:
    try:
        holder = read_holder(fs, path)
    except (FileNotFoundError, StoreError):
        return "another process"
    return f"process {holder.pid} on {holder.host}"
