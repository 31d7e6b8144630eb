"""Drivers in processes of their own, which tests can signal and kill, and a run slow enough for that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rayfbnn.errors import StoreError
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.small import small_spec

PATIENCE = 60.0  # seconds; nothing here takes a tenth of that on an idle machine


def slow_spec(folder: Path, *, iterations: int = 20_000, steps: int = 400, **replaced: Any) -> RunSpec:
    """A run in blocks of ten iterations, each of some ten milliseconds, longer than any test waits."""
    operations = [
        {"op": "sample-sigmas"},
        {"op": "heatbath"},
        {"op": "hybrid", "steps": steps, "window": 2, "stepsize": 0.2},
    ]
    phase = [{"iterations": iterations, "operations": operations}]
    settings: dict[str, Any] = {"chains": 4, "chains_per_batch": 2, "draws_per_block": 10}
    return small_spec(folder, phase=phase, **{**settings, **replaced})


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start `rayfbnn` with these arguments in a process of its own."""
    code = "from rayfbnn.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error; a process that does not end fails the test."""
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, output, errors


def wait_until(
    condition: Callable[[], bool],
    process: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Wait until the condition holds, but no longer than so many seconds or the life of the process."""
    deadline = time.monotonic() + patience
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the driver ended early: {process.communicate()}")
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        time.sleep(0.02)  # to open a store takes ten milliseconds of the processor that the driver needs


def iterations_done(path: str | Path) -> int:
    """Number of committed iterations of all batches together; 0 for a store that does not exist yet."""
    try:
        store = Store.open(path)
        return sum(store.progress(batch).iteration for batch in range(store.n_batches))
    except StoreError:
        return 0


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Process id and command line of every process that `pid` started, directly or indirectly."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has ended meanwhile
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    waiting = parents.get(pid, [])
    while waiting:
        child = waiting.pop()
        waiting += parents.get(child, [])
        try:
            yield child, Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue
