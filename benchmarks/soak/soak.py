"""Disturb three runs for as long as you like, and count what became of their draws.

    python -m benchmarks.soak.soak [--seconds 3600] [--seed 1]

One run is on a disk, one in a bucket, and one on a disk and a Ray cluster. Each turn starts `rayfbnn run`
on one of the first two, with another number of workers on the disk, and lets it work for some seconds; then
the driver is killed, a worker is killed, or the driver is stopped. Writes to the disk fail now and then as
to a full one. Between the drivers and the bucket there is a proxy that delays, drops and repeats requests
and loses answers. The driver of the third run works all the time: after each turn a node of its cluster is
killed or one is added, and after many the driver is replaced. The program exits with 1 unless every draw
that was committed is there at the end, once, and the first ones have the bits of an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.soak.bad_network import bad_network
from benchmarks.soak.disturbed import COMPARED, Disturbed
from benchmarks.soak.nodes import on_a_cluster
from benchmarks.soak.processes import has_ended, send, start_driver, wait_for_end
from rayfbnn import api
from tests.support.drivers import descendants, slow_spec
from tests.support.small import make_store
from tests.support.store.buckets import BUCKET, s3_server

_LEAST = 10  # draws of each store, without which the soak goes on
_LONGEST_TURN = 12.0  # seconds
_LONGEST_IN_BUCKET = 60.0  # seconds, a third of which go by before the first block begins


def main() -> None:
    """Run the soak for as long as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1, help="of the disturbances, not of the draws")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(soak(Path(folder), arguments.seconds, arguments.seed), flush=True)


def soak(folder: Path, seconds: float, seed: int) -> str:
    """Disturb the runs for some seconds; return the line of counts, or raise AssertionError."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    spec = slow_spec(folder, iterations=1_000_000, steps=100)
    config, undisturbed = folder / "run.toml", folder / "undisturbed.zarr"
    config.write_text(spec.to_toml())
    api.sample(spec.with_iterations(COMPARED), undisturbed, workers=0, progress=False)
    generator, began = random.Random(seed), time.monotonic()
    with s3_server() as environment, bad_network(environment["AWS_ENDPOINT_URL"]) as (url, requests):
        disk, bucket = Disturbed(str(folder / "run.zarr")), Disturbed(f"s3://{BUCKET}/run.zarr")
        shared = Disturbed(str(folder / "shared.zarr"))
        stores = (disk, bucket, shared)
        for one in stores:  # a creation that is killed begins anew, and would take longer than a turn
            make_store(one.address, spec)
        with on_a_cluster(config, shared, generator) as cluster:
            while time.monotonic() - began < seconds or any(one.committed < _LEAST for one in stores):
                _turn_on_disk(config, disk, generator)
                cluster.turn()
                _turn_in_bucket(config, bucket, generator, {**os.environ, "AWS_ENDPOINT_URL": url})
                cluster.turn()
                for one in stores:
                    one.look()
            cluster.end()
        counts = [one.check(undisturbed) for one in stores]
    kinds = sum((one.turns for one in stores), Counter[str]())
    draws, repeated = (sum(column) for column in zip(*counts, strict=True))
    lost = sum(one.lost for one in stores)
    mishaps = sum(number for what, number in requests.items() if what != "passed on")
    line = (
        f"soak of {time.monotonic() - began:.0f} s, {kinds.total()} disturbances"
        f" ({', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}),"
        f" {mishaps} of {sum(requests.values())} requests disturbed:"
        f" {draws} draws made, {lost} lost, {repeated} repeated; memory of drivers on a disk"
        f" {disk.memory_line()}, of those on a cluster {shared.memory_line()}"
    )
    assert lost == 0 and repeated == 0, line
    return line


def _turn_on_disk(config: Path, store: Disturbed, generator: random.Random) -> None:
    """Start a driver, let it work, disturb it or one of its workers, and wait for its end."""
    workers = generator.choice((0, 0, 0, 1, 2, 3))
    kind = generator.choice(
        ("driver killed", "driver stopped", "worker killed" if workers else "driver killed")
    )
    log = config.parent / "disk.log"
    arguments = (config, store.address, "--workers", workers)
    driver = start_driver(*arguments, log=log, environment=dict(os.environ), is_filled=workers == 0)
    _wait(driver, _LONGEST_TURN * (0.5 + 0.5 * generator.random()) + 8 * (workers > 0))
    if kind == "worker killed":
        _kill_a_worker(driver.pid, generator)
        time.sleep(2)
    send(driver, signal.SIGKILL if kind == "driver killed" else signal.SIGTERM)
    exit_code, memory = wait_for_end(driver)
    store.note_end(exit_code, kind, log)
    if workers == 0:
        store.memory.append(memory)


def _turn_in_bucket(
    config: Path, store: Disturbed, generator: random.Random, environment: dict[str, str]
) -> None:
    """Start a driver without workers, let it work, kill or stop it, and wait for its end."""
    kind = generator.choice(("driver killed", "driver killed", "driver stopped"))
    log = config.parent / "bucket.log"
    driver = start_driver(config, store.address, "--workers", 0, log=log, environment=environment)
    _wait(driver, _LONGEST_IN_BUCKET * (0.5 + 0.5 * generator.random()))
    send(driver, signal.SIGKILL if kind == "driver killed" else signal.SIGTERM)
    exit_code, _ = wait_for_end(driver)
    store.note_end(exit_code, kind, log)


def _wait(driver: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for some seconds, or until the driver has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not has_ended(driver):
        time.sleep(0.1)


def _kill_a_worker(driver: int, generator: random.Random) -> None:
    workers = [pid for pid, command in descendants(driver) if "ray::" in command]
    if workers:
        os.kill(generator.choice(workers), signal.SIGKILL)


if __name__ == "__main__":
    main()
