"""Two drivers on one store: exactly one wins, and the other changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rayfbnn import api
from rayfbnn.store.store import Store
from tests.support.drivers import finish, iterations_done, slow_spec, start, wait_until
from tests.support.small import make_store

RACER = """
    import sys, time
    from pathlib import Path
    from rayfbnn.errors import StoreBusyError
    from rayfbnn.store.store import Store

    folder, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def wait_for(path):
        while not path.exists():
            time.sleep(0.0002)

    for number in range(rounds):
        store = Store.open(folder / "run.zarr")
        (folder / f"ready-{name}-{number}").touch()
        wait_for(folder / f"go-{number}")
        try:
            with store.lock():
                (folder / f"won-{name}-{number}").touch()
                wait_for(folder / f"end-{number}")
        except StoreBusyError:
            (folder / f"lost-{name}-{number}").touch()
"""


def _race(folder: Path, rounds: int) -> None:
    """Two processes that compete for the lock again and again."""
    script = textwrap.dedent(RACER)
    racers = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), name, str(rounds)]) for name in "ab"
    ]
    try:
        for number in range(rounds):
            wait_until(lambda n=number: all((folder / f"ready-{name}-{n}").exists() for name in "ab"))  # type: ignore[misc]
            (folder / f"go-{number}").touch()
            wait_until(
                lambda n=number: all(  # type: ignore[misc]
                    any((folder / f"{end}-{name}-{n}").exists() for end in ("won", "lost")) for name in "ab"
                )
            )
            winners = sorted(folder.glob(f"won-*-{number}"))
            assert len(winners) == 1, f"round {number}: {len(winners)} hold the store"
            (folder / f"end-{number}").touch()
        assert [racer.wait(timeout=60) for racer in racers] == [0, 0]
    finally:
        for racer in racers:
            racer.kill()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that is stopped long before its end."""
    return make_store(
        tmp_path / "run.zarr", slow_spec(tmp_path, data__train=str(tmp_path / "train.csv"))
    ).path


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.long)])
def test_exactly_one_of_two_holds_the_store(rounds: int, stopped: Path) -> None:
    _race(stopped.parent, rounds)


def test_two_that_resume_one_wins_and_the_other_exits_with_73(stopped: Path) -> None:
    drivers = [start("resume", stopped, "--workers", 0, "--no-progress") for _ in range(2)]
    wait_until(lambda: any(driver.poll() is not None for driver in drivers))
    loser, winner = sorted(drivers, key=lambda driver: driver.poll() is None)
    code, output, errors = finish(loser)
    assert (code, output) == (73, "")
    assert "in use by" in errors and "nothing was changed" in errors
    before = iterations_done(stopped)
    wait_until(lambda: iterations_done(stopped) > before, winner)
    late = finish(start("resume", stopped, "--workers", 0, "--no-progress"))
    # The other driver has recorded its identity by now.
    assert late[0] == 73 and f"in use by process {winner.pid} on " in late[2]
    winner.send_signal(signal.SIGINT)
    assert finish(winner)[0] == 130
    assert api.verify(stopped).ok


def test_two_that_sample_into_one_path_one_creates_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path, iterations=4).to_toml())
    path = tmp_path / "run.zarr"
    drivers = [
        start("sample", tmp_path / "run.toml", path, "--workers", 0, "--no-progress") for _ in range(2)
    ]
    codes = sorted(finish(driver)[0] for driver in drivers)
    assert codes[0] == 0 and codes[1] in (2, 73)
    assert api.verify(path).ok
    assert Store.open(path).committed_draws == 4
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run.toml", "run.zarr", "train.csv"]
