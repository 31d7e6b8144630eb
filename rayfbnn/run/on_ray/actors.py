"""The Ray actors of a run: their work, their start, the questions to them, and their end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rayfbnn.memory import give_back_freed_memory
from rayfbnn.ring.message import Message
from rayfbnn.ring.transport import Owner
from rayfbnn.run.executor import follow_length, job_of, worker_name
from rayfbnn.run.in_parts import parts_of_run
from rayfbnn.run.job import Job, Progress
from rayfbnn.run.on_ray.transport import RayTransport, RemoteOwner
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store

_ASK_AGAIN_SECONDS = 1.0

Question: TypeAlias = Literal["ready", "block", "latest"]
Owning: TypeAlias = tuple[RemoteOwner, ...] | None


@dataclass(eq=False)
class Actor:
    """An actor as the driver knows it.

    handle       Ray's handle
    name, node   host and process id, and Ray's id of its node, once it has started
    batch        the batch that it is running, if any
    is_ready     whether it has started
    is_leaving   whether it gets no more work, because its node will be taken away
    unreachable_since  when it first could not be reached, on the monotonic clock; None if it can be reached
    """

    handle: Any
    name: str = "a worker that had not started"
    node: str = ""
    batch: Any = None
    is_ready: bool = False
    is_leaving: bool = False
    unreachable_since: float | None = None


class Actors:
    """The actors of a run, and the questions that they have not answered yet."""

    def __init__(
        self,
        ray: Any,
        worker_class: type[Worker],
        environment: dict[str, str],
        *,
        cpus: float = 1,
        gpus: float = 0,
    ) -> None:
        """Take Ray's module, the class of the actors, their environment variables, and their resources."""
        self._ray = ray
        # No restarts and no retries: a retried call runs its side effects twice, and a restarted actor has
        # lost its state anyway. A new actor reads the last commit and repeats the same numbers.
        remote_class = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(
            worker_class
        )
        options = {"runtime_env": {"env_vars": environment}} if environment else {}
        self._remote_class = remote_class.options(**options)
        self._all: list[Actor] = []
        # By Ray's reference to the answer, or to the answers of a block.
        self._pending: dict[Any, tuple[Actor, Question]] = {}
        self._to_ask: list[tuple[float, Actor]] = []  # with the time to ask, on the monotonic clock

    def __iter__(self) -> Iterator[Actor]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def start(self, store_path: Place) -> None:
        """Start an actor. Ray starts it once there is room, and the actor is ready when it answers."""
        actor = Actor(self._remote_class.remote(str(store_path), _is_cancelled, current_node, os.nice(0)))
        self._all.append(actor)
        self._pending[actor.handle.ready.remote()] = (actor, "ready")

    def greet_idle(self) -> None:
        """Ask the actors without work whether they are alive. One may have died since its last block."""
        for actor in self._all:
            if actor.is_ready and actor.batch is None:
                actor.is_ready = False
                self._pending[actor.handle.ready.remote()] = (actor, "ready")

    def ask_for_block(
        self, actor: Actor, batch: Any, owners: Owning = None, *, until: int | None = None
    ) -> None:
        """Let an actor run the next block of a batch; the arguments are those of `Worker.run_block`."""
        actor.batch = batch
        run_block = actor.handle.run_block.options(num_returns="streaming")
        self._pending[run_block.remote(batch, owners, until)] = actor, "block"

    def ask_for_latest(self, actor: Actor) -> None:
        """Ask an actor for its latest progress."""
        self._pending[actor.handle.latest.remote()] = (actor, "latest")

    def answered(self, seconds: float) -> list[tuple[Any, Actor, Question]]:
        """Wait for an answer, remove it from the pending ones and return it; [] if none comes in time."""
        self._ask_those_that_are_due()
        if not self._pending:
            time.sleep(seconds)
            return []
        references, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=seconds)
        return [(reference, *self._pending.pop(reference)) for reference in references]

    def ask_again(self, actor: Actor) -> None:
        """Ask an actor that could not be reached again, a second later."""
        self._to_ask.append((time.monotonic() + _ASK_AGAIN_SECONDS, actor))

    def expect_more(self, reference: Any, actor: Actor) -> None:
        """Wait for further answers about the same block."""
        self._pending[reference] = (actor, "block")

    def _ask_those_that_are_due(self) -> None:
        now = time.monotonic()
        due = [actor for when, actor in self._to_ask if when <= now]
        self._to_ask = [(when, actor) for when, actor in self._to_ask if when > now]
        for actor in due:
            if actor.is_ready:
                self.ask_for_latest(actor)
            else:
                self._pending[actor.handle.ready.remote()] = (actor, "ready")

    def stop_blocks(self, of: Actor | None = None) -> None:
        """Tell one actor, or all, to end the block after the current iterations, and to commit them."""
        for reference, (actor, question) in self._pending.items():
            if question == "block" and of in (None, actor):
                self._ray.cancel(reference, recursive=False)  # calls to owners continue

    def let_finish(self, seconds: float) -> None:
        """Stop all blocks, and wait for their commits for at most `seconds`."""
        self.stop_blocks()
        # An actor answers its questions in order.
        answers = [actor.handle.latest.remote() for actor in self._all if actor.batch is not None]
        if answers:
            self._ray.wait(answers, num_returns=len(answers), timeout=seconds)

    def remove(self, actor: Actor, *, is_killed: bool = True) -> None:
        """Forget an actor and its questions. Kill it too, because Ray may have lost one that is alive."""
        self._all.remove(actor)
        self._to_ask = [(when, other) for when, other in self._to_ask if other is not actor]
        for reference in [reference for reference, (asked, _) in self._pending.items() if asked is actor]:
            del self._pending[reference]
        if is_killed:
            self._ray.kill(actor.handle)


def _is_cancelled() -> bool:
    import ray

    return bool(ray.get_runtime_context().is_canceled())


def current_node() -> str:
    """Return Ray's id of the node that the current actor or task runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


class PartsWorker:
    """The work of an actor that owns parts.

    Its only state is its cases. It reads them when they are needed, so Ray may restart it.
    """

    def __init__(self, store_path: str, node: Callable[[], str] = lambda: "", niceness: int = 0) -> None:
        """Take the store, a function that asks Ray for the node, and the least niceness of this process."""
        os.nice(max(0, niceness - os.nice(0)))
        self._store_path, self._node = store_path, node
        self._owner = Owner()

    def ready(self) -> str:
        """Return the node of this worker, once it is up."""
        return self._node()

    def hold(self, parts: Sequence[int]) -> None:
        """Read the parts that this worker does not have yet. Their numbers are in ascending order."""
        missing = [number for number in parts if number not in self._owner.parts]
        if missing:
            self._owner.add(parts_of_run(Store.open(self._store_path), missing))
            give_back_freed_memory()

    def keep(self, parts: Collection[int]) -> None:
        """Drop all other parts."""
        self._owner.keep(parts)

    def forward(self, message: Message, parts: Sequence[int]) -> tuple[bool, Message | None]:
        """Make all visits that are due here. Return whether the message continues, and the message.

        parts  the parts of this worker, of which one that was restarted has none yet
        """
        self.hold(parts)
        forwarded = self._owner.forward(message, parts)
        return forwarded is not None, forwarded


NEWS_SECONDS = 0.5  # between two reports of a worker; it may take this long to notice a stop


class Worker:
    """The work of a Ray actor: it runs blocks in its only thread, and reports its progress meanwhile.

    A second thread would get the interpreter a hundred times a second, whenever Ray checks for signals. That
    made two actors 2 to 3 % slower than two processes. This is a plain class, which can be tested without
    Ray. `is_stopped` is called after every iteration.
    """

    noun = "batch"  # what it runs, in messages

    def __init__(
        self,
        store_path: str,
        is_stopped: Callable[[], bool] = lambda: False,
        node: Callable[[], str] = lambda: "",
        niceness: int = 0,
    ) -> None:
        """Take the store, two functions that ask Ray, and the least niceness of this process."""
        os.nice(max(0, niceness - os.nice(0)))
        self._store_path = store_path
        self._is_stopped = is_stopped
        self._node = node
        self._transport: RayTransport | None = None
        self._sampler: Job | None = None
        self._steps: Iterator[Progress] = iter(())  # steps of the block that was run last
        self._is_finishing = False
        self._latest: Progress | None = None

    def ready(self) -> tuple[str, str]:
        """Return the worker's host and process id, and its node, once it is up."""
        return worker_name(), self._node()

    def run_block(self, batch: int, owners: Owning = None, until: int | None = None) -> Iterator[Progress]:
        """Run and commit the batch's next block. Yield progress twice a second, and after the commit.

        owners  the owners of the training cases; if given, chains travel to them, and the worker has no cases
        until   iterations that the run has at least; it may have become longer since the last block
        """
        if self._sampler is None:  # not in __init__, where Ray hides the cause of an error
            self._sampler = self._job(owners)
            give_back_freed_memory()  # used for reading the cases
        elif self._transport is not None and owners is not None:
            self._transport.adopt(owners)
        follow_length(self._sampler, until)
        self._is_finishing, reported = False, time.monotonic()
        self._steps = self._sampler.run_block(
            batch, should_stop=lambda: self._is_finishing or self.should_stop()
        )
        for self._latest in self._steps:  # noqa: B020, an attribute of self and not self
            if self._latest.committed or time.monotonic() - reported >= NEWS_SECONDS:
                reported = time.monotonic()
                yield self._latest

    def _job(self, owners: Owning) -> Job:
        store = Store.open(self._store_path)
        if owners is None:
            return job_of(store, worker=worker_name())
        self._transport = RayTransport(owners)
        return job_of(store, worker=worker_name(), transport=self._transport, n_owners=len(owners))

    def should_stop(self) -> bool:
        """Return True to stop. This is called after every iteration; tests kill or delay a worker here."""
        return self._is_stopped()

    def latest(self) -> Progress | None:
        """Return the latest progress of the block that was run last; None before the first block.

        Ray drops the generator of a block that is told to stop while an answer is on its way. The finished
        iterations of such a block are committed here. They cannot be committed as the generator is closed:
        the garbage collector may close it at any moment and in any thread, and nothing may be sampled there.
        """
        self._is_finishing = True
        for self._latest in self._steps:  # noqa: B020, runs on to the commit
            pass
        return self._latest
