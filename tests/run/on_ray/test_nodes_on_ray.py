"""A driver on a Ray cluster of three nodes, whose nodes are killed, drained and added beneath it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.store.store import Store
from tests.support.drivers import descendants, finish, iterations_done, slow_spec, start, wait_until
from tests.support.small import assert_same_draws

pytestmark = [pytest.mark.ray, pytest.mark.long]
pytest.importorskip("ray")
_NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class Scene:
    """A cluster on the loopback interface, a driver on it, and the same run undisturbed."""

    def __init__(self, cluster: Any, folder: Path, n_nodes: int) -> None:
        self.cluster, self.path = cluster, folder / "run.zarr"
        self.nodes = [cluster.add_node(**_NODE) for _ in range(n_nodes)]
        (folder / "run.toml").write_text(slow_spec(folder, iterations=400, steps=1500, chains=6).to_toml())
        self._config = folder / "run.toml"
        self.driver = start(
            "run", self._config, self.path, "--address", cluster.address, "--max-failures", 0, "--json"
        )
        wait_until(lambda: len(self.workers()) == n_nodes and iterations_done(self.path) > 0, self.driver)

    def workers(self) -> set[str]:
        """The workers that have committed something."""
        store = Store.open(self.path)
        return {
            store.commits.read(batch, block).worker
            for batch in range(store.n_batches)
            for block in store.commits.blocks(batch)
        }

    def finish(self) -> tuple[dict[str, Any], list[str]]:
        """Wait for the end of the driver; return its summary, and its lines on standard error."""
        code, output, errors = finish(self.driver)
        assert code == 0, errors
        return json.loads(output), errors.splitlines()

    def compare(self) -> None:
        """Check that the draws are those of a run that nothing disturbed."""
        other = self.path.parent / "undisturbed.zarr"
        api.sample(self._config, other, workers=0, progress=False)
        assert_same_draws(self.path, other)
