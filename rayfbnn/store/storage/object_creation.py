"""The creation of a store in a bucket, where its objects have their final keys from the start.

The root metadata is put last; without it the address is not a store. Until then a marker tells the objects
from those of others. A creation that fails removes nothing, because another process may have taken over
its objects. The next creation replaces objects that differ from its own, and removes those it does not write.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from rayfbnn.errors import StoreError, StoreForeignError
from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed
from rayfbnn.store.storage.places import ObjectPath, Place
from rayfbnn.store.storage.protocol import IsOurs, Storage

CREATING = ".creating"  # marks a store that is being created
_PROBE = re.compile(rf"{re.escape(CREATING)}\.[0-9a-f]{{32}}", re.ASCII)
_UNFIT = "{}: this object store ignores {} of a put, and draws could be lost; use another one"


class ObjectCreation:
    """The objects of a store that is being created. Methods may raise BucketError.

    root     place and content of the root metadata, once they are known
    written  keys of the objects that this creation has put, or has found as it would have put them
    """

    def __init__(
        self, storage: Storage, bucket: Bucket, place: ObjectPath, check_lease: Callable[[], None]
    ) -> None:
        """Keep the bucket, the place of the store, and the check that this process may still change it."""
        self._storage, self._bucket, self._place = storage, bucket, place
        self._check_lease = check_lease
        self.root: tuple[Place, bytes] | None = None
        self.written: set[str] = set()

    def begin(self, is_ours: IsOurs) -> None:
        """Mark the store as unfinished.

        StoreForeignError, with nothing changed, if there are objects that a creation does not write;
        StoreError if the server does not honour conditions.
        """
        below = len(self._place.key) + 1
        for key in self._bucket.keys(self._place.key):
            name = key[below:]
            if not (key in self.written or name == CREATING or is_ours(name) or _PROBE.fullmatch(name)):
                raise StoreForeignError(
                    f"{self._place}: contains {name}, which is not part of an unfinished store; nothing was"
                    " changed; move it elsewhere, or remove it"
                )
        self._storage.write_exclusive(self._place / CREATING, b"unfinished")
        self._probe(self._place / f"{CREATING}.{uuid.uuid4().hex}")

    def clear(self) -> None:
        """Remove the objects of an earlier creation that this one has not written.

        Where this creation has written other objects, a process that takes over may write the same keys. It
        writes none elsewhere, so those objects are deleted.
        """
        folders = {key.rpartition("/")[0] for key in self.written} - {self._place.key}
        for key in self._bucket.keys(self._place.key):
            if key not in self.written:
                is_shared = key.rpartition("/")[0] in folders
                remove = self._storage.unlink if is_shared else self._storage.drop
                remove(replace(self._place, key=key), below=self._place)

    def _probe(self, place: ObjectPath) -> None:
        """Raise StoreError unless the server honours the conditions of both conditional puts.

        Some servers ignored their headers until recently, and would let one record replace another.
        """
        try:
            old = self._bucket.put(place.key, uuid.uuid4().hex.encode())
            self._bucket.put(place.key, uuid.uuid4().hex.encode())
            with suppress(Changed):
                self._bucket.put_new(place.key, b"new")
                raise self._unfit("If-None-Match: *")
            with suppress(Changed):
                self._bucket.put_unchanged(place.key, b"changed", old)
                raise self._unfit("If-Match")
        finally:
            with suppress(BucketError):  # nobody else uses this name, so this needs no lease
                self._bucket.delete(place.key)

    def _unfit(self, condition: str) -> StoreError:
        self._check_lease()  # the next holder may have removed the object
        return StoreError(_UNFIT.format(self._place, condition))
