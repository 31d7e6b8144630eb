"""The process of a driver: its start, signals to it, its end, and its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PATIENCE = 120.0  # seconds for a driver that was told to stop
_NORMAL = "from rayfbnn.cli import main; main()"
_FILLED = "from benchmarks.soak.full_disk import main; main()"


def start_driver(
    *arguments: object, log: Path, environment: dict[str, str], is_filled: bool = False
) -> subprocess.Popen[bytes]:
    """Start `rayfbnn run`, whose messages go to a file; with `is_filled` its writes fail now and then."""
    start = [sys.executable, "-c", _FILLED if is_filled else _NORMAL, "run", *map(str, arguments)]
    with log.open("wb") as file:
        return subprocess.Popen([*start, "--no-progress"], env=environment, stdout=file, stderr=file)


def send(driver: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal; Popen's methods would fetch the end of the process, and its memory with it."""
    os.kill(driver.pid, number)


def has_ended(driver: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process has ended, and leave its end to be waited for."""
    return os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for_end(driver: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for the end of a process; return its exit code, and the most megabytes that it had."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        pid, status, usage = os.wait4(driver.pid, os.WNOHANG)
        if pid:
            driver.returncode = os.waitstatus_to_exitcode(status)
            return driver.returncode, usage.ru_maxrss / 1024
        if time.monotonic() > deadline:
            send(driver, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.05)


def megabytes(driver: subprocess.Popen[bytes]) -> float:
    """Return the memory that a process has now; 0 after its end."""
    pages = Path(f"/proc/{driver.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20
