"""The calls to an object store through obstore, one for each method, with errors in our own words."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rayfbnn.errors import ConfigError
from rayfbnn.store.storage.places import ObjectPath

_STATUS = re.compile(r"status code: (\d{3})\b")  # obstore's words, before the text of the server
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")  # such as ConditionalRequestConflict
_HTTP = (
    "the server's address begins with http://; use https, or allow it by AWS_ALLOW_HTTP=true"
    " (AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP)"
)
_NO_STORE = "the server does not answer like an object store"
_BROKEN = "the connection broke off"
# Words in a message of obstore -> the reason for the user, and whether it may pass; the first match counts.
_SIGNS = {
    "BadScheme": (_HTTP, False),
    "169.254.169.254": ("no credentials were found, neither in the environment nor of this machine", False),
    "Temporary failure in name": ("the name of the server cannot be looked up at present", True),
    "dns error": ("the name of the server is not known", False),
    "following redirect": ("the server redirects requests again and again", False),
    "without LOCATION": ("the server redirects requests; the region or the address is wrong", False),
    "TimedOut": ("the server did not answer in time", True),
    "Timeout": ("the server did not answer in time", True),
    "ConnectionReset": (_BROKEN, True),
    "Connect": ("cannot connect to the server", True),
    "Parse(": (_NO_STORE, False),
    "error sending request": (_BROKEN, True),
    "request or response body": (_BROKEN, True),
    "Interrupted": (_BROKEN, True),
    "Got invalid": (_NO_STORE, False),
    "missing from response": (_NO_STORE, False),
    "non-partial response": (_NO_STORE, False),
    "MissingAccount": ("no account is named; set AZURE_STORAGE_ACCOUNT_NAME", False),
    "MissingSasComponent": ("AZURE_STORAGE_SAS_KEY is not a query of names and values", False),
    "InvalidAccessKey": ("AZURE_STORAGE_ACCOUNT_KEY is not base64", False),
    "OpenCredentials": ("the file of credentials cannot be opened", False),
    "DecodeCredentials": ("the credentials are not in the form of the service", False),
    "Config": ("a variable of the environment has a value that is not allowed", False),
}
_ASKED = re.compile(r"uri: Some\(\s*(https?)://([^\s/,]*?)(?::(\d+))?/")
_TRIED = re.compile(r'"tcp connect error",\s*\S+:(\d+),')
_LATER = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
)
_ENDPOINTS = re.compile(r"(AWS|AZURE|GOOGLE)_\w*(ENDPOINT|BASE_URL)\w*")


def explained(error: BaseException) -> BucketError:
    """Return why a request failed, in one line without text from a server, an address or a setting."""
    name, text = type(error).__name__, str(error)
    if status := _status(text):
        match = _CODE.search(text)
        code = match[1] if match else ""
        words = f"HTTP {_in_words(status)}{f' ({code})' if code else ''}"
        return BucketError(f"{name}: {words}", may_pass=_may_pass(status, code, text))
    if _is_redirected(text):
        return BucketError(f"{name}: the server redirects requests to another that does not answer")
    unknown = "no reason that can be shown", False
    words, may_pass = next((found for sign, found in _SIGNS.items() if sign in text), unknown)
    return BucketError(f"{name}: {words}", may_pass=may_pass)


def _status(text: str) -> int | None:
    match = _STATUS.search(text)
    return int(match[1]) if match else None


def _may_pass(status: int, code: str, text: str) -> bool:
    if status == HTTPStatus.BAD_REQUEST:  # the answer to HEAD has no code; other requests will tell
        return code == "RequestTimeout" or (not code and "performing HEAD" in text)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return status not in (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    return status in _LATER


def _is_redirected(text: str) -> bool:
    """Return True if a connection failed to another port than that of the server that was asked."""
    asked, tried = _ASKED.search(text), _TRIED.search(text)
    if asked is None or tried is None or (asked[1] in getproxies() and not proxy_bypass(asked[2])):
        return False
    return tried[1] != (asked[3] or {"http": "80", "https": "443"}[asked[1]])


def wrong_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the name of an endpoint variable that is not the address of a server; None if all are."""
    return next(
        (
            name
            for name, value in sorted(environment.items())
            if _ENDPOINTS.fullmatch(name) and value and not _is_address_of_server(value)
        ),
        None,
    )


def _in_words(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _is_address_of_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # ValueError for one that is no number
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' <>"{}|\\^`')
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)


Tag = dict[str, str | None]  # identifies the version of an object, for a put that replaces only this version

_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
# A deletion cannot have a condition, so it must not be done long after the right to it was proved.
_ONCE: Any = {
    "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=10)},
    "timeout": "10 seconds",
}
_PAUSES = (0.1, 0.2, 0.4, 0.8)  # seconds before a put is repeated after a conflict with another request


class Changed(Exception):
    """The condition of a put failed: the object exists already, or it has changed; has the HTTP status."""


class TooLarge(Exception):
    """An object has more bytes than the caller allows."""


class BucketError(Exception):
    """An object store failed or did not answer; a put may have been done nevertheless.

    The message gives the reason in one line, without anything that may be a credential. `may_pass` is True
    for a reason that may be gone later.
    """

    def __init__(self, reason: str, *, may_pass: bool = False) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


class Bucket:
    """The objects of a bucket by their keys. Every method may raise BucketError.

    An empty object counts as none: `remove` puts it in the place of another one.
    """

    def __init__(self, objects: Any, objects_once: Any = None) -> None:
        """Keep a store of obstore, such as S3Store or MemoryStore, and one that tries only once."""
        self._objects = objects
        self._objects_once = objects if objects_once is None else objects_once

    @staticmethod
    def from_place(place: ObjectPath) -> Bucket:
        """Return the bucket of a place; credentials and region come from the environment or the machine."""
        try:
            from obstore.store import AzureStore, GCSStore, S3Store
        except ImportError as exc:
            raise ConfigError(f'{place}: needs obstore; pip install "rayfbnn[objects]"') from exc
        if wrong := wrong_endpoint(os.environ):
            raise ConfigError(f"{wrong}: must be the address of a server, such as https://host:9000")
        homes: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        with _answered():
            home = homes[place.scheme]
            return Bucket(home(place.bucket, retry_config=_RETRIES), home(place.bucket, **_ONCE))

    def get(self, key: str, at_most: int = sys.maxsize) -> tuple[bytes, Tag]:
        """Return the content of an object and its tag; FileNotFoundError if there is none.

        TooLarge, before anything is read, if it has more than `at_most` bytes.
        """
        with _answered():
            result = self._objects.get(key)
            if not result.meta["size"]:
                raise FileNotFoundError
            if result.meta["size"] > at_most:
                raise TooLarge(f"{result.meta['size']} bytes, expected at most {at_most}")
            return bytes(result.bytes()), _tag(result.meta)

    def get_start(self, key: str, n_bytes: int) -> bytes:
        """Return the first bytes of an object that is not empty; FileNotFoundError if there is none."""
        with _answered():
            return bytes(self._objects.get_range(key, start=0, end=n_bytes))

    def put(self, key: str, data: bytes) -> Tag:
        """Put an object, and replace any other."""
        return self._put(key, data, "overwrite", has_changed=lambda: False)

    def put_new(self, key: str, data: bytes) -> Tag:
        """Put an object; Changed if there is one already."""
        empty: Tag = {}

        def is_there() -> bool:
            meta = self._head(key)
            if meta is not None and not meta["size"]:
                empty.update(_tag(meta))
            return meta is not None

        try:
            return self._put(key, data, "create", has_changed=is_there)
        except Changed:
            if not empty:
                raise
            return self.put_unchanged(key, data, empty)

    def put_unchanged(self, key: str, data: bytes, tag: Tag) -> Tag:
        """Replace the object with this tag; Changed if there is another one or none."""
        return self._put(key, data, tag, has_changed=lambda: self._tag_at(key) != tag)

    def remove(self, key: str, tag: Tag) -> None:
        """Put an empty object in the place of the one with this tag; Changed if there is another one."""
        self.put_unchanged(key, b"", tag)

    def _put(self, key: str, data: bytes, mode: Any, *, has_changed: Callable[[], bool]) -> Tag:
        """Put an object, and try again if the server refused although nothing has changed.

        A server answers HTTP 409 if a condition failed, but also if two requests collided, which says nothing
        about the condition.
        """
        for pause in (*_PAUSES, None):
            try:
                with _translated():
                    return _tag(self._objects.put(key, data, mode=mode, use_multipart=False))
            except FileNotFoundError:
                raise BucketError("there is no such bucket") from None
            except Changed as exc:
                status = exc.args[0]
                if has_changed():
                    raise
                if pause is not None:
                    time.sleep(pause)
        is_collision = status == HTTPStatus.CONFLICT
        raise BucketError(f"each put collided with another request (HTTP {status})", may_pass=is_collision)

    def _tag_at(self, key: str) -> Tag | None:
        meta = self._head(key)
        return None if meta is None else _tag(meta)

    def _head(self, key: str) -> Any:
        """Return the metadata of an object, which may be empty; None if it does not exist."""
        with _answered():
            try:
                return self._objects.head(key)
            except FileNotFoundError:
                return None

    def delete(self, key: str) -> None:
        """Delete an object, if it exists, by a single request."""
        with _answered():
            try:
                self._objects_once.delete(key)
            except FileNotFoundError:
                pass

    def exists(self, key: str) -> bool:
        """Return True if there is an object with this key."""
        meta = self._head(key)
        return meta is not None and meta["size"] > 0

    def modified(self, key: str) -> float:
        """Return when an object was put, in seconds since 1970; FileNotFoundError if there is none."""
        with _answered():
            return float(self._objects.head(key)["last_modified"].timestamp())

    def names(self, key: str) -> list[str]:
        """Return the names one level below `key`, in order; a folder may have only empty objects."""
        with _answered():
            listed = self._objects.list_with_delimiter(f"{key}/")
        keys = [*listed["common_prefixes"], *(meta["path"] for meta in listed["objects"] if meta["size"])]
        return sorted(inner.rstrip("/").rpartition("/")[2] for inner in keys)

    def sizes(self, key: str) -> dict[str, int]:
        """Return the sizes of the objects one level below `key` by their names."""
        with _answered():
            listed = self._objects.list_with_delimiter(f"{key}/")
        return {
            meta["path"].rpartition("/")[2]: int(meta["size"]) for meta in listed["objects"] if meta["size"]
        }

    def keys(self, key: str) -> list[str]:
        """Return all keys below `key`, in order."""
        with _answered():
            listed = (meta for page in self._objects.list(f"{key}/") for meta in page)
            return sorted(meta["path"] for meta in listed if meta["size"])


def _tag(meta: Any) -> Tag:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of the library, because their text must not appear in a traceback."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError("no such object") from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as exc:
        raise Changed(_status(str(exc))) from None
    except exceptions.BaseError as exc:
        raise explained(exc) from None


@contextmanager
def _answered() -> Iterator[None]:
    """Translate errors of a request without a condition; a conflict is then an error of the server."""
    try:
        with _translated():
            yield
    except Changed as exc:
        status = exc.args[0]
        words, is_collision = f"a conflict (HTTP {status})", status == HTTPStatus.CONFLICT
        raise BucketError(f"the server answers with {words}", may_pass=is_collision) from None
