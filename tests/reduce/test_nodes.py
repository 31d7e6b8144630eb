"""Predictions on a Ray cluster of three nodes on the loopback interface, of which one is killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfbnn import api
from tests.support.drivers import start, wait_until
from tests.support.small import small_spec

pytestmark = [pytest.mark.ray, pytest.mark.long]
pytest.importorskip("ray")
from tests.support.cluster.nodes import NODE, cluster_of_nodes, runs  # noqa: E402

_PATIENCE = 300.0  # seconds; on an idle machine nothing here takes a tenth of that


def test_a_node_that_is_killed_changes_no_bit_of_a_prediction(tmp_path: Path) -> None:
    """The node dies while a task runs on it, and others are still to come."""
    store, cases = tmp_path / "run.zarr", tmp_path / "new.csv"
    phase = [{"iterations": 400, "operations": [{"op": "sample-sigmas"}, {"op": "heatbath"}]}]
    spec = small_spec(tmp_path, chains=12, draws_per_block=100, phase=phase)
    api.sample(spec, store, workers=0, progress=False)
    inputs = np.linspace(-3, 3, 2 * 20_000).reshape(-1, 2)
    np.savetxt(cases, inputs, delimiter=",", header="x1,x2", comments="")
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    with cluster_of_nodes() as cluster:
        nodes = [cluster.add_node(**NODE) for _ in range(3)]
        driver = start("predict", store, "--data", cases, "--out", there, "--address", cluster.address)
        try:
            for node in nodes:
                wait_until(lambda node=node: runs(node, "_run"), driver, _PATIENCE)
            cluster.remove_node(nodes[1], allow_graceful=False)
            wait_until(lambda: runs(nodes[0], "_run") or runs(nodes[2], "_run"), driver, _PATIENCE)
            _, errors = driver.communicate(timeout=_PATIENCE)
        finally:
            driver.kill()
    assert driver.returncode == 0, errors
    api.predict(store, data=cases, out=here)
    assert there.read_bytes() == here.read_bytes()
