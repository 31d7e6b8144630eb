"""Where the files of a store are: folders of a POSIX file system, or buckets of an object store."""

from __future__ import annotations

from rayfbnn.store.storage.places import ObjectPath, Place
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import Storage


def storage_of(place: Place) -> Storage:
    """Return the storage of a place; ConfigError if a bucket needs obstore and it is not installed."""
    if not isinstance(place, ObjectPath):
        return FileSystem()
    from rayfbnn.store.storage.objects import ObjectStorage

    return ObjectStorage.from_place(place)
