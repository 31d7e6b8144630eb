"""The share of a core that the metrics of a run take from its driver.

    python -m benchmarks.on_ray.metrics --batches 512 --rate 200 --seconds 30

A node of Ray is started on the loopback interface, with an agent that offers metrics if the extra "metrics"
is installed. The driver hears made-up progress at the rate, as from workers, once without metrics and once
with them. `all` is the processor time of the whole process, with Ray's own threads, beyond that without
metrics; `driver` is that of the thread which hears the progress. With `--every 20` one message in 20 is a
commit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # keeps Ray on the loopback interface

from rayfbnn.run.job import Progress  # noqa: E402
from rayfbnn.run.on_ray.metrics import RayMetrics  # noqa: E402
from rayfbnn.run.sampler import Sampler  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402
from tests.support.small import make_store, small_spec  # noqa: E402


def prepared(folder: Path, batches: int) -> tuple[Store, Progress]:
    """A store of so many batches of a chain, and the progress of the first commit."""
    store = make_store(folder / "run.zarr", small_spec(folder, chains=batches, chains_per_batch=1))
    (*_, progress) = Sampler(store).run_block(0)
    return store, progress


def heard(
    store: Store, progress: Progress, metrics: RayMetrics | None, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Hear progress for some seconds; return processor seconds of the process, and of this thread in it."""
    began, process, in_thread = time.monotonic(), time.process_time(), 0.0
    for number in range(int(arguments.rate * arguments.seconds)):
        is_commit = number % arguments.every == 0
        batch = number // arguments.every % store.n_batches
        message = replace(progress, batch=batch, committed=is_commit, acceptance=0.8)
        before = time.thread_time()
        if metrics is not None:
            metrics.update(message)
        in_thread += time.thread_time() - before
        time.sleep(max(0.0, began + (number + 1) / arguments.rate - time.monotonic()))
    return time.process_time() - process, in_thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=512)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second")
    parser.add_argument("--every", type=int, default=1, help="messages for each commit")
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        with tempfile.TemporaryDirectory() as folder:
            store, progress = prepared(Path(folder), arguments.batches)
            idle, _ = heard(store, progress, None, arguments)
            with RayMetrics(store, lambda: 0) as metrics:
                busy, in_thread = heard(store, progress, metrics, arguments)
        print("| batches | messages/s | commits/s | all | driver |\n|---|---|---|---|---|")
        shares = [f"{seconds / arguments.seconds:.2%}" for seconds in (busy - idle, in_thread)]
        commits = arguments.rate / arguments.every
        print(f"| {arguments.batches} | {arguments.rate:g} | {commits:g} | {' | '.join(shares)} |")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
