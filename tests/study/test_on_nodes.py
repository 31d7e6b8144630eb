"""A study on a Ray cluster whose nodes are drained, added and killed beneath it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from tests.support.drivers import iterations_done, slow_spec, start, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.long]
pytest.importorskip("ray")
_GONE_SECONDS = 90.0  # from the end of the head to that of the driver
_PATIENCE = 200.0
from tests.support.cluster.nodes import NODE, cluster_of_nodes, drain, halted, runs  # noqa: E402


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
            wait_until(lambda: runs(first, "MemberWorker"), driver)
            second = cluster.add_node(**NODE)
            wait_until(lambda: runs(second, "MemberWorker"), driver)
            if is_told:
                drain(cluster, first, 60)
                wait_until(lambda: not runs(first, "MemberWorker"), driver)
            cluster.remove_node(first, allow_graceful=False)
            _, errors = driver.communicate(timeout=_PATIENCE)
        finally:
            driver.kill()
    assert driver.returncode in (0, 3), errors
    expected = "will be taken away: its 1 worker" if is_told else "died with 1 worker: other workers continue"
    assert sum(expected in line for line in errors.splitlines()) == 1, errors
    alone = Study.open(tmp_path / "alone")
    alone.run(workers=0, progress=False)
    assert looks(study) == looks(alone) and len(looks(study)) == 1


@pytest.mark.parametrize(("seeds", "workers"), [(2, 1), (1, 2)], ids=["members", "batches"])
def test_a_head_that_is_killed_ends_the_driver_and_the_study_goes_on_elsewhere(
    tmp_path: Path, seeds: int, workers: int
) -> None:
    """Workers take whole members, or the batches of one member where there are more workers than members.

    They are stopped until the driver takes the silent head for gone, so that they do not end first.
    """
    spec = slow_spec(tmp_path, iterations=2_000 // seeds, chains=2, chains_per_batch=1)
    study = Study.create(tmp_path / "study", spec, seeds=seeds, rule=Rule(looks=1, least_draws=5, cases=3))
    shutil.copytree(str(study.place), tmp_path / "alone")
    places = [str(study.members.place(Member(0, seed))) for seed in study.seeds()]
    with cluster_of_nodes() as cluster:
        node = cluster.add_node(**NODE)
        options = ("--address", cluster.address, "--workers", workers, "--max-failures", 0)
        driver = start("study", "run", study.place, *options)
        try:
            wait_until(lambda: any(iterations_done(place) > 0 for place in places), driver)
            with halted(node):
                cluster.remove_node(cluster.head_node, allow_graceful=False)
                killed = time.monotonic()
                output, errors = driver.communicate(timeout=_PATIENCE)
                seconds = time.monotonic() - killed
        finally:
            driver.kill()
        assert (driver.returncode, output) == (75, ""), errors
        *_, line = errors.splitlines()  # after what the driver found
        assert "the Ray cluster is gone: its head has not answered for 4" in line
        assert seconds < _GONE_SECONDS
        assert not study.is_complete
        study.run(workers=2, progress=False)  # while tasks of the first driver may still be at work
    alone = Study.open(tmp_path / "alone")
    alone.run(workers=2, progress=False)
    assert looks(study) == looks(alone) and len(looks(study)) == 1


def looks(study: Any) -> list[bytes]:
    return [file.read_bytes() for file in sorted((Path(str(study.place)) / "looks").rglob("*.json"))]
