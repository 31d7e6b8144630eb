"""A command at work in a process of its own, whose end a test brings about and looks at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayfbnn import api
from rayfbnn.study import Rule, Study
from tests.support.drivers import descendants, iterations_done, slow_spec, wait_until

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray stays on the loopback interface
VERBS = ("run", "study run", "predict", "sample --method bbb")
_AFTER_SECONDS = 5.0  # from the end of the command to the look at its processes
LONG_PATIENCE = 240.0  # seconds, for a command to begin or to end on a busy machine
_CASES = 20_000  # to predict, which takes some five seconds
_STEPS = 9_000_000  # of a fit, which takes minutes
PROGRAM = [sys.executable, "-c", "from rayfbnn.cli import main; main()"]


@dataclass
class Seen:
    """An end as it was seen: the exit code, damage or loss in the store, and processes that are left."""

    code: int
    wrong: str
    left: list[str]


@dataclass
class Command:
    """A command at work in a folder of its own.

    verb      one of VERBS
    options   more options, such as --workers
    started   every process that it has started, as far as was seen
    """

    verb: str
    folder: Path
    options: tuple[object, ...] = ("--workers", 0)
    started: set[int] = field(default_factory=set)
    stderr: Any = subprocess.DEVNULL
    stdout: Any = subprocess.DEVNULL
    store_folder: Path | None = None

    def __post_init__(self) -> None:
        self.before = 0
        places = self.store_folder or self.folder
        spec = slow_spec(self.folder, chains=2, chains_per_batch=1)
        (self.folder / "run.toml").write_text(spec.to_toml())
        self.stores = [places / "run.zarr"]
        arguments: tuple[object, ...] = ()
        if self.verb == "run":
            arguments = ("run", self.folder / "run.toml", *self.stores, *self.options)
        elif self.verb == "study run":
            rule = Rule(looks=1, least_draws=5)
            study = Study.create(places / "study", self.folder / "run.toml", seeds=2, rule=rule)
            arguments = ("study", "run", study.place, *self.options)
            self.stores = [study.members.place(member) for member in _members(study)]  # type: ignore[misc]
        elif self.verb == "predict":
            self._prepare_prediction(spec)
            out = places / "out.csv"
            arguments = ("predict", *self.stores, "--data", self.folder / "many.csv", "--out", out)
        else:
            fit = ("--method", "bbb", *self.options, "--set", f"methods.bbb.steps={_STEPS}")
            arguments = ("sample", self.folder / "run.toml", *self.stores, *fit)
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdout=self.stdout,
            stderr=self.stderr,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # `nohup` ignores it
        )

    def _prepare_prediction(self, spec: Any) -> None:
        short = slow_spec(self.folder, iterations=30, chains=2, chains_per_batch=1)
        self.stores = [self.folder / "run.zarr"]
        api.sample(short, self.stores[0], workers=0, progress=False)
        head, *rows = (self.folder / "train.csv").read_text().splitlines()
        many = (rows[number % len(rows)] for number in range(_CASES))
        (self.folder / "many.csv").write_text("\n".join([head, *many]) + "\n")

    def wait_for_work(self) -> None:
        """Wait until the command has committed something, or predicts."""
        if self.verb == "predict":
            time.sleep(3)
            assert self.process.poll() is None, "the prediction ended before it was disturbed"
        else:
            wait_until(lambda: self.done > 0, self.process, LONG_PATIENCE)
        self.look()
        self.before = self.done

    def look(self) -> list[int]:
        """Remember the processes that the command has started, and return them."""
        now = [pid for pid, _ in descendants(self.process.pid)]
        self.started |= {self.process.pid, *now}
        return now

    @property
    def done(self) -> int:
        return sum(map(iterations_done, self.stores))

    def end(self) -> Seen:
        """Wait for the end, and look five seconds later."""
        try:
            code = self.process.wait(LONG_PATIENCE)
        finally:
            self.process.kill()
        time.sleep(_AFTER_SECONDS)
        left = [pid for pid in self.started if is_alive(pid)]
        seen = Seen(code, self.wrong(), [f"{pid} {command_of(pid)}" for pid in left])
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return seen

    def wrong(self) -> str:
        """Return what is wrong with what is kept: "" if nothing is."""
        there = [store for store in self.stores if store.exists()]
        damaged = [str(store) for store in there if not api.verify(store).ok]
        lost = "" if self.done >= self.before else f"{self.done} iterations of {self.before}"
        out = self.folder / "out.csv"
        torn = out.exists() and len(out.read_text().splitlines()) != 1 + _CASES
        return "; ".join([*damaged, *filter(None, [lost, "a part of out.csv" if torn else ""])])


def _members(study: Study) -> Iterator[Any]:
    from rayfbnn.study.plan import Member

    for configuration in study.configurations:
        for seed in study.seeds():
            yield Member(configuration.number, seed)


def is_alive(pid: int) -> bool:
    """Return True if a process has not ended; one that nobody asked how it ended has."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[:100]
    return ""
