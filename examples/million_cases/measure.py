"""Runs a folder that prepare.py made, and prints what it took beside the forecast, and the memory of workers.

python measure.py million --workers 2
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from rayfbnn.data import read_training
from rayfbnn.spec import RunSpec
from rayfbnn.timing.forecast import START_OF_WORKERS, forecast

RAYFBNN = [sys.executable, "-c", "from rayfbnn.cli import main; main()"]


class Memory:
    """The most memory that each Ray worker of a driver had, in MB, as Linux counts it."""

    def __init__(self, driver: int) -> None:
        self.most: dict[int, float] = {}
        self._driver = driver

    def look(self) -> None:
        """Look at all descendants of the driver that are workers."""
        for pid in _descendants(self._driver):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:  # it has ended
                continue
            peak = re.search(r"VmHWM:\s+(\d+) kB", status)
            if command.startswith(b"ray::") and b"IDLE" not in command and peak:
                self.most[pid] = max(self.most.get(pid, 0.0), int(peak[1]) / 1000)


def _descendants(parent: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    descendants, waiting = list[int](), [parent]
    while waiting:
        offspring = children.get(waiting.pop(), [])
        descendants += offspring
        waiting += offspring
    return descendants


def main(arguments: list[str] | None = None) -> None:
    """Forecast, sample, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="made by prepare.py")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    spec, dataset = read_training(RunSpec.from_toml(options.folder / "run.toml"))
    expected = forecast(spec, dataset, workers=options.workers)
    n_cases, n_inputs = dataset.n_cases, spec.network.inputs
    del dataset
    path = options.folder / "run.zarr"
    command = ["sample", str(options.folder / "run.toml"), str(path), "--workers", str(options.workers)]
    began = time.monotonic()
    with subprocess.Popen([*RAYFBNN, *command]) as driver:
        memory, ended = Memory(driver.pid), threading.Event()

        def watch() -> None:
            while not ended.wait(0.5):
                memory.look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        driver.wait()
        ended.set()
        watcher.join()
    took = time.monotonic() - began
    megabytes = n_cases * n_inputs * 4 / 1e6
    peaks = ", ".join(f"{peak:.0f}" for peak in memory.most.values()) or "no workers"
    forecast_text = "none" if expected is None else f"{expected.after(START_OF_WORKERS).seconds:.0f} s"
    print(
        f"{n_cases} cases of {n_inputs} inputs ({megabytes:.0f} MB as float32), exit code {driver.returncode}"
    )
    print(f"forecast {forecast_text}, took {took:.0f} s from start to end of the program")
    print(f"most memory of each worker, MB: {peaks}")
    sys.exit(driver.returncode)


if __name__ == "__main__":
    main()
