"""A folder of Ray's sessions for one test, by which its processes are known and ended."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 300.0  # seconds; on an idle machine nothing takes a fifth of it


@contextmanager
def session_folder() -> Iterator[Path]:
    """Make a folder with a short path, as sockets need; kill at the end whoever has it as RAY_TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="rf", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            while pids := list(processes(Path(folder))):
                for pid, _ in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)


def variables(folder: Path) -> dict[str, str]:
    """Variables by which Ray stays on the loopback interface, in a folder, with a token of its own."""
    return {
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def processes(folder: Path, kind: str = "") -> Iterator[tuple[int, str]]:
    """Process id and command of whoever has a folder as RAY_TMPDIR, and the word `kind` in its command."""
    mark = f"RAY_TMPDIR={folder}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):  # it has ended, or is another user's
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    line = Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ").strip()
                    if kind in line:
                        yield int(entry), line


def free_port() -> int:
    """A port of the loopback interface at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
