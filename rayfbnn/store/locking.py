"""The lock of the process that runs a store, the record that names it, and changes of the run's length.

The record of a new length comes first, then the arrays get that length.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rayfbnn.errors import StoreBusyError, StoreCorruptError, StoreError, StoreReadError
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import COMMITS
from rayfbnn.store.creation import Length, check_size
from rayfbnn.store.documents import HolderDocument
from rayfbnn.store.hierarchy import METADATA, array_metadata, planned_chunks
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import NO_SEAL, SEAL, seal, unsealed
from rayfbnn.store.root import HOLDER, LOCK, extension_log, matches, read_sealed
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
    return unsealed(HolderDocument, raw, holder, "the process that runs a store")


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


def finish(store: OpenStore) -> None:
    """Finish the work that a crash interrupted, under the store's lock.

    Half-written files and gathered blocks are removed, arrays get the length of the last extension, and the
    head of each batch names its last block.
    """
    _sweep(store)
    _finish_extension(store)
    batches = range(store.header.n_batches)
    seen = store.commits.look(batches)

    def finish_batch(batch: int) -> None:
        with suppress(StoreCorruptError, StoreReadError):  # whoever reads the batch gets the error
            store.commits.finish(batch, seen.get(batch))

    store.fs.each(finish_batch, batches)


def extend(store: OpenStore, spec: RunSpec, n_draws: int) -> None:
    """Change the length of a run, under the store's lock.

    ConfigError if a run of this length does not fit into memory or onto the disk. The new length is published
    first, and any process may then apply it.
    """
    root, n_blocks = store.root, max(spec.total_iterations, n_draws)
    longer = replace(root.header, n_draws=n_draws, n_blocks=n_blocks)
    length = Length.from_phase(spec, len(spec.phase) - 1)
    check_size(longer, spec, length, free_bytes=store.fs.free_bytes(store.path), before=root.header)
    body = {"n_draws": n_draws, "n_blocks": n_blocks, "spec": spec.to_dict()}
    if not extension_log(store.fs, store.path, root.identity).put(root.n_extensions, body):
        raise StoreError(f"{store.path}: another process extended the run at the same time; try again")
    _finish_extension(store)


def _finish_extension(store: OpenStore) -> None:
    """Give every array the length of the last extension; this can be repeated after a crash.

    Coordinates come first if the run becomes longer, and last if it becomes shorter. Nobody notices a
    coordinate that is longer than its array, but the missing numbers of a shorter one would be read as 0.
    """
    store.reload()
    if not store.is_pending:
        return
    _check_before(store)
    steps = [_set_coordinates, _set_metadata]
    for step in steps if store.header.n_draws >= store.root.before.n_draws else reversed(steps):
        step(store)
    store.reload()


def _check_before(store: OpenStore) -> None:
    """Raise StoreCorruptError if arrays have a length that no record of an extension gives them."""
    root = store.root
    for plan in store.hierarchy.plans.values():
        of_before = {"draw": root.before.n_draws}
        shape = tuple(of_before.get(dim, n) for dim, n in zip(plan.dims, plan.shape, strict=True))
        metadata = store.path / plan.path / METADATA
        raw = read_sealed(store.fs, metadata)
        if not matches(raw, plan) and not matches(raw, replace(plan, shape=shape)):
            missing = extension_log(store.fs, store.path, root.identity).file(root.n_extensions)
            raise StoreCorruptError(f"{missing}: missing: {metadata} has the length that it gave")


def _set_coordinates(store: OpenStore) -> None:
    fs, path, n_before = store.fs, store.path, store.root.before.n_draws
    for plan in store.hierarchy.plans.values():
        if plan.is_draw_coordinate and plan.shape[0] == store.header.n_draws:
            for file, content in planned_chunks(plan, first=min(n_before, plan.shape[0] - 1)):
                fs.write_atomic(path / file, content)
            kept = set(plan.chunk_files(range(plan.shape[0])))
            for file in plan.chunk_files(range(n_before)):
                if file not in kept:
                    fs.unlink(path / file, below=path)
            fs.fsync_dir(path / plan.path)


def _set_metadata(store: OpenStore) -> None:
    for plan in store.hierarchy.plans.values():
        metadata = store.path / plan.path / METADATA
        if not matches(read_sealed(store.fs, metadata), plan):
            store.fs.write_atomic(metadata, array_metadata(plan))
            store.fs.fsync_dir(metadata.parent)


def _sweep(store: OpenStore) -> None:
    folders = [store.path, *(store.path / path for path in store.hierarchy.plans)]
    folders += (store.commits.files.folder(batch) for batch in range(store.header.n_batches))
    for folder in folders:
        store.fs.sweep(folder, below=store.path)
    if store.tuning.rounds and store.fs.exists(store.tuning.log.folder):
        store.fs.sweep(store.tuning.log.folder, below=store.path)
        # The process that wrote the last record may have died before it synced the folder.
        store.fs.fsync_dir(store.tuning.log.folder)
    if store.fs.exists(store.verdicts.folder):
        store.fs.sweep(store.verdicts.folder, below=store.path)
