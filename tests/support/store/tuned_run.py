"""Runs whose settings are tuned."""

from __future__ import annotations

from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.store import Store


def run(store: Store, executor: InProcess | None = None) -> Store:
    with store.lock(), InProcess() if executor is None else executor as given:
        given._sampler = Sampler(store)  # of this store, with the disk that it has
        for _ in run_rounds(store, given):
            pass
    return store
