"""Writes files of results, each complete or not at all, without formulas that a spreadsheet would run."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rayfbnn.errors import NO_SPACE, ConfigError, OutputError, OutputFullError, RayFBNNError
from rayfbnn.numerals import read_number

if TYPE_CHECKING:
    import pandas as pd

# Errors that persist until another path is given; any other error may be temporary.
_WRONG_PATH = {
    getattr(errno, name)
    for name in (
        *("EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ENAMETOOLONG", "ELOOP"),
        *("EINVAL", "ENODEV", "ENXIO", "EOPNOTSUPP", "ETXTBSY", "EBUSY", "EXDEV"),
    )
}
_waiting: ContextVar[list[tuple[Path, Path]] | None] = ContextVar("_waiting", default=None)


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` if the block succeeds.

    A link is followed, and a file that is replaced keeps its permissions. Each call writes to its own hidden
    file next to `path`. Two processes that write the same file therefore do not mix their content, and the
    later one replaces the file of the other. The content is durable before it gets its name: after a power
    loss there is the old file or the new one.

    OutputFullError if there is no space, ConfigError if no file can be written there, OutputError if writing
    fails for another reason.
    """
    target = Path(os.path.realpath(path))
    unfinished = _beside(target)
    with output_errors(path):
        file = _create(unfinished)
        try:
            with file:
                yield file
                file.flush()
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                os.fsync(file.fileno())
            waiting = _waiting.get()
            if waiting is None:
                unfinished.replace(target)
            else:
                waiting.append((unfinished, target))
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def whole_files(folder: Path) -> Iterator[None]:
    """Create a folder if necessary, and give the files written in the block their names together, at its end.

    If the block fails, no file gets its name, and a folder that was created here is removed.
    """
    is_new, waiting = make_folder(folder), list[tuple[Path, Path]]()
    before = _waiting.set(waiting)
    try:
        yield
        for unfinished, target in waiting:
            with output_errors(target):
                unfinished.replace(target)
    except BaseException:
        for unfinished, _ in waiting:
            unfinished.unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # if it is not empty
                folder.rmdir()
        raise
    finally:
        _waiting.reset(before)


def make_folder(folder: Path) -> bool:
    """Create a folder and its parents if necessary; return True if the folder is new."""
    with output_errors(folder):
        is_new = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    return is_new


def check_takes_files(path: Path) -> None:
    """Raise the error of `whole_file` unless a file can be created next to `path`; none is left there.

    Permissions are not enough: a folder of /proc seems writable to root, and accepts no file.
    """
    probe = _beside(path)
    try:
        _create(probe).close()
        probe.unlink()
    except OSError as exc:
        raise _output_error(path, exc, f"no file can be created in {path.parent}: ") from exc


@contextmanager
def output_errors(path: str | Path) -> Iterator[None]:
    """Turn an OSError into the error that says in one line why `path` cannot be written."""
    try:
        yield
    except OSError as exc:
        raise _output_error(path, exc) from exc


def _output_error(path: str | Path, error: OSError, what: str = "") -> RayFBNNError:
    """Return the error that says in one line why an output cannot be written; `what` begins the reason."""
    reason = what + (error.strerror or str(error))
    if error.errno in NO_SPACE:
        return OutputFullError(
            f"{path}: no space to write it ({reason}); an old file is unchanged, and nothing of the new one"
            " is left; make space, or give another path"
        )
    if error.errno in _WRONG_PATH:
        return ConfigError(f"out: {path} cannot be written ({reason}); give another path")
    return OutputError(f"{path}: cannot be written: {reason}")


def _beside(path: Path) -> Path:
    """Return an unused hidden name next to a path."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.unfinished")


def _create(path: Path) -> BinaryIO:
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW  # HDF5 reads what it has written
    return os.fdopen(os.open(path, flags, 0o666), "w+b")


_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with an apostrophe before each name and text that a spreadsheet would run.

    Names of columns and labels come from data files. A spreadsheet treats text that begins with =, +, -, @, a
    tab or a carriage return as a formula, and text after an apostrophe as plain text. Numbers are not
    changed.
    """
    import pandas as pd

    safe = {
        name: column if pd.api.types.is_numeric_dtype(column) else column.map(_harmless)
        for name, column in table.items()
    }
    result = pd.DataFrame(safe, index=table.index)
    result.columns = [_harmless(name) for name in table.columns]
    return result


def _harmless(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(_BEGINS):
        return value
    try:
        read_number(value)
    except ValueError:
        return f"'{value}"
    return value
