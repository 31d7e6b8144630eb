"""The workers of a study on this machine: they end with their parent, and import nothing from its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rayfbnn.study import Rule, Study
from tests.ends.command import LONG_PATIENCE, is_alive
from tests.support.drivers import PATIENCE, descendants, finish, slow_spec, start, wait_until
from tests.support.small import small_spec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("usual_signals")]
pytest.importorskip("ray")

MODULES = ("rayfbnn", "numpy", "zarr", "statistics", "json", "pandas")


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[tuple[Study, subprocess.Popen[str], list[int]]]:
    """A study with two workers at work, their parent, and their process ids."""
    spec = slow_spec(tmp_path, chains=2, chains_per_batch=2)
    study = Study.create(tmp_path / "study", spec, seeds=2, rule=Rule(looks=1, least_draws=5))
    parent, drivers = start("study", "run", study.place, "--workers", 2), list[int]()
    try:
        wait_until(lambda: len(study.status().drivers()) == 2, parent, LONG_PATIENCE)
        started = descendants(parent.pid)
        drivers += [pid for pid, command in started if command.startswith("ray::MemberWorker")]
        yield study, parent, drivers
    finally:
        for pid in (parent.pid, *drivers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.communicate()


def _draws(study: Study) -> list[int]:
    return [member.draws for member in study.status().configurations[0].members]


def test_workers_end_once_their_parent_is_killed(
    driven: tuple[Study, subprocess.Popen[str], list[int]],
) -> None:
    study, parent, drivers = driven
    status = start("study", "status", study.place, "--json")
    names = sorted(json.loads(finish(status)[1])["drivers"])
    assert [int(name.rpartition(" ")[2]) for name in names] == sorted(drivers) and len(drivers) == 2
    before = _draws(study)
    parent.kill()
    wait_until(lambda: not any(map(is_alive, drivers)), patience=LONG_PATIENCE)
    after = study.status()
    assert after.drivers() == after.drivers(None) == []
    assert all(new >= old for new, old in zip(_draws(study), before, strict=True))
    assert "at work: no driver" in finish(start("study", "status", study.place))[1]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_worker_that_is_stopped_is_killed_in_time(
    driven: tuple[Study, subprocess.Popen[str], list[int]], number: signal.Signals
) -> None:
    _, parent, drivers = driven
    os.kill(drivers[0], signal.SIGSTOP)
    parent.send_signal(number)
    code, _, errors = finish(parent)
    assert code == 75 and "did not end in time after the signal, killed" in errors
    assert not any(map(is_alive, drivers))


def plant(folder: Path) -> None:
    """Put modules into a folder that say so when they are imported, and then fail."""
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(folder)!r} + '/ran_{name}', 'w')\nraise SystemExit")


def _rayfbnn(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program as its console script does, in a folder."""
    code = "import sys; sys.path[0] = '/'; from rayfbnn.cli import main; main()"
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3 * PATIENCE)


@pytest.mark.long
def test_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(small_spec(tmp_path).to_toml())
    plant(tmp_path)
    done = _rayfbnn(tmp_path, "sample", "run.toml", "run.zarr", "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("ran_*"))
