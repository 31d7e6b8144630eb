"""The lease of a store in a bucket, which keeps a second driver from repeating the work of the first.

No draw depends on it. The holder replaces the object of the lease three times per lease time. Another process
takes the lease over if the object does not change for the lease time, by its own clock.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from rayfbnn.errors import StoreBusyError
from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, Tag

SECONDS = 60.0
_RENEWALS = 3  # per lease time
_LOOKS = 30  # at the object of another holder, per lease time


class Lease:
    """The lease on one key: call `acquire`, check `is_lost` now and then, and call `release`."""

    def __init__(self, bucket: Bucket, key: str, *, seconds: float = SECONDS) -> None:
        """Keep the bucket, the key of the object, and the lease time in seconds."""
        self._bucket, self._key, self._seconds = bucket, key, seconds
        self._holder = {"holder": uuid.uuid4().hex, "machine": _machine(), "pid": os.getpid()}
        self._renewals = 0
        self._tag: Tag = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self.is_lost = False

    def acquire(self) -> None:
        """Become the holder; StoreBusyError if another process renews its lease in the meantime."""
        while True:
            try:
                self._tag = self._bucket.put_new(self._key, self._content())
                break
            except Changed:
                if self._take_over():
                    break
            except BucketError:
                if not self._is_ours(b""):
                    raise
                break
        self._thread.start()

    def release(self) -> None:
        """Give the lease up, so another process can have it at once."""
        self._ended.set()
        self._thread.join()
        if not self.is_lost:
            with suppress(BucketError):  # it runs out anyway
                self._bucket.delete(self._key)

    def _content(self) -> bytes:
        return json.dumps({**self._holder, "renewals": self._renewals}).encode()

    def _take_over(self) -> bool:
        """Return True once another's lease has run out and is ours, False if it no longer exists."""
        with suppress(FileNotFoundError, Changed):
            content, tag = self._bucket.get(self._key)
            if content == self._content():  # the answer to our own put was lost
                self._tag = tag
                return True
            end = time.monotonic() + self._seconds
            while not _is_dead(content) and time.monotonic() < end:
                time.sleep(self._seconds / _LOOKS)
                if self._bucket.get(self._key)[0] != content:
                    raise StoreBusyError(f"{self._key}: another process holds this lease")
            self._tag = self._bucket.put_unchanged(self._key, self._content(), tag)
            return True
        return False

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            before = self._content()
            self._renewals += 1
            try:
                self._tag = self._bucket.put_unchanged(self._key, self._content(), self._tag)
            except (Changed, BucketError, FileNotFoundError):
                if not self._is_ours(before):
                    self.is_lost = True
                    return

    def _is_ours(self, before: bytes) -> bool:
        """Return True if this holder has put the object; keep its tag for the next renewal.

        before  an earlier content that this holder may have put; b"" if there is none
        """
        try:
            content, tag = self._bucket.get(self._key)
        except FileNotFoundError:
            return False
        except BucketError:  # nothing is known until the next renewal
            return bool(before)
        if content not in (before, self._content()):
            return False
        self._tag = tag
        return True


class LeasesSeen:
    """The leases of other processes as they were last seen, by which one look tells whether one is held."""

    def __init__(self, bucket: Bucket, *, seconds: float = SECONDS) -> None:
        """Keep the bucket, and the lease time in seconds."""
        self._bucket, self._seconds = bucket, seconds
        self._seen: dict[str, tuple[bytes, float]] = {}  # content, and when it was first seen, by key

    def is_held(self, key: str) -> bool:
        """Return True unless there is no lease, its holder has died, or it has not changed for its time.

        This takes one request. A lease that is seen for the first time counts as held.
        """
        try:
            content, _ = self._bucket.get(key)
        except FileNotFoundError:
            self._seen.pop(key, None)
            return False
        now = time.monotonic()
        before, since = self._seen.get(key, (content, now))
        if before != content:
            since = now
        self._seen[key] = content, since
        return not _is_dead(content) and now - since < self._seconds


def _machine() -> str:
    """Return the host, boot and namespace, because processes in different ones may have the same number."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _is_dead(content: bytes) -> bool:
    """Return True if the holder was a process of this machine and has ended, so waiting is pointless."""
    try:
        holder = json.loads(content)
        if holder["machine"] != _machine() or len(holder["machine"].split()) < 3:
            return False
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, AttributeError, OSError, OverflowError):
        return False
    return False
