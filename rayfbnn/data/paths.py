"""Hints at what is there in place of a path that is not."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

_MAX_NAMES = 3


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
