"""Checks that Ray can start on this machine: open files, a temporary folder, and ports."""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
from contextlib import ExitStack

from rayfbnn.errors import ConfigError

WITHOUT_RAY = "use --workers 0 (in Python workers=0) to run without Ray"
_OPEN_FILES = 512
_PORTS = 16  # Ray's own processes listen on ten, and each worker on one or two
_CONNECT_SECONDS = 5.0
_SESSION_BYTES = 8 * 2**20  # logs and sockets of a short run; a long one has some more
_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107  # longest path of a socket: sun_path less its end
_TEMPORARY = ("RAY_TMPDIR",) if sys.platform == "darwin" else ("RAY_TMPDIR", "TMPDIR")  # in Ray's order


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
    if _is_below(soft, _OPEN_FILES):
        if _is_below(hard, _OPEN_FILES):
            raise ConfigError(
                f"workers: Ray needs {_OPEN_FILES} open files, but this shell allows {hard} (ulimit -n);"
                f" raise the limit, or {WITHOUT_RAY}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


def _is_below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed


def _check_temporary_folder() -> None:
    """Raise ConfigError, naming the variable, if Ray cannot keep its sockets and logs in its folder."""
    name = next((name for name in _TEMPORARY if name in os.environ), None)
    folder = os.environ[name] if name else "/tmp"
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
    # Ray composes such names: session_2026-11-27_00-22-15_882248_PID.
    session = f"session_YYYY-MM-DD_hh-mm-ss_ffffff_{os.getpid()}"
    n_bytes = len(os.fsencode(os.path.join(folder, "ray", session, "sockets", "plasma_store")))
    if n_bytes > _SOCKET_BYTES:
        return (
            f"the paths of Ray's sockets would have {n_bytes} bytes, but the system allows {_SOCKET_BYTES};"
            f" {folder} is too long by {n_bytes - _SOCKET_BYTES}"
        )
    # Ray would create a missing folder, perhaps where nobody looks for it.
    ray = os.path.join(folder, "ray")
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
    """Raise ConfigError if the loopback interface does not answer, or has too few free ports."""
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
