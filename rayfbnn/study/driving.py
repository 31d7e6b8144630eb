"""Drivers of a study, in this process, as processes on this machine, or as tasks of a Ray cluster.

Several drivers may work on one study, on one machine or many. A driver takes a member by locking its store.
A decision is a file that is written once, and its bytes follow from the draws. Therefore it does not matter
which driver does which work, how often, or which of them is killed meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

from rayfbnn import errors
from rayfbnn.errors import (
    RayFBNNError,
    SamplingError,
    StoreBusyError,
    StoreMismatchError,
    WorkerError,
    at_most_ten,
)
from rayfbnn.output.printing import answer, guard_streams, say, say_from_handler
from rayfbnn.run.executor import worker_name
from rayfbnn.run.on_ray.actors import current_node
from rayfbnn.run.on_ray.cluster import ONE_THREAD, WORKER_ENVIRONMENT, cause_of, connect
from rayfbnn.run.on_ray.nodes import (
    Deadline,
    NodeWatch,
    Waiting,
    kill_processes,
    warn_of_death,
    warn_of_leaving,
)
from rayfbnn.run.running import RunOptions
from rayfbnn.run.signals import GRACE_SECONDS, START_AGAIN, interrupt_on_signal, stop_on_signal
from rayfbnn.study.files import Due, StudyFiles
from rayfbnn.study.plan import Member
from rayfbnn.study.study_status import look_head
from rayfbnn.verbs.sampling import resume
from rayfbnn.version import difference

_WAIT_SECONDS = 2.0  # if other drivers have all remaining members


def show(lines: Iterable[str], options: RunOptions) -> None:
    """Run a driver to its end, and print its lines on standard error if the progress is shown."""
    for line in lines:
        if options.progress:
            say(line)


def drive(
    study: StudyFiles, options: RunOptions, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Run members and decide, until no configuration has a look that is due. Yield a line on each step.

    Raises StoreMismatchError if a look is due and the study was made by another version.
    """
    known = _Known(study)
    while True:
        due = study.due()
        if not due:
            return
        _check_version(study)
        has_worked = False
        for configuration, look in due.items():
            has_worked |= yield from _advance(study, known, configuration, look, options)
            if known.all_ready(configuration, look):
                decision = study.decide(configuration, look)
                has_worked = True
                if decision is not None:
                    yield _label(study, configuration) + look_head(decision)
        if not has_worked:
            sleep(_WAIT_SECONDS)


def _check_version(study: StudyFiles) -> None:
    """Raise StoreMismatchError for a study of another version or other results: new draws might differ."""
    if words := difference(study.plan.version, study.plan.results):
        raise StoreMismatchError(
            f"{study.place}: {words}, and its draws may differ; run it with the version that made it"
        )


class _Known:
    """What a driver remembers of the members, so that it need not open each store while it waits.

    Which members are ready for a look, and which another driver is sampling. A busy member is opened again
    when its lock has become free.
    """

    def __init__(self, study: StudyFiles) -> None:
        self._study = study
        self._ready: set[tuple[Member, int]] = set()  # with the number of the look
        self._busy: set[Member] = set()

    def needs_work(self, member: Member, look: Due) -> bool:
        """Return True if a member is not ready for a look, and no driver is known to be sampling it."""
        if (member, look.number) in self._ready:
            return False
        if member in self._busy and self._study.members.is_busy(member):
            return False
        self._busy.discard(member)
        if not self._study.is_ready(member, look):
            return True
        self.found_ready(member, look)
        return False

    def found_ready(self, member: Member, look: Due) -> None:
        """Remember that a member is ready for a look."""
        self._ready.add((member, look.number))

    def found_busy(self, member: Member) -> None:
        """Remember that another driver is sampling a member."""
        self._busy.add(member)

    def all_ready(self, configuration: int, look: Due) -> bool:
        """Return True if all members are ready for a look. If they are known to be, they are asked again."""
        members = [Member(configuration, seed) for seed in look.seeds]
        if any((member, look.number) not in self._ready for member in members):
            return False
        lost = [member for member in members if not self._study.is_ready(member, look)]
        self._ready -= {(member, look.number) for member in lost}
        return not lost


def _advance(
    study: StudyFiles, known: _Known, configuration: int, look: Due, options: RunOptions
) -> Generator[str, None, bool]:
    """Bring members to the length of a look, except those of other drivers; return True if any was."""
    has_worked = False
    start = os.getpid() % len(look.seeds)  # drivers that start together begin at different members
    for seed in (*look.seeds[start:], *look.seeds[:start]):
        member = Member(configuration, seed)
        if not known.needs_work(member, look):
            continue
        try:
            _run(study, member, look, options)
        except StoreBusyError:
            known.found_busy(member)
            continue
        except SamplingError as exc:
            place = study.members.place(member)
            study.members.fail(member, str(exc).removeprefix(f"{place}: "))
        known.found_ready(member, look)
        has_worked = True
        reason = study.members.failure(member)
        what = f"has {look.iterations} iterations" if reason is None else f"failed: {reason}"
        yield f"{_label(study, configuration)}look {look.number}: seed {seed} {what}"
    return has_worked


def _run(study: StudyFiles, member: Member, look: Due, options: RunOptions) -> None:
    """Sample a member until its last phase has the iterations of a look.

    Raises StoreBusyError if another driver is sampling it.
    """
    if not study.members.is_there(member):
        study.members.create(member, look.iterations)
    store = study.members.open(member)
    resume(
        str(store.path),
        iterations=max(look.iterations, store.spec.phase[-1].iterations),
        **asdict(replace(options, progress=False)),
    )


def _label(study: StudyFiles, configuration: int) -> str:
    """Return the start of a line that names a configuration, or "" if the study has only one."""
    return f"{study.configurations[configuration].label}: " if len(study.configurations) > 1 else ""


_ROOT = str(Path(__file__).resolve().parents[2])
_LOOK_SECONDS = 0.2  # between two checks of the processes


class Drivers:
    """The processes. One that dies is replaced, because the others cannot tell which member it had."""

    def __init__(self, folder: str, options: RunOptions, *, count: int) -> None:
        """Take the study's folder, the options of each process, and the number of processes."""
        self._arguments = json.dumps({"folder": folder, "options": asdict(replace(options, workers=0))})
        self._max_failures = options.max_failures
        self._count = count
        self._is_stopping = self._is_stopped = False
        self._stop_by = math.inf  # on the monotonic clock
        self._processes: list[subprocess.Popen[str]] = []
        self._inputs: dict[int, IO[str] | None] = {}  # standard input of each process, kept open

    def run(self) -> None:
        """Run the processes to their end.

        Raises KeyboardInterrupt if they were stopped, the error of a process that failed, and WorkerError if
        more than max_failures died.
        """
        failures = 0
        with stop_on_signal(self._stop, say_from_handler):
            try:
                self._processes = [self._start() for _ in range(self._count)]
                while self._processes and time.monotonic() < self._stop_by:
                    process = self._processes[0]
                    try:
                        # This also reads, because a process waits while its pipe is full.
                        output, _ = process.communicate(timeout=_LOOK_SECONDS)
                    except subprocess.TimeoutExpired:
                        self._processes.append(self._processes.pop(0))
                        continue
                    self._processes.remove(process)
                    failures += self._ended(process, output)
                    if failures > self._max_failures:
                        raise WorkerError(
                            f"{failures} drivers of the study died, more than max_failures ="
                            f" {self._max_failures} allows; committed work is kept"
                        )
            finally:
                self._stop()
                self._wait()
        if self._is_stopped:
            raise KeyboardInterrupt("stopped; committed work is kept")

    def _start(self) -> subprocess.Popen[str]:
        # -P: nothing is imported from the current folder. The folder of this package is searched last, in
        # case Python does not find the package elsewhere.
        code = f"import sys; sys.path.append({_ROOT!r}); from rayfbnn.study.driving import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, self._arguments],
            stdin=subprocess.PIPE,  # ends with this process
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        self._inputs[process.pid], process.stdin = process.stdin, None  # communicate() would close it
        return process

    def _stop(self) -> None:
        """Ask the processes to commit their current work, and to end. A signal handler may call this."""
        self._is_stopping = True
        self._stop_by = min(self._stop_by, time.monotonic() + GRACE_SECONDS)
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def _wait(self) -> None:
        """Wait for the processes, and kill any that do not end in time because they are stopped or hang."""
        for process in self._processes:
            try:
                process.communicate(timeout=max(0.0, self._stop_by - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._is_stopped = True
                process.kill()
                process.communicate()
                say(f"driver {process.pid} of the study: did not end in time after the signal, killed")

    def _ended(self, process: subprocess.Popen[str], output: str) -> int:
        """Handle the end of a process. Return 1 if it died and was replaced, otherwise 0."""
        del self._inputs[process.pid]
        if process.returncode == 0:
            return 0
        if process.returncode == START_AGAIN or self._is_stopping:
            self._is_stopped = True
            self._stop()
            return 0
        if process.returncode > 0:
            _raise(output)
        self._processes.append(self._start())
        return 1


def main() -> None:
    """Drive a study as a child process of `Drivers`. An error is sent to the parent on standard output."""
    guard_streams()
    arguments = json.loads(sys.argv[1])
    try:
        with interrupt_on_signal():
            threading.Thread(target=_end_with_parent, daemon=True).start()
            options = RunOptions(**arguments["options"])
            show(drive(StudyFiles.open(arguments["folder"]), options), options)
    except KeyboardInterrupt:
        sys.exit(START_AGAIN)
    except RayFBNNError as exc:
        answer(json.dumps([type(exc).__name__, str(exc)]), as_is=True)
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process once its parent is gone: first as a signal ends it, then at once."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(output: str) -> NoReturn:
    """Raise the error that a process has printed."""
    try:
        name, text = json.loads(output)
        kind = getattr(errors, name)
    except (ValueError, TypeError, AttributeError):
        raise WorkerError("a driver of the study failed; its error is above") from None
    raise kind(text)


_TASK_LOOK_SECONDS = 0.5  # between two checks of the tasks
_KILL_SECONDS = 5.0  # for the driver to hear of tasks that were killed at the deadline


@dataclass(frozen=True)
class _Node:
    """The first item that a task yields: its process, named by `worker_name`, and Ray's id of its node."""

    worker: str
    name: str


@dataclass(eq=False)
class _Task:
    """A task as the driver knows it: its process and node, "" until it has started, and whether it leaves."""

    worker: str = ""
    node: str = ""
    is_leaving: bool = False


class ClusterDrivers:
    """The tasks, one for each core or GPU of the cluster; up to max_failures tasks that die are replaced.

    Tasks are started as nodes join. They leave a node that will be taken away once they have committed their
    current work. Tasks that die with their node are not counted. The study's folder must refer to the same
    folder on every node.
    """

    def __init__(self, study: StudyFiles, options: RunOptions) -> None:
        """Connect to the cluster, and look at its nodes."""
        gpus = 1 if study.members.with_cases().spec.device == "gpu" else 0
        self._ray, _ = connect(options.workers, options.address)
        self._watch, self._room = NodeWatch(self._ray, gpus), Waiting(self._ray, gpus)
        self._n_members = sum(len(due.seeds) for due in study.due().values())
        self._options = options
        self._arguments = str(study.place), replace(options, workers=0, address=None)
        self._remote = self._ray.remote(
            num_cpus=1, num_gpus=gpus, max_retries=0, runtime_env={"env_vars": WORKER_ENVIRONMENT}
        )(_lines)
        self._tasks: dict[Any, _Task] = {}  # by Ray's generator of their lines
        self._failures = 0
        self._is_stopping = self._is_over = False
        self._deadline = Deadline(self._kill)

    @property
    def count(self) -> int:
        """Number of tasks: as many as were requested, or as there is room for now."""
        return self._options.workers or self._watch.nodes.room

    def run(self) -> None:
        """Run the tasks to their end.

        Raises KeyboardInterrupt if they were stopped, the error of a task that failed, WorkerError if more
        than max_failures died, and ClusterGoneError if the head of the cluster no longer answers.
        """
        with stop_on_signal(self._request_stop, say_from_handler), self._watch, self._deadline:
            show(self._all_lines(), self._options)
        if self._is_stopping:
            raise KeyboardInterrupt("stopped; committed work is kept")

    def _request_stop(self) -> None:
        """Ask the tasks to commit their current work, and to end. A signal handler may call this."""
        self._deadline.set(GRACE_SECONDS)
        self._is_stopping = True

    def _all_lines(self) -> Iterator[str]:
        """Yield the lines of all tasks as they arrive, until all have ended."""
        is_told = False
        while True:
            if self._watch.is_gone:
                raise self._watch.gone()
            if not self._is_stopping:
                self._follow_nodes()
            elif not is_told:
                is_told = True
                self._cancel()
            if not self._tasks:
                return
            if self._deadline.is_past(_KILL_SECONDS):
                return
            yield from self._new_lines()

    def _follow_nodes(self) -> None:
        """Let tasks leave nodes that will be taken away, and start others while there is room and work."""
        draining = self._watch.nodes.draining
        new = {one: task for one, task in self._tasks.items() if task.node in draining - {""}}
        new = {one: task for one, task in new.items() if not task.is_leaving}
        for reference, task in new.items():
            task.is_leaving = True
            self._ray.cancel(reference)
        warn_of_leaving(Counter(task.node for task in new.values()))
        n_staying = sum(not task.is_leaving for task in self._tasks.values())
        n_working = sum(bool(task.node) for task in self._tasks.values())
        self._room.note(len(self._tasks) - n_working, n_working)
        if not self._is_over and n_staying < min(self.count, self._n_members):
            self._room.starting()
            for _ in range(min(self.count, self._n_members) - n_staying):
                self._tasks[self._start()] = _Task()

    def _new_lines(self) -> Iterator[str]:
        """Wait at most half a second for a line, and yield it."""
        tasks = list(self._tasks)
        ready, _ = self._ray.wait(tasks, num_returns=1, timeout=_TASK_LOOK_SECONDS, fetch_local=False)
        for reference in ready:
            try:
                line = self._ray.get(next(reference))
            except (StopIteration, self._ray.exceptions.RayError) as exc:
                self._ended(self._tasks.pop(reference), exc)
                continue
            if isinstance(line, _Node):
                task = self._tasks[reference]
                task.worker, task.node = line.worker, line.name
            else:
                yield line

    def _ended(self, task: _Task, how: Exception) -> None:
        """Handle the end of a task: count one that died, and raise the error of one that failed."""
        exceptions = self._ray.exceptions
        self._is_over |= isinstance(how, StopIteration)  # nothing is due any more
        if self._is_stopping or task.is_leaving or isinstance(how, StopIteration):
            return
        if isinstance(how, exceptions.RayTaskError):  # the process is alive, and the code in it raised
            self._cancel()
            raise (how.cause if isinstance(how.cause, RayFBNNError) else how) from None
        # The list of nodes may still have the one that died.
        if isinstance(how, exceptions.NodeDiedError) or self._is_lost(task.node):
            warn_of_death(task.node, 1)
            return
        self._failures += 1
        if self._failures > self._options.max_failures:
            self._cancel()
            raise WorkerError(
                f"{self._failures} drivers of the study died, more than max_failures ="
                f" {self._options.max_failures} allows; committed work is kept: {cause_of(how)}"
            ) from how

    def _is_lost(self, node: str) -> bool:
        nodes = self._watch.look_again()
        return bool(node) and node not in nodes.alive - nodes.draining

    def _start(self) -> Any:
        return self._remote.options(num_returns="streaming").remote(*self._arguments)

    def _cancel(self) -> None:
        """Interrupt the tasks as a signal does. A task that is sampling commits its iterations first."""
        for reference in self._tasks:
            self._ray.cancel(reference)

    def _kill(self) -> None:
        """Kill the tasks that have not ended, because one that is stopped or hangs would never end."""
        begun = [(task.worker, task.node) for task in list(self._tasks.values()) if task.worker]
        if begun:
            names = ", ".join(at_most_ten(worker for worker, _ in begun))
            say_from_handler(f"{names}: did not end in time after the signal, killed")
            kill_processes(self._ray, begun)


def _lines(folder: str, options: RunOptions) -> Iterator[_Node | str]:
    """Drive a study as a task of a cluster."""
    yield _Node(worker_name(), current_node())
    yield from drive(StudyFiles.open(folder), options)
