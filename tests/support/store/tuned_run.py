"""Runs that tune their settings."""

from __future__ import annotations

from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.store import Store


def run(store: Store, executor: InProcess | None = None) -> Store:
    with store.lock(), InProcess() if executor is None else executor as in_process:
        in_process._sampler = Sampler(store)  # uses this store, and so its disk
        for _ in run_rounds(store, in_process):
            pass
    return store
