"""The completion of work that a killed process left unfinished, by the holder of the store's lock."""

from __future__ import annotations

from contextlib import suppress

from rayfbnn.errors import StoreCorruptError, StoreReadError
from rayfbnn.store.lengthening import extension
from rayfbnn.store.lengthening.verdict_log import VerdictLog
from rayfbnn.store.opened import OpenStore


def finish(store: OpenStore) -> OpenStore:
    """Finish the work that a crash interrupted, and return the store as it is afterwards.

    Half-written files and gathered blocks are removed, arrays get the length of the last extension, and the
    head of each batch names its last block.
    """
    _sweep(store)
    store = finish_extension(store)
    batches = range(store.header.n_batches)
    seen = store.commits.look(batches)

    def finish_batch(batch: int) -> None:
        with suppress(StoreCorruptError, StoreReadError):  # whoever reads the batch gets the error
            store.commits.finish(batch, seen.get(batch))

    store.fs.each(finish_batch, batches)
    return store


def finish_extension(store: OpenStore) -> OpenStore:
    """Give all arrays the length of the last extension, and return the store as it is afterwards."""
    store = OpenStore.from_files(store.fs, store.path, store)
    if not store.is_pending:
        return store
    extension.carry_through(store.fs, store.path, store.root)
    return OpenStore.from_files(store.fs, store.path, store)


def _sweep(store: OpenStore) -> None:
    folders = [store.path, *(store.path / path for path in store.hierarchy.plans)]
    folders += (store.commits.files.folder(batch) for batch in range(store.header.n_batches))
    for folder in folders:
        store.fs.sweep(folder, below=store.path)
    if store.tuning.rounds and store.fs.exists(store.tuning.folder):
        store.fs.sweep(store.tuning.folder, below=store.path)
        # The process that wrote the last record may have died before it synced the folder.
        store.fs.fsync_dir(store.tuning.folder)
    verdicts = VerdictLog(store.fs, store.path, store.root.identity)
    if store.fs.exists(verdicts.folder):
        store.fs.sweep(verdicts.folder, below=store.path)
