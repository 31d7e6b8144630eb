"""A process that kills Ray's processes on this machine once the process that started Ray is gone.

On Linux the kernel ends Ray's servers together with the process that started them. It does not end their
agents, which were still running a minute after a kill, or a worker that is stopped. This file is also the
program of the guard, so it imports only the standard library.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

_LEAVE_SECONDS = 2.0  # for workers to end, as they do once their raylet is gone
_END_SECONDS = 5.0  # for the guard to look through the processes of this machine
_ENDED = b"ended"


class Guard:
    """The guard of this process. It waits at a pipe, and only this process has the other end."""

    def __init__(self) -> None:
        """Start the guard."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # keeps the signals of a terminal away
        )

    def end(self) -> None:
        """Kill the remaining processes of Ray now, and end the guard itself."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(_ENDED, timeout=_END_SECONDS)


def main() -> None:
    """Wait until a process has ended, or says that it has, and kill the processes of its Ray session."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    driver = int(sys.argv[1])
    started = _started(str(driver))
    if sys.stdin.buffer.read() != _ENDED:
        time.sleep(_LEAVE_SECONDS)
    for pid in processes_of_session(driver, started):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_of_session(driver: int, started: int) -> Iterator[int]:
    """Yield the ids of the processes of the Ray session that a driver started.

    Ray names the folder of a session after its time and its driver, and every process of the session has its
    log open there.

    driver   process id of the driver
    started  start time of the driver, in the system's clock ticks; an older process is of another session
    """
    folder = re.compile(rf"/session_[-_0-9]+_{driver}/")
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with suppress(OSError):  # the process has ended, or is another user's
            files = (os.readlink(file.path) for file in os.scandir(f"/proc/{pid}/fd"))
            if int(pid) not in (os.getpid(), driver) and any(map(folder.search, files)):
                if _started(pid) >= started:
                    yield int(pid)


def _started(pid: str) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


if __name__ == "__main__":
    main()
