"""Ray on this machine: checks of open files, folders and ports, and the token of its authentication."""

from __future__ import annotations

import logging
import os
import resource
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rayfbnn.errors import ConfigError

WITHOUT_RAY = "use --workers 0 (in Python workers=0) to run without Ray"
_OPEN_FILES = 512
_PORTS = 16  # Ray's own processes listen on ten, and each worker on one or two
_CONNECT_SECONDS = 5.0
_SESSION_BYTES = 8 * 2**20  # logs and sockets of a short run; a long one has some more
_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107  # longest path of a socket: sun_path less its end
_TEMPORARY = ("RAY_TMPDIR",) if sys.platform == "darwin" else ("RAY_TMPDIR", "TMPDIR")  # in Ray's order

_private: set[str] = set()  # folders of the Ray that was started here


def check_machine() -> None:
    """Raise ConfigError, naming the variable or limit to change, if Ray cannot start here.

    Ray itself fails late and in many ways: with an error of any class, after two minutes of waiting, or by
    ending this process. This creates nothing, but raises the limit of open files if necessary and allowed.
    """
    _allow_open_files()
    _check_temporary_folder()
    _check_ports()


def _allow_open_files() -> None:
    """Raise this process's limit of open files to Ray's needs; ConfigError if the system forbids it.

    Ray's processes inherit the limit. With too few files they fail silently, and the driver waits.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _OPEN_FILES:  # without a limit it is below 0 or very large
        if 0 <= hard < _OPEN_FILES:
            raise ConfigError(
                f"workers: Ray needs {_OPEN_FILES} open files, but this shell allows {hard} (ulimit -n);"
                f" raise the limit, or {WITHOUT_RAY}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


@contextmanager
def private_folder() -> Iterator[str]:
    """Yield a folder for the sessions of a Ray that starts in the block; only this user has access to it.

    Ray itself would let every user of the machine write there, and replace sockets and logs.
    """
    base = _temporary_folder()[1]
    folder = _ray_folder(base)
    if folder is not None:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    if folder is None or folder != _ray_folder(base):
        folder = tempfile.mkdtemp(prefix="ray-", dir=base)
    if not _private:
        _keep_ray_from_sharing()
    _private.add(folder)
    try:
        yield folder
    finally:
        os.chmod(folder, 0o700)  # in case Ray has no such function any more


def _keep_ray_from_sharing() -> None:
    """Keep Ray from opening private folders to all users.

    Ray's function is not put back, because the thread of a start that was interrupted may call it later.
    """
    with suppress(ImportError, AttributeError):
        from ray._common import utils

        share: Any = utils.try_make_directory_shared
        utils.try_make_directory_shared = lambda path: path.startswith(tuple(_private)) or share(path)


def _ray_folder(base: str) -> str | None:
    """Return the path of a private folder, which may have to be made; None if others have taken the names.

    It is "ray" in a folder where only this user can write. Elsewhere other users need that name.
    """
    status, user = os.stat(base), os.getuid()
    is_ours = status.st_uid == user and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    for name in ("ray", f"ray-{user}") if is_ours else (f"ray-{user}",):
        path = os.path.join(base, name)
        try:
            there = os.lstat(path)
        except FileNotFoundError:
            return path
        if stat.S_ISDIR(there.st_mode) and there.st_uid == user and not stat.S_IMODE(there.st_mode) & 0o077:
            return path
    return None


def _temporary_folder() -> tuple[str | None, str]:
    name = next((name for name in _TEMPORARY if name in os.environ), None)
    return name, os.environ[name] if name else "/tmp"


def _check_temporary_folder() -> None:
    name, folder = _temporary_folder()
    problem = _problem_of_folder(folder)
    if problem:
        where = name or "RAY_TMPDIR (not set, so /tmp)"
        raise ConfigError(
            f"{where}: {problem}; set RAY_TMPDIR to a writable folder with a short path, or {WITHOUT_RAY}"
        )


def _problem_of_folder(folder: str) -> str:
    """Return the reason that Ray cannot use a folder for its temporary files, or "" if it can."""
    if not os.path.isabs(folder):
        return f'Ray needs the path of a folder that begins with /, got "{folder}"'
    try:
        ray = _ray_folder(folder) or os.path.join(folder, "ray-XXXXXXXX")
    except OSError as exc:
        return f"Ray cannot keep its sockets and logs in {folder} ({exc.strerror or exc})"
    # Ray composes such names: session_2026-11-27_00-22-15_882248_PID.
    session = f"session_YYYY-MM-DD_hh-mm-ss_ffffff_{os.getpid()}"
    n_bytes = len(os.fsencode(os.path.join(ray, session, "sockets", "plasma_store")))
    if n_bytes > _SOCKET_BYTES:
        return (
            f"the paths of Ray's sockets would have {n_bytes} bytes, but the system allows {_SOCKET_BYTES};"
            f" {folder} is too long by {n_bytes - _SOCKET_BYTES}"
        )
    # Ray would create a missing folder, perhaps where nobody looks for it.
    place = ray if os.path.lexists(ray) else folder
    try:
        folder.encode()  # as Ray does
        with (
            tempfile.TemporaryDirectory(prefix="rayfbnn-", dir=place) as probe,
            socket.socket(socket.AF_UNIX) as server,
        ):
            server.bind(os.path.join(probe, "socket"))
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_SESSION_BYTES))
    except (OSError, UnicodeEncodeError) as exc:
        reason = exc.strerror or str(exc) if isinstance(exc, OSError) else "the name is not UTF-8"
        return f"Ray cannot keep its sockets and logs in {place} ({reason})"
    return ""


def _check_ports() -> None:
    with ExitStack() as stack:
        try:
            servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(_PORTS)]
            client = socket.create_connection(servers[0].getsockname(), timeout=_CONNECT_SECONDS)
            stack.enter_context(client)
        except OSError as exc:
            raise ConfigError(
                f"workers: Ray needs {_PORTS} free ports on 127.0.0.1 ({exc.strerror or exc}); see"
                f" net.ipv4.ip_local_port_range and `ss --listening`, or {WITHOUT_RAY}"
            ) from exc


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
            folder = _file().parent
            with tempfile.TemporaryFile(dir=folder if folder.exists() else folder.parent):
                pass
    except (OSError, RuntimeError, UnicodeDecodeError) as exc:
        where = f"RAY_AUTH_TOKEN_PATH: {given}" if given else f"HOME: {os.environ.get('HOME', '')}"
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(
            f"{where} cannot hold the token of Ray's authentication ({reason}); name a file or a folder that"
            f" you own, or {WITHOUT_RAY}"
        ) from exc


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
