"""The share of its time that a driver's loop works, with many workers and a slow bucket.

    python -m benchmarks.on_ray.driver_loop --workers 100 --delay 0.03

A simulation without sampling: each worker ends a block every ten seconds, its commit is made at once, and the
driver gets the message. Its loop handles messages one after the other, and gathers as a driver does; each of
its requests takes `delay` seconds. If the loop works for the whole time, workers wait for it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from rayfbnn.run.job import Progress
from rayfbnn.run.running import Gathering
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.store import Store
from tests.support.store.buckets import PLACE, MemoryBucket
from tests.support.store.toy import create, step, toy_spec

N_BLOCKS = 12  # of each worker
BLOCKS_PER_CHUNK = 3


class Slow(MemoryBucket):
    """A bucket whose every request takes a while; several requests may wait at the same time."""

    def __init__(self, inner: MemoryBucket, delay: float) -> None:
        self.inner, self.delay = inner, delay


def _slowly(name: str) -> Any:
    def call(self: Slow, *arguments: Any) -> Any:
        time.sleep(self.delay)
        return getattr(self.inner, name)(*arguments)

    return call


for _name in (
    "get",
    "get_start",
    "modified",
    "put",
    "put_new",
    "put_unchanged",
    "delete",
    "exists",
    "names",
    "keys",
):
    setattr(Slow, _name, _slowly(_name))


def simulated(n_workers: int, seconds_of_block: float, delay: float) -> dict[str, float]:
    """Seconds that the loop took for all messages, and the seconds in which they came."""
    heatbath = [{"op": "heatbath"}]
    kept = {"iterations": N_BLOCKS - 3, "operations": heatbath}
    phase = [
        {"iterations": 1, "keep": False, "operations": heatbath},
        {"iterations": 2, "keep": "warmup", "operations": heatbath},
        kept,
    ]
    spec = toy_spec(chains=n_workers, chains_per_batch=1, draws_per_block=BLOCKS_PER_CHUNK, phase=phase)
    bucket = MemoryBucket()
    workers = create(ObjectStorage(bucket), PLACE, spec)
    driver = Store.open(PLACE, fs=ObjectStorage(Slow(bucket, delay)))
    busy, waited, began = 0.0, 0.0, 0.0
    with driver.lock(), Gathering(driver) as gathering:
        began = time.perf_counter()
        for number in range(N_BLOCKS * n_workers):
            due = began + number * seconds_of_block / n_workers
            block, batch = divmod(number, n_workers)
            step(workers, batch, ends=tuple(range(1, N_BLOCKS + 1)))
            time.sleep(max(0.0, due - time.perf_counter()))
            waited += max(0.0, time.perf_counter() - due)
            done, draws = block + 1, max(0, block - 2)
            phase_number = min(2, (block + 1) // 2)
            latest = Progress(
                batch,
                done,
                N_BLOCKS,
                draws,
                N_BLOCKS - 3,
                phase_number,
                1.0,
                0,
                0,
                1,
                seconds_of_block,
                True,
            )
            before = time.perf_counter()
            gathering.update(latest)
            busy += time.perf_counter() - before
        took = time.perf_counter() - began
        gathering.all()
        at_end = time.perf_counter() - began - took
    return {
        "busy": busy / took,
        "late": waited / took / n_workers,
        "seconds": took,
        "seconds at the end": at_end,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--block", type=float, default=10.0, help="seconds of a block")
    parser.add_argument("--delay", type=float, default=0.03, help="seconds of a request")
    options = parser.parse_args(arguments)
    row = simulated(options.workers, options.block, options.delay)
    print(", ".join(f"{name} {value:.4f}" for name, value in row.items()))


if __name__ == "__main__":
    main()
