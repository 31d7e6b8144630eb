"""The gathering of blocks into chunks, by a few threads while the driver's loop goes on."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from rayfbnn.run.sampler import Progress
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store

_THREADS = 4
_BLOCKS_BETWEEN_LOOKS = 64


class Gathering:
    """Gathers the batches whose chunks may be full; the store must be locked until the context ends.

    A batch is gathered by one thread at a time. If it may have another full chunk meanwhile, it is gathered
    once more. An error of a thread is raised by the next call, or at the end of the context. The context ends
    when no thread works any more. If an error ends it, batches that were waiting are left to the next driver.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._n_blocks: Counter[int] = Counter()  # by batch, seen by this driver
        self._running: dict[int, Future[None]] = {}  # by batch
        self._again: set[int] = set()

    def update(self, latest: Progress) -> None:
        """Gather the blocks of a batch if its latest commit may have filled a chunk."""
        self._go_on()
        if not latest.committed:
            return
        self._n_blocks[latest.batch] += 1
        if self._may_have_full_chunk(latest):
            self._again.add(latest.batch)
            self._go_on()

    def all(self) -> None:
        """Gather everything that the batches have committed, because Zarr readers see only chunks."""
        self._wait()
        for batch in range(self._store.n_batches):
            self._start(batch, everything=True)
        self._wait()

    def _may_have_full_chunk(self, latest: Progress) -> bool:
        """Return True at the end of a chunk or of a section, and otherwise at every 64th block.

        The worker's message tells this, so the store need not be asked.
        """
        spec, size = self._store.spec, self._store.draws_per_chunk
        sections = ((latest.draws, spec.kept_draws), (_warmup_draws(spec, latest), spec.warmup_draws))
        is_full = any(n and (n % size == 0 or n == planned) for n, planned in sections)
        return is_full or self._n_blocks[latest.batch] % _BLOCKS_BETWEEN_LOOKS == 0

    def _start(self, batch: int, *, everything: bool = False) -> None:
        self._running[batch] = self._threads.submit(self._store.gather, batch, everything=everything)

    def _go_on(self) -> None:
        """Raise the error of a thread, if any, and start what waited for the end of its batch."""
        for batch, future in list(self._running.items()):
            if future.done():
                del self._running[batch]
                future.result()
        for batch in sorted(self._again - self._running.keys()):
            self._again.discard(batch)
            self._start(batch)

    def _wait(self) -> None:
        while self._running:
            next(iter(self._running.values())).exception()
            self._go_on()

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gathering")
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)


def _warmup_draws(spec: RunSpec, latest: Progress) -> int:
    """Return the number of draws in the warm-up section of each chain of a batch."""
    n_draws = before = 0
    for phase in spec.phase:
        if phase.keep == "warmup":
            n_draws += max(0, min(phase.iterations, latest.iteration - before))
        before += phase.iterations
    return n_draws
