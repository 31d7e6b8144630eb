"""Looks at paths before they are opened: addresses in their place, and what is there where a path is not."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rayfbnn.errors import ConfigError

_MAX_NAMES = 3
_SCHEMES = r"https?|ftps?|sftp|file|s3[an]?|gs|gcs|az|azure|abfss?|wasbs?|adl|hdfs|r2|oss|b2"
# pathlib makes one / of two. Any other scheme counts if a user and a password follow it.
_ADDRESS = re.compile(
    rf"(?:^|/)(?:({_SCHEMES}):(?:/|[^/]*@)|([a-z][a-z0-9+.-]*):/+[^/]*:[^/]*@)", re.IGNORECASE
)


def scheme_of(path: str | Path) -> str | None:
    """Return the scheme of an address, such as "https"; None for a path on a disk."""
    match = _ADDRESS.search(str(path))
    return None if match is None else match[1] or match[2]


def check_on_disk(path: str | Path, what: str) -> None:
    """Raise ConfigError, naming `what`, for an address. It is not repeated, since it may hold a secret."""
    if (scheme := scheme_of(path)) is not None:
        raise ConfigError(f"{what}: must be a path on a disk, got an address that begins with {scheme}://")


def near_paths(path: Path, suffixes: Sequence[str]) -> str:
    """Return the names in the folder of `path` that are most like it, in parentheses; "" without any.

    If no name is like it, these are the first with one of the suffixes. A folder that does not exist is named
    instead.
    """
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        return f" (there is no folder {folder})"
    try:
        names = sorted(file.name for file in folder.iterdir() if file.name.lower().endswith(tuple(suffixes)))
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=_MAX_NAMES, cutoff=0.5) or names[:_MAX_NAMES]
    return f" (the folder has {', '.join(near)})" if near else ""
