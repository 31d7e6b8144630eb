"""The token of Ray's authentication. Anyone who has it can run code on this user's Ray clusters."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from rayfbnn.errors import ConfigError
from rayfbnn.run.on_ray.machine import WITHOUT_RAY

_log = logging.getLogger(__name__)


def check_token() -> None:
    """Raise ConfigError if Ray's token cannot be read, or is missing and cannot be written.

    Ray would end this process if it could not read the file of RAY_AUTH_TOKEN_PATH.
    """
    given = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not _is_used():
        return
    try:
        if given:
            if not Path(given).read_text().strip():
                raise OSError("it is empty")
        elif not _is_there(_file()):
            _check_can_be_written(_file())
    except (OSError, RuntimeError, UnicodeDecodeError) as exc:
        where = f"RAY_AUTH_TOKEN_PATH: {given}" if given else f"HOME: {os.environ.get('HOME', '')}"
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(
            f"{where} cannot hold the token of Ray's authentication ({reason}); name a file or a folder that"
            f" you own, or {WITHOUT_RAY}"
        ) from exc


def _check_can_be_written(path: Path) -> None:
    folder = path.parent if path.parent.exists() else path.parent.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def make_token() -> None:
    """Write a token that only this user can read, unless one exists.

    Ray itself would let everybody read it. An existing file is not changed; if others can read it, a warning
    says so.
    """
    if not _is_used() or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = _file()
    if _is_there(path):
        if _can_be_read_by_others(path):
            _log.warning(
                "other users of this machine can read Ray's token, and use it to run code on your Ray"
                " clusters; run: chmod 600 %s",
                path,
            )
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)  # its mode is 0600
    try:
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another process has made one meanwhile
            os.link(unfinished, path)
    finally:
        os.unlink(unfinished)


def _is_used() -> bool:
    """Return True if Ray reads the token from a file."""
    return os.environ.get("RAY_AUTH_MODE", "token").lower() == "token" and not os.environ.get(
        "RAY_AUTH_TOKEN"
    )


def _file() -> Path:
    """Return the file of the token by default; RuntimeError if this user has no home folder."""
    return Path.home() / ".ray" / "auth_token"


def _is_there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _can_be_read_by_others(path: Path) -> bool:
    """Return True if others can read the file, by its mode and those of all folders above it."""
    can_be_read = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    can_be_reached = (
        folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for folder in path.resolve().parents
    )
    return bool(can_be_read) and all(can_be_reached)
