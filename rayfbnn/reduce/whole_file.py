"""A file that is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a path to write to, beside `path`, and rename the file to `path` if nothing went wrong.

    A link is followed, and a file that is replaced keeps its permissions. Each call has a name of its own, so
    that two processes that write the same file do not mix; the one that is later replaces the other's.
    """
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.unfinished")
    # Never through a link that someone has put there: the file is a new one.
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
    try:
        yield unfinished
        if path.exists():
            unfinished.chmod(stat.S_IMODE(path.stat().st_mode))
        _sync(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Make the content durable before the name is: a power loss then leaves the old file or the new one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
