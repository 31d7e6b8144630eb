"""The lock of the process that runs a store, and the record that says which process it is."""

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
    """Hold the lock of a store and say so beside it; StoreBusyError names the process that holds it."""
    holder = path / COMMITS / HOLDER
    with ExitStack() as stack:
        try:
            stack.enter_context(fs.lock(path / COMMITS / LOCK))
        except StoreBusyError as exc:
            raise StoreBusyError(f"{path}: is in use by {_in_words(fs, path)}; nothing was changed") from exc
        fs.write_atomic(holder, seal({"host": socket.gethostname(), "pid": os.getpid(), SEAL: NO_SEAL}))
        stack.callback(fs.unlink, holder, below=path)
        yield


def read_holder(fs: Storage, path: Place) -> HolderDocument:
    """Return the record of the process that runs the store at `path`, or ran it when it was killed.

    FileNotFoundError if no process does; StoreCorruptError if the record is damaged.
    """
    holder = path / COMMITS / HOLDER
    document = unseal(fs.read(holder), holder)
    return as_document(HolderDocument, document, holder, "the process that runs a store")


def has_lock_open(path: Place, pid: int) -> bool | None:
    """Return whether a process of this machine has the lock file of a store open, as its driver has.

    None where the system does not say: without /proc, for the process of another user, and for buckets.
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
    except OSError:  # it was closed meanwhile
        return False


def _in_words(fs: Storage, path: Place) -> str:
    try:
        holder = read_holder(fs, path)
    except (FileNotFoundError, StoreError):
        return "another process"
    return f"process {holder.pid} on {holder.host}"
