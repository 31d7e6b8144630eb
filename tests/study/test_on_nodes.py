"""A study on a Ray cluster whose nodes are drained, added and killed beneath it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.study import Rule, Study
from tests.support.drivers import slow_spec, start, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.long]
pytest.importorskip("ray")
from tests.support.cluster.nodes import NODE, cluster_of_nodes, drain, runs  # noqa: E402


@pytest.mark.parametrize("is_told", [True, False], ids=["drained", "killed"])
def test_tasks_follow_the_nodes_and_decide_as_one_driver(tmp_path: Path, is_told: bool) -> None:
    spec = slow_spec(tmp_path, iterations=3000, chains=2)
    study = Study.create(tmp_path / "study", spec, seeds=3, rule=Rule(looks=1, least_draws=5, cases=3))
    shutil.copytree(str(study.place), tmp_path / "alone")
    with cluster_of_nodes() as cluster:
        first = cluster.add_node(**NODE)
        options = ("--address", cluster.address, "--max-failures", 0)
        driver = start("study", "run", study.place, *options)
        try:
            wait_until(lambda: runs(first, "_lines"), driver)
            second = cluster.add_node(**NODE)
            wait_until(lambda: runs(second, "_lines"), driver)
            if is_told:
                drain(cluster, first, 60)
                wait_until(lambda: not runs(first, "_lines"), driver)
            cluster.remove_node(first, allow_graceful=False)
            _, errors = driver.communicate(timeout=200)
        finally:
            driver.kill()
    assert driver.returncode in (0, 3), errors
    expected = "will be taken away: its 1 worker" if is_told else "died with 1 worker: others go on"
    assert sum(expected in line for line in errors.splitlines()) == 1, errors
    alone = Study.open(tmp_path / "alone")
    alone.run(workers=0, progress=False)
    assert looks(study) == looks(alone) and len(looks(study)) == 1


def looks(study: Any) -> list[bytes]:
    return [file.read_bytes() for file in sorted((Path(str(study.place)) / "looks").rglob("*.json"))]
