"""One session of Ray for every test that needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Start Ray on the loopback interface with five processors, whatever the machine has."""
    pytest.importorskip("ray")
    from rayfbnn.run import cluster

    ray, _ = cluster.connect(5, None)
    yield
    ray.shutdown()
