"""A waiting driver of a study asks for one lock of each member, and opens those that have become free."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.run.running import RunOptions
from rayfbnn.store.locking import lock_of
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.study import Rule, Study, driving
from rayfbnn.study.plan import Member
from tests.support.small import small_spec
from tests.support.store.buckets import MemoryBucket

LAX = Rule(max_rhat=9, max_mcse=9, least_draws=5, looks=1, cases=3)
HERE: dict[str, Any] = {"workers": 0, "progress": False}
HOLDER = """
import fcntl, os, sys
held = [os.open(path, os.O_CREAT | os.O_RDWR) for path in sys.argv[1:]]
for descriptor in held:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
for line in sys.stdin:
    os.close(held[int(line)])
    print("free", flush=True)
"""


def make(place: str, folder: Path, **options: Any) -> Study:
    """A study whose members are all there, without draws."""
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    study = Study.create(place, spec, rule=LAX, **options)
    for number, look in study.due().items():
        for seed in look.seeds:
            study.members.create(Member(number, seed), look.iterations)
    return study


def members_of(study: Study) -> list[Member]:
    return [Member(one.number, seed) for one in study.configurations for seed in study.seeds()]


@contextmanager
def other_driver(study: Study) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the locks of all members; a number on its standard input releases one of them."""
    locks = [str(lock_of(study.members.place(member))) for member in members_of(study)]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, *locks],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def release(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    print(number, file=process.stdin, flush=True)
    assert process.stdout.readline() == "free\n"


class Enough(Exception):
    """The end of a driver that was watched for long enough."""


def enough() -> None:
    raise Enough


def driven(study: Study, polls: list[Callable[[], object]]) -> list[str]:
    """The lines of a driver; after each of its polls without work, the next of `polls` happens."""
    left, lines = iter(polls), []
    try:
        for line in driving.drive(study, RunOptions(workers=0), sleep=lambda seconds: next(left)()):
            lines.append(line)
    except Enough:
        pass
    return lines


def counted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Counter[tuple[str, Path]]:
    """The calls to the operating system with a path below a folder, by name and path, from now on."""
    calls: Counter[tuple[str, Path]] = Counter()
    for name in [name for name in vars(SystemCalls) if name[0] != "_"]:
        monkeypatch.setattr(SystemCalls, name, _counting(getattr(SystemCalls, name), name, folder, calls))
    return calls


def _counting(real: Any, name: str, folder: Path, calls: Counter[tuple[str, Path]]) -> Any:
    def call(self: SystemCalls, *arguments: Any, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], Path) and folder in arguments[0].parents:
            calls[name, arguments[0]] += 1
        return real(self, *arguments, **options)

    return call


@pytest.mark.long
def test_a_poll_asks_for_forty_locks_and_opens_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(str(tmp_path / "study"), tmp_path, seeds=40)
    locks = [lock_of(study.members.place(member)) for member in members_of(study)]
    calls = counted(monkeypatch, tmp_path / "study" / "members")
    with other_driver(study):
        driven(study, [calls.clear, enough])
    assert calls == Counter({("is_locked", lock): 1 for lock in locks})


class CountingBucket(MemoryBucket):
    """A bucket in memory with the number of requests by method and key."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[tuple[str, str]] = Counter()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in {"get", "get_start", "modified", "exists", "names", "keys", "put", "put_new"}:
            return value

        def call(key: str, *arguments: Any) -> Any:
            self.requests[name, key] += 1
            return value(key, *arguments)

        return call

    def without_requests(self) -> MemoryBucket:
        """The same objects, for another process."""
        other = MemoryBucket(self.objects)
        other.turn = self.turn
        other.number = 10**6
        return other


def test_a_poll_takes_one_request_for_each_member_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = CountingBucket()
    monkeypatch.setattr(ObjectStorage, "from_place", lambda place: ObjectStorage(bucket, lease_seconds=3))
    study = make("s3://bucket/study", tmp_path, seeds=2, vary=["network.priors.ih0=0.5:3,2:3"])
    locks = [lock_of(study.members.place(member)) for member in members_of(study)]
    polled: Counter[tuple[str, str]] = Counter()

    def note() -> None:
        polled.update({what: n for what, n in bucket.requests.items() if "/members/" in what[1]})

    others = ExitStack()
    with others:
        for lock in locks:
            others.enter_context(ObjectStorage(bucket.without_requests(), lease_seconds=3).lock(lock))
        bucket.requests.clear()
        lines = driven(study, [bucket.requests.clear, lambda: (note(), others.close())])
    assert len(locks) == 4 and polled == Counter({("get", lock.key): 1 for lock in locks})
    assert sum("seed" in line and "has 10 iterations" in line for line in lines) == 4 and study.ok


def test_members_of_a_driver_that_dies_are_run_and_those_it_has_finished_are_not(tmp_path: Path) -> None:
    """Both configurations have a member that the other driver finishes, and one that it leaves behind."""
    study = make(str(tmp_path / "study"), tmp_path, seeds=2, vary=["network.priors.ih0=0.5:3,2:3"])
    members = members_of(study)
    finished = [member for member in members if member.seed == 1]
    with other_driver(study) as process:

        def finish() -> None:
            for number, member in enumerate(members):
                if member in finished:
                    release(process, number)
                    api.resume(str(study.members.place(member)), **HERE)

        def die() -> None:
            process.kill()
            process.wait()

        lines = driven(study, [lambda: None, finish, lambda: None, die])
    ours = [line for line in lines if "seed" in line and "iterations" in line]
    assert len(ours) == 2 and all("seed 2" in line for line in ours)
    assert sum(line.endswith(": ok") for line in lines) == 2 and study.ok


def test_a_member_that_another_driver_gives_up_is_not_waited_for(tmp_path: Path) -> None:
    study = make(str(tmp_path / "study"), tmp_path, seeds=3)
    with other_driver(study) as process:

        def give_up() -> None:
            study.members.fail(Member(0, 1), "a reason")
            for number in range(3):
                release(process, number)

        lines = driven(study, [lambda: None, give_up])
    assert sum("has 10 iterations" in line for line in lines) == 2
    assert study.looks()[0].failed == {1: "a reason"}


def test_a_member_that_is_no_longer_ready_is_run_again_before_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second member is busy; meanwhile the first, which was ready, is lost and made anew."""
    study = make(str(tmp_path / "study"), tmp_path, seeds=2)
    first = study.members.place(Member(0, 1))
    with other_driver(study) as process:
        release(process, 0)

        def lose() -> None:
            shutil.rmtree(str(first))
            release(process, 1)

        lines = driven(study, [lambda: None, lose, lambda: None])
    assert [line.split(": ")[1] for line in lines[:-1]] == [f"seed {n} has 10 iterations" for n in (1, 2, 1)]
    assert study.ok


def test_a_lease_counts_as_held_until_it_stays_unchanged_for_its_time(tmp_path: Path) -> None:
    bucket, place = MemoryBucket(), ObjectPath("s3", "bucket", "store/commits/lock")
    assert not ObjectStorage(bucket).is_locked(place)
    bucket.put(place.key, b"the lease of another machine")
    patient, hasty = ObjectStorage(bucket), ObjectStorage(bucket, lease_seconds=0)
    assert patient.is_locked(place) and patient.is_locked(place)
    assert not hasty.is_locked(place)
    bucket.delete(place.key)
    assert not patient.is_locked(place)
