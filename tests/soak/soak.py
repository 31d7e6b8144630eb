"""Disturb two runs for as long as you like, on a disk and in a bucket, and count what became of their draws.

    python -m tests.soak.soak [--seconds 3600] [--seed 1]

Each turn starts `rayfbnn run` with another number of workers and lets it work for some seconds; then the
driver is killed, a worker is killed, or the driver is stopped. On the disk writes fail now and then as on
a full one. Between the drivers and the bucket there is a proxy that delays, drops and repeats requests and
loses answers. The program exits with 1 unless every draw that was committed is there at the end, once, and
the first ones have the bits of an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rayfbnn import api
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.store import Store
from tests.soak.bad_network import bad_network
from tests.support.drivers import descendants, slow_spec
from tests.support.small import make_store
from tests.support.store.servers import BUCKET, s3_server

COMPARED = 200  # draws that are compared with an undisturbed run, where there are so many
_LEAST = 10  # draws of each store, without which the soak goes on
_LONGEST_TURN = 12.0  # seconds
_LONGEST_IN_BUCKET = 60.0  # seconds, a third of which go by before the first block begins
_PATIENCE = 120.0  # seconds for a driver that was told to stop
# Exit codes of `rayfbnn run` that a disturbance may cause; those of other errors end the soak.
_ALLOWED = {0, 75, -signal.SIGKILL, -signal.SIGTERM}
_BUSY = 73  # the lease of a driver in a bucket that was killed a moment ago


@dataclass
class Disturbed:
    """A store that is disturbed, and what is known of it.

    committed  draws of each chain at the last look, which must never become fewer
    memory     megabytes that a driver without workers had at most, in each of its turns
    """

    address: str
    committed: int = 0
    lost: int = 0
    turns: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)


def main() -> None:
    """Run the soak for as long as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1, help="of the disturbances, not of the draws")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(soak(Path(folder), arguments.seconds, arguments.seed), flush=True)


def soak(folder: Path, seconds: float, seed: int) -> str:
    """Disturb both runs for some seconds; return the line of counts, or raise AssertionError."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    spec = slow_spec(folder, iterations=1_000_000, steps=100)
    (folder / "run.toml").write_text(spec.to_toml())
    undisturbed = folder / "undisturbed.zarr"
    api.sample(spec.with_iterations(COMPARED), undisturbed, workers=0, progress=False)
    generator, began = random.Random(seed), time.monotonic()
    with s3_server() as environment, bad_network(environment["AWS_ENDPOINT_URL"]) as (url, requests):
        disk, bucket = Disturbed(str(folder / "run.zarr")), Disturbed(f"s3://{BUCKET}/run.zarr")
        stores = (disk, bucket)
        for one in stores:  # a creation that is killed begins anew, and would take longer than a turn
            make_store(one.address, spec)
        while time.monotonic() - began < seconds or any(one.committed < _LEAST for one in stores):
            for one in stores:
                disturbed = {**os.environ, "AWS_ENDPOINT_URL": url}
                _turn(folder, one, generator, disturbed, is_disk=one is disk)
                _look(one)
        counts = [_check(one, undisturbed) for one in stores]
    n_turns = sum(sum(one.turns.values()) for one in stores)
    kinds = Counter[str]()
    for one in stores:
        kinds.update(one.turns)
    made, repeated = sum(count for count, _ in counts), sum(count for _, count in counts)
    lost = sum(one.lost for one in stores)
    mishaps = sum(number for what, number in requests.items() if what != "passed on")
    line = (
        f"soak of {time.monotonic() - began:.0f} s, {n_turns} turns"
        f" ({', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}),"
        f" {mishaps} of {sum(requests.values())} requests disturbed:"
        f" {made} draws made, {lost} lost, {repeated} repeated; memory of a driver"
        f" {_megabytes(disk.memory[:3])} MB at the start, {_megabytes(disk.memory[-3:])} MB at the end"
    )
    assert lost == 0 and repeated == 0, line
    return line


def _turn(
    folder: Path, store: Disturbed, generator: random.Random, environment: dict[str, str], *, is_disk: bool
) -> None:
    """Start a driver, let it work, disturb it, and wait for its end."""
    workers = generator.choice((0, 0, 0, 1, 2, 3)) if is_disk else 0
    kind = generator.choice(
        ("driver killed", "driver stopped", "worker killed" if workers else "driver killed")
    )
    is_filled = is_disk and workers == 0
    code = (
        "from tests.soak.full_disk import main; main()"
        if is_filled
        else "from rayfbnn.cli import main; main()"
    )
    start = [sys.executable, "-c", code]
    arguments = ["run", str(folder / "run.toml"), store.address, "--workers", str(workers), "--no-progress"]
    with (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen([*start, *arguments], env=environment, stdout=log, stderr=log)
        longest = _LONGEST_TURN if is_disk else _LONGEST_IN_BUCKET
        deadline = time.monotonic() + longest * (0.5 + 0.5 * generator.random()) + 8 * (workers > 0)
        while time.monotonic() < deadline and not _has_ended(driver):
            time.sleep(0.1)
        if kind == "worker killed":
            _kill_a_worker(driver.pid, generator)
            time.sleep(2)
            _send(driver, signal.SIGTERM)
        elif kind == "driver killed":
            _send(driver, signal.SIGKILL)
        else:
            _send(driver, signal.SIGTERM)
        exit_code, memory = _end(driver)
    store.turns[kind] += 1
    if workers == 0 and is_disk:
        store.memory.append(memory)
    assert exit_code in _ALLOWED or (exit_code == _BUSY and not is_disk), (
        f"exit code {exit_code} after {kind}: {(folder / 'driver.log').read_text()[-2000:]}"
    )


def _kill_a_worker(driver: int, generator: random.Random) -> None:
    workers = [pid for pid, command in descendants(driver) if "ray::" in command]
    if workers:
        os.kill(generator.choice(workers), signal.SIGKILL)


def _has_ended(driver: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process has ended, and leave its end to be waited for."""
    return os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _send(driver: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal; Popen's methods would fetch the end of the process, and its memory with it."""
    os.kill(driver.pid, number)


def _end(driver: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for the end of a process; return its exit code, and the most megabytes that it had."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        pid, status, usage = os.wait4(driver.pid, os.WNOHANG)
        if pid:
            driver.returncode = os.waitstatus_to_exitcode(status)
            return driver.returncode, usage.ru_maxrss / 1024
        if time.monotonic() > deadline:
            _send(driver, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.05)


def _look(store: Disturbed) -> None:
    """Count the draws that are committed; those that were there before and are not any more are lost."""
    draws = Store.open(store.address).committed_draws
    store.lost += max(0, store.committed - draws)
    store.committed = draws


def _check(store: Disturbed, undisturbed: Path) -> tuple[int, int]:
    """Check every file and the first draws; return how many draws there are, and how many are repeated."""
    report = api.verify(store.address)
    assert report.problems == (), report.problems
    ours, theirs = Store.open(place_of(store.address)), Store.open(undisturbed)
    n_draws = ours.committed_draws
    compared = slice(0, min(n_draws, COMPARED))
    for read in ("read_positions", "read_precisions"):
        first, expected = (getattr(one, read)(compared) for one in (ours, theirs))
        assert first.tobytes() == expected.tobytes(), f"{store.address}: other draws than undisturbed"
    names = ("energy", "log_prior", "log_likelihood")
    densities = np.stack([ours.read_stat(name, slice(0, n_draws)) for name in names], axis=2)
    distinct = sum(len(np.unique(chain, axis=0)) for chain in densities)
    return ours.n_chains * n_draws, ours.n_chains * n_draws - distinct


def _megabytes(values: list[float]) -> str:
    return f"{np.median(values):.0f}" if values else "-"


if __name__ == "__main__":
    main()
