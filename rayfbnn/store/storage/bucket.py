"""The calls to an object store through obstore, one for each method, so that tests can fail any of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rayfbnn.errors import ConfigError
from rayfbnn.store.storage.places import ObjectPath

Tag = dict[str, str | None]  # names the version of an object, for a put that replaces no other version

_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_SECRETS = re.compile(r"\?\S+|(?<=://)[^/\s]*@")  # the options and the user of a URL may hold credentials


class Changed(Exception):
    """An object that was to be new is there already, or the one that was to be replaced has changed."""


class TooLarge(Exception):
    """An object has more bytes than were to be read."""


class BucketError(Exception):
    """An object store failed, or gave no answer: a put may have been done all the same.

    The message says why in one line, without anything that may be a credential.
    """


class Bucket:
    """The objects of a bucket by their keys. Every method may raise BucketError."""

    def __init__(self, objects: Any) -> None:
        """Take a store of obstore, such as S3Store or MemoryStore."""
        self._objects = objects

    @staticmethod
    def from_place(place: ObjectPath) -> Bucket:
        """Return the bucket of a place; credentials and region come from the environment or the machine."""
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError as exc:
            raise ConfigError(f'{place}: needs obstore; pip install "rayfbnn[objects]"') from exc
        homes: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        with _translated():
            return Bucket(homes[place.scheme](place.bucket, retry_config=_RETRIES))

    def get(self, key: str, at_most: int = sys.maxsize) -> tuple[bytes, Tag]:
        """Return the content of an object and its tag; FileNotFoundError if there is none.

        TooLarge, before anything is read, if it has more than `at_most` bytes.
        """
        with _translated():
            result = self._objects.get(key)
            if result.meta["size"] > at_most:
                raise TooLarge(f"{result.meta['size']} bytes, where at most {at_most} are expected")
            return bytes(result.bytes()), _tag(result.meta)

    def get_start(self, key: str, n_bytes: int) -> bytes:
        """Return the first bytes of an object, which has some; FileNotFoundError if there is none."""
        with _translated():
            return bytes(self._objects.get_range(key, start=0, end=n_bytes))

    def put(self, key: str, data: bytes) -> Tag:
        """Put an object, whatever is there."""
        with _translated():
            return _tag(self._objects.put(key, data))

    def put_new(self, key: str, data: bytes) -> Tag:
        """Put an object where there is none, else Changed."""
        with _translated():
            return _tag(self._objects.put(key, data, mode="create", use_multipart=False))

    def put_unchanged(self, key: str, data: bytes, tag: Tag) -> Tag:
        """Replace the object that has this tag; Changed if another is there, or none."""
        with _translated():
            return _tag(self._objects.put(key, data, mode=tag, use_multipart=False))

    def delete(self, key: str) -> None:
        """Remove an object; nothing if it is gone."""
        with _translated():
            try:
                self._objects.delete(key)
            except FileNotFoundError:
                pass

    def exists(self, key: str) -> bool:
        """Return True if there is an object with this key."""
        with _translated():
            try:
                self._objects.head(key)
            except FileNotFoundError:
                return False
            return True

    def modified(self, key: str) -> float:
        """Return the time an object was put, in seconds since 1970; FileNotFoundError if there is none."""
        with _translated():
            return float(self._objects.head(key)["last_modified"].timestamp())

    def names(self, key: str) -> list[str]:
        """Return the next names of all keys below `key`, in order."""
        with _translated():
            listed = self._objects.list_with_delimiter(f"{key}/")
        keys = [*listed["common_prefixes"], *(meta["path"] for meta in listed["objects"])]
        return sorted(inner.rstrip("/").rpartition("/")[2] for inner in keys)

    def keys(self, key: str) -> list[str]:
        """Return all keys below `key`, in order."""
        with _translated():
            return sorted(meta["path"] for page in self._objects.list(f"{key}/") for meta in page)


def _tag(meta: Any) -> Tag:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


@contextmanager
def _translated() -> Iterator[None]:
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as exc:
        raise Changed from exc
    except exceptions.BaseError as exc:
        # Not "from exc": a traceback would show the library's own text.
        raise BucketError(_reason(exc)) from None


def _reason(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    first = _SECRETS.sub("...", lines[0]) if lines else ""
    return f"{type(exc).__name__}: {first[:200]}"
