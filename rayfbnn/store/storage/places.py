"""The places of stores and of the files in them: paths on disks, and keys in buckets."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rayfbnn.data.paths import scheme_of
from rayfbnn.errors import NAMES_OF_SECRETS, ConfigError

_SCHEMES = ("s3", "gs", "az")
_ADDRESS = re.compile(rf"({'|'.join(_SCHEMES)}):/{{1,2}}(?!/)(.*)", re.DOTALL)  # pathlib makes one / of two
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Parts of an address that may hold a credential: options, a user or password, or a name such as "token".
_SECRET = re.compile(
    rf"[?#]|^[^/]*[@:%]|:.*@|{NAMES_OF_SECRETS}",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A key in a bucket, with the operators of a Path, which itself would change "s3://" to "s3:/".

    scheme  "s3", "gs" or "az"
    bucket  name of the bucket, or for "az" of the container; the environment names its account
    key     names joined by "/", without "/" at either end; "" for the bucket itself
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        """Return the address, such as "s3://bucket/run.zarr"."""
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        """Return the key of `name` below this one."""
        return ObjectPath(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last name of the key."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last name of the key without its suffix."""
        return Path(self.name).stem

    @property
    def parent(self) -> ObjectPath:
        """The key without its last name."""
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])


Place: TypeAlias = Path | ObjectPath


def place_of(place: str | Place) -> Place:
    """Return the key of an address such as "s3://bucket/run.zarr", or the absolute path of anything else.

    ConfigError if the address holds credentials, or lacks a bucket or a key.
    """
    if isinstance(place, ObjectPath):
        return place
    match = _ADDRESS.fullmatch(str(place))
    if match is None:
        if (unknown := scheme_of(place)) is not None:
            raise ConfigError(
                f"{unknown}:// address: a store is on a disk, or at an address such as s3://bucket/run.zarr,"
                " gs://bucket/run.zarr or az://container/run.zarr"
            )
        return Path(place).absolute()
    scheme, rest = match.groups()
    bucket, _, key = rest.partition("/")
    if _SECRET.search(rest):
        # The address is not repeated, because it may hold a secret.
        raise ConfigError(
            f"{scheme}:// address: must not contain a user, password or options; credentials come from the"
            " environment or the machine (docs/store.md)"
        )
    key = key.strip("/")
    if not _BUCKET.fullmatch(bucket) or not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(f"{scheme}://{rest}: is not an address; write {scheme}://bucket/run.zarr")
    return ObjectPath(scheme, bucket, key)


def key_below(place: Place, store: Place) -> str:
    """Return the key of a place relative to its store; "." for the store itself."""
    return "." if place == store else str(place).removeprefix(f"{store}/")


def is_address(place: object) -> bool:
    """Return True for an ObjectPath, and for its address, even as a Path."""
    return isinstance(place, ObjectPath) or (
        isinstance(place, str | Path) and _ADDRESS.fullmatch(str(place)) is not None
    )


def as_typed(place: Place) -> str:
    """Return a place for use in a command, quoted for the shell; relative if below the working folder."""
    return shlex.quote(near(place))


def near(place: Place) -> str:
    """Return a place in words: relative if it is below the working folder, else in full."""
    if isinstance(place, Path) and place.is_relative_to(Path.cwd()):
        return str(place.relative_to(Path.cwd()))
    return str(place)
