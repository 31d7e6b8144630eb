"""The lease of a store in a bucket, which keeps a second driver from repeating the work of the first.

No draw depends on it. The holder replaces the object of the lease three times per lease time. Another process
takes the lease over if the object does not change for the lease time, by its own clock.

A holder may be suspended at any moment, together with the thread that renews its lease. It therefore asks
`is_held` before it changes anything, and trusts only a renewal of the last moments or one that it makes then.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayfbnn.errors import StoreBusyError
from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, Tag

SECONDS = 60.0
_RENEWALS = 3  # per lease time
_LOOKS = 30  # at the object of another holder, per lease time
_FRESH = 1 / 12  # part of the lease time; a renewal proves so long that the lease is held
_ATTEMPTS = 3  # to renew a lease while renewals are not answered


def running_time() -> float:
    """Return seconds by a clock that also counts while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """The lease on one key: call `acquire`, ask `is_held` before each change, and call `release`.

    is_lost  whether another process was seen to have taken the lease over
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        *,
        seconds: float = SECONDS,
        clock: Callable[[], float] = running_time,
    ) -> None:
        """Keep the bucket, the key of the object, the lease time in seconds, and a clock in seconds."""
        self._bucket, self._key, self._seconds, self._clock = bucket, key, seconds, clock
        self._holder: dict[str, Any] = {"holder": uuid.uuid4().hex, "machine": _machine(), "pid": os.getpid()}
        self._renewals = 0
        self._renewed = 0.0  # time just before the last renewal that was answered
        self._tag: Tag = {}
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self.is_lost = False

    def acquire(self) -> None:
        """Become the holder; StoreBusyError if another process renews its lease in the meantime."""
        while True:
            self._renewed = self._clock()
            try:
                self._tag = self._bucket.put_new(self._key, self._content())
                break
            except Changed:
                if self._take_over():
                    break
            except BucketError:
                if not self._is_ours():
                    raise
                break
        self._thread.start()

    def is_held(self) -> bool:
        """Return True if no other process can have the lease now, nor for most of the lease time."""
        with self._turn:
            if not self.is_lost and self._clock() - self._renewed > self._seconds * _FRESH:
                self.is_lost = not self._renew_now()
        return not self.is_lost

    def release(self) -> None:
        """Give the lease up, so another process can have it at once; the lease of another one stays."""
        self._ended.set()
        self._thread.join()
        with suppress(BucketError):  # it runs out anyway
            while not self.is_lost:
                try:
                    self._bucket.remove(self._key, self._tag)
                    return
                except Changed:
                    self.is_lost = not self._is_ours()

    def _content(self) -> bytes:
        return json.dumps({**self._holder, "renewals": self._renewals}).encode()

    def _take_over(self) -> bool:
        """Return True once another's lease has run out and is ours, False if it no longer exists."""
        with suppress(FileNotFoundError, Changed):
            content, tag = self._bucket.get(self._key)
            if self._is_own(content):  # the answer to our own put was lost
                self._tag = tag
                return True
            end = time.monotonic() + self._seconds
            while not _is_dead(content) and time.monotonic() < end:
                time.sleep(self._seconds / _LOOKS)
                if self._bucket.get(self._key)[0] != content:
                    raise StoreBusyError(f"{self._key}: another process holds this lease")
            self._renewed = self._clock()
            self._tag = self._bucket.put_unchanged(self._key, self._content(), tag)
            return True
        return False

    def _renew(self) -> None:
        while not self.is_lost and not self._ended.wait(self._seconds / _RENEWALS):
            with self._turn, suppress(BucketError):  # nothing is known until the next renewal
                self.is_lost = not self._renew_now()

    def _renew_now(self) -> bool:
        """Replace the object by one with the next number; return False if it is another's, or gone."""
        failure = BucketError("it cannot be renewed")
        for _ in range(_ATTEMPTS):
            start = self._clock()
            self._renewals += 1
            try:
                self._tag = self._bucket.put_unchanged(self._key, self._content(), self._tag)
                self._renewed = start
                return True
            except (Changed, BucketError) as exc:
                if not self._is_ours():
                    return False
                failure = exc if isinstance(exc, BucketError) else failure
        raise failure

    def _is_ours(self) -> bool:
        """Return True if this holder has put the object; keep its tag for the next renewal."""
        try:
            content, tag = self._bucket.get(self._key)
        except FileNotFoundError:
            return False
        if not self._is_own(content):
            return False
        self._tag = tag
        return True

    def _is_own(self, content: bytes) -> bool:
        return self._holder["holder"].encode() in content


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
