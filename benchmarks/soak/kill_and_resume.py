"""Kill a run again and again, resume it each time with another number of workers, and compare the draws.

    python -m benchmarks.soak.kill_and_resume [--moments 20] [--seed 1] [--iterations 500]

At each moment the driver or one of its workers gets SIGKILL. A worker's death either ends the driver
(--max-failures 0), or the driver replaces it and is killed a little later. The program exits with 1 and
reports the differences unless the arrays equal those of an undisturbed run bit for bit.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from rayfbnn import api
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.drivers import PATIENCE, descendants, iterations_done, slow_spec, start
from tests.support.small import assert_same_draws

WORKERS = (2, 0, 3, 1, 5, 4)  # cycled through, so that each resume has another number
KINDS = ("driver", "worker", "worker, replaced", "driver while starting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments, not of the draws")
    parser.add_argument("--iterations", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kill_and_resume(Path(folder), arguments.moments, arguments.seed, arguments.iterations)


def kill_and_resume(folder: Path, moments: int, seed: int, iterations: int) -> None:
    """Run the scenario in `folder`.

    AssertionError if a draw differs, a file is damaged or a process survives.
    """
    spec = slow_spec(folder, iterations=iterations, steps=250_000, chains=7)
    (folder / "run.toml").write_text(spec.to_toml())
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    began = time.monotonic()
    api.sample(folder / "run.toml", folder / "undisturbed.zarr", workers=0, progress=False)
    print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
    path, done, started = folder / "run.zarr", Counter[str](), set[int]()
    for moment in range(moments):
        draw = Streams(seed, np.array([moment], dtype=np.uint64)).uniform(Purpose.TARGET_VALUE, (2,))[0]
        kind, workers = KINDS[moment % len(KINDS)], WORKERS[moment % len(WORKERS)]
        kind = "driver" if workers == 0 and kind.startswith("worker") else kind
        driver = _start(folder, path, workers, max_failures=3 if kind == "worker, replaced" else 0)
        _strike(driver, path, kind, workers, delay=draw[0], which=draw[1], started=started)
        done[kind] += 1
        total = iterations * Store.open(path).n_batches if path.exists() else 0
        print(
            f"{moment + 1:3d}  {workers} workers, {kind}: exit {driver.returncode},"
            f" {iterations_done(path)} of {total} iterations",
            flush=True,
        )
    driver = _start(folder, path, WORKERS[moments % len(WORKERS)], max_failures=0)
    output, errors = driver.communicate(timeout=600)
    assert driver.returncode == 0, errors
    assert api.verify(path).ok, api.verify(path).problems
    assert_same_draws(path, folder / "undisturbed.zarr")
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.5)
    left = [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert not left, f"processes {left} outlived their driver"
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(done.items()))
    print(f"ok: {moments} moments ({counts}), arrays bitwise equal, {time.monotonic() - began:.0f} s in all")


def _start(folder: Path, path: Path, workers: int, *, max_failures: int) -> subprocess.Popen[str]:
    options = ("--workers", workers, "--max-failures", max_failures, "--no-progress")
    return (
        start("resume", path, *options)
        if path.exists()
        else start("sample", folder / "run.toml", path, *options)
    )


def _strike(
    driver: subprocess.Popen[str],
    path: Path,
    kind: str,
    workers: int,
    *,
    delay: float,
    which: float,
    started: set[int],
) -> None:
    """Wait for a random moment, then kill; returns when the driver is dead."""
    if kind == "driver while starting":
        _live(driver, 5 * delay, started)
    else:
        _wait_for_work(driver, path, workers, started)
        _live(driver, 2 * delay, started)
    assert driver.poll() is None, "the run ended before it was killed often enough: give it more iterations"
    if kind.startswith("worker"):
        pids = _wait_for_workers(driver, started)
        os.kill(pids[int(which * len(pids))], signal.SIGKILL)
        if kind == "worker":
            _live(driver, PATIENCE, started)  # until the driver ends by itself
        else:
            deadline = time.monotonic() + PATIENCE
            while set(_workers(driver.pid)) <= set(pids) and time.monotonic() < deadline:
                _live(driver, 0.1, started)  # until another worker replaces it
            _live(driver, 2 * delay, started)
    assert (driver.poll() is None) == (kind != "worker"), f"{kind}: the driver's exit code is {driver.poll()}"
    if driver.poll() is None:
        driver.send_signal(signal.SIGKILL)
    try:
        driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()


def _live(driver: subprocess.Popen[str], seconds: float, started: set[int]) -> None:
    """Let the driver run for a while, unless it ends before; record the processes that it starts."""
    deadline = time.monotonic() + seconds
    while driver.poll() is None and time.monotonic() < deadline:
        started.update(pid for pid, _ in descendants(driver.pid))
        time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))


def _wait_for_work(driver: subprocess.Popen[str], path: Path, workers: int, started: set[int]) -> None:
    """Wait until blocks are being run."""
    before = iterations_done(path)
    deadline = time.monotonic() + PATIENCE
    while driver.poll() is None and time.monotonic() < deadline:
        _live(driver, 0.05, started)
        if _workers(driver.pid) if workers else iterations_done(path) > before:
            return


def _wait_for_workers(driver: subprocess.Popen[str], started: set[int]) -> list[int]:
    """Wait for the driver's actors; on a busy machine it may be between two."""
    deadline = time.monotonic() + PATIENCE
    while not (pids := _workers(driver.pid)):
        assert driver.poll() is None, f"the driver ended by itself, exit code {driver.returncode}"
        assert time.monotonic() < deadline, f"no worker in {PATIENCE} s"
        _live(driver, 0.1, started)
    return pids


def _workers(driver: int) -> list[int]:
    """Process ids of the driver's own actors."""
    return [pid for pid, command in descendants(driver) if command.startswith("ray::Worker")]


if __name__ == "__main__":
    sys.exit(main())
