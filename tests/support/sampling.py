"""A sampler that is run to its end."""

from __future__ import annotations

from rayfbnn.run.sampler import Sampler
from rayfbnn.store.store import Store


def run_all(store: Store, *, stop_every: int | None = None) -> Store:
    """Run every batch to its end; a stop is requested after every stop_every-th iteration."""
    sampler = Sampler(store)
    for batch in range(store.n_batches):
        is_complete, asked = False, 0

        def should_stop() -> bool:
            nonlocal asked
            asked += 1
            return stop_every is not None and asked % stop_every == 0

        while not is_complete:
            for progress in sampler.run_block(batch, should_stop=should_stop):
                is_complete = progress.is_complete
    return store
