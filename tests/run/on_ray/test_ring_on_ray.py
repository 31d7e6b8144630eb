"""Runs whose training cases are divided among Ray actors: the same draws as with all cases in one process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.ring.message import Message
from rayfbnn.run import in_parts
from rayfbnn.run.executor import InProcess
from rayfbnn.run.job import Progress
from rayfbnn.run.on_ray import owners
from rayfbnn.run.on_ray.actors import PartsWorker, Worker
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.store.store import Store
from tests.support.small import SMALL, assert_same_draws, make_store
from tests.support.store.fits import MODELS, spec_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
pytest.importorskip("ray")

N_PARTS = 4
WITH_DEATHS = [case for case in product(MODELS, (2, 3, 4)) if case[1] == 2 or case[0] == "real"][1:]
OPERATIONS: list[dict[str, Any]] = [
    {"op": "sample-sigmas"},
    {"op": "heatbath", "decay": 0.3},
    {"op": "hybrid", "steps": 5, "window": 3, "stepsize": 0.3, "partitions": N_PARTS, "order": "cyclic"},
    {"op": "hybrid", "steps": 2, "stepsize": 0.2},
]


def take_a_life(store_path: str) -> bool:
    """Take one of the files in a folder beside the store, if one is left: its taker is to die."""
    for life in sorted((Path(store_path).parent / "deaths").iterdir()):
        with suppress(FileNotFoundError):  # another has just died of it
            life.unlink()
            return True
    return False


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingOwner(PartsWorker):
    """An owner of parts that dies in the middle of a trajectory, once for each life."""

    visits = 0

    def forward(self, message: Message, *known: Any) -> tuple[bool, Message | None]:
        self.visits += 1
        if self.visits == 20 and take_a_life(self._store_path):
            die()
        return super().forward(message, *known)


class DyingHome(Worker):
    """A home of chains that dies while they are at the owners, once for each life."""

    _is_dying = False

    def run_block(self, batch: int, *arguments: Any) -> Iterator[Progress]:
        # A process dies once, even if it begins another block before it does.
        if batch == 1 and not self._is_dying and take_a_life(self._store_path):
            self._is_dying = True
            threading.Timer(0.2, die).start()
        yield from super().run_block(batch, *arguments)


def two_stores(name: str, folder: Path, iterations: int) -> tuple[Store, Path]:
    """Return a new store of a run in parts, and the path of the same run, done in this process."""
    phase = [{"iterations": iterations, "operations": OPERATIONS}]
    noise = [{"op": "sample-noise"}] if name in ("real", "t noise") else []
    phase[0]["operations"] = [*noise, *OPERATIONS]
    data = {**SMALL["data"], "parts": N_PARTS}
    spec = spec_of(name, folder, data=data, phase=phase, chains=5, chains_per_batch=2, draws_per_block=4)
    alone = make_store(folder / "alone.zarr", spec)
    with InProcess() as executor:
        list(executor.run(alone.path, range(alone.n_batches)))
    return make_store(folder / "run.zarr", spec), alone.path


def run(store: Store, **settings: Any) -> tuple[list[Progress], RayExecutor]:
    with RayExecutor(n_parts=N_PARTS, **settings) as executor:
        return list(executor.run(store.path, range(store.n_batches))), executor


@pytest.mark.long
@pytest.mark.parametrize(("name", "n_owners"), list(product(MODELS, (1, 2, 3, 4))))
def test_cases_of_several_workers_give_the_draws_of_one(name: str, n_owners: int, tmp_path: Path) -> None:
    store, alone = two_stores(name, tmp_path, iterations=8)
    run(store, workers=n_owners)
    assert_same_draws(store.path, alone)


class HomeOfStar(Worker):
    """A home that asks all owners at once, however short visits are."""

    def __init__(self, *arguments: Any) -> None:
        in_parts._LEAST_SECONDS_OF_STAR = 0.0
        super().__init__(*arguments)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_star_of_several_workers_gives_the_draws_of_one(name: str, tmp_path: Path) -> None:
    store, alone = two_stores(name, tmp_path, iterations=8)
    assert in_parts.visit_length(store.spec, 12).n_batches < N_PARTS
    run(store, workers=N_PARTS, worker_class=HomeOfStar)
    assert_same_draws(store.path, alone)


@pytest.mark.parametrize(
    ("name", "n_owners"),
    [("real", 2), *(pytest.param(*case, marks=pytest.mark.long) for case in WITH_DEATHS)],
)
def test_an_owner_that_dies_is_started_again_and_the_bits_are_the_same(
    name: str, n_owners: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "PartsWorker", DyingOwner)
    store, alone = two_stores(name, tmp_path, iterations=8)
    give_lives(tmp_path, 3)
    _, executor = run(store, workers=n_owners, max_failures=0)
    assert executor.failures == 0 and not list((tmp_path / "deaths").iterdir())
    assert_same_draws(store.path, alone)


@pytest.mark.long
@pytest.mark.parametrize(("name", "n_owners"), [("real", 2), ("class", 1), *WITH_DEATHS])
def test_a_home_that_dies_is_replaced_and_the_bits_are_the_same(
    name: str, n_owners: int, tmp_path: Path
) -> None:
    store, alone = two_stores(name, tmp_path, iterations=40)
    give_lives(tmp_path, 2)
    _, executor = run(store, workers=n_owners, max_failures=2, worker_class=DyingHome)
    assert executor.failures == 2
    assert_same_draws(store.path, alone)


def give_lives(folder: Path, count: int) -> None:
    (folder / "deaths").mkdir()
    for number in range(count):
        (folder / "deaths" / str(number)).touch()
