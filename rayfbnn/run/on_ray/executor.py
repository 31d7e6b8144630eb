"""The executor that runs batches by Ray actors, on this machine or a cluster."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from typing import Any, Self

from rayfbnn.errors import RayFBNNError, WorkerError
from rayfbnn.run.on_ray.cluster import ONE_THREAD, connect, first_line, workers_of_cluster
from rayfbnn.run.on_ray.worker import NEWS_SECONDS, Worker
from rayfbnn.run.sampler import Progress
from rayfbnn.store.storage.places import Place

_log = logging.getLogger(__name__)


@dataclass
class _Actor:
    handle: Any
    name: str = "a worker that had not started"
    batch: int | None = None  # number of the batch that it is running
    is_ready: bool = False


class RayExecutor:
    """Runs batches on Ray actors, one for each core or GPU; up to max_failures actors that die are replaced.

    Without an address Ray is started on this machine, on the loopback interface, without its dashboard, and
    stopped at the end. The store's path must mean the same folder on every node.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        address: str | None = None,
        max_failures: int = 3,
        gpus_per_worker: float = 0,
        worker_class: type[Worker] = Worker,
    ) -> None:
        self.failures = 0
        self._workers = workers
        self._max_failures = max_failures
        self._gpus_per_worker = gpus_per_worker
        self._worker_class = worker_class
        self._stop = threading.Event()
        self._actors: list[_Actor] = []
        # Actor and question, by Ray's reference to the answer, or to the answers of a block.
        self._pending: dict[Any, tuple[_Actor, str]] = {}
        self._until: int | None = None
        self._redirected = ExitStack()
        self._ray, self._is_ours = connect(workers, address)

    def run(
        self, store_path: Place, batches: Sequence[int], *, until: int | None = None
    ) -> Iterator[Progress]:
        """Run the batches on the actors, and yield their progress as it arrives."""
        waiting, pending = deque(batches), self._pending
        self._until = until
        wanted = min(self._wanted_workers(), len(batches))
        for _ in range(wanted - len(self._actors)):
            self._start_actor(store_path, pending)
        is_stopping = False
        while waiting or any(actor.batch is not None for actor in self._actors):
            if self._stop.is_set():
                if not is_stopping:
                    is_stopping = True
                    self._tell_actors_to_stop()
                waiting.clear()
                if all(actor.batch is None for actor in self._actors):
                    return
            self._give_work(waiting, pending)
            answered, _ = self._ray.wait(list(pending), num_returns=1, timeout=NEWS_SECONDS)
            for reference in answered:
                actor, question = pending.pop(reference)
                progress = self._receive(reference, actor, question, store_path, waiting, pending)
                if progress is not None:
                    yield progress

    def _wanted_workers(self) -> int:
        """Return how many workers to start: on this machine not more than there are GPUs for.

        WorkerError if workers need a GPU of this machine and Ray finds none: they would wait without an end.
        A cluster may add nodes.
        """
        room = workers_of_cluster(self._ray, self._gpus_per_worker)
        if not (self._gpus_per_worker and self._is_ours):
            return room if self._workers is None else self._workers
        if self._ray.cluster_resources().get("GPU", 0) < self._gpus_per_worker:
            raise WorkerError("workers: Ray finds no GPU here; workers = 0 runs in this process, without Ray")
        return room if self._workers is None else min(self._workers, room)

    def request_stop(self) -> None:
        """End `run` after the iterations under way, which are committed; a signal handler may call this."""
        self._stop.set()

    def __enter__(self) -> Self:
        # Ray prints messages of its own on standard output, which belongs to the result.
        self._redirected.enter_context(redirect_stdout(sys.stderr))
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._redirected:
            if self._is_ours:
                self._ray.shutdown()
                return
            for actor in self._actors:
                self._ray.kill(actor.handle)

    def _start_actor(self, store_path: Place, pending: dict[Any, tuple[_Actor, str]]) -> None:
        # No restarts and no retries: a retried call runs its side effects twice, and a restarted actor has
        # lost its state anyway. A new actor reads the last commit and repeats the same numbers.
        remote_class = self._ray.remote(
            num_cpus=1, num_gpus=self._gpus_per_worker, max_restarts=0, max_task_retries=0
        )(self._worker_class)
        options = {} if self._is_ours else {"runtime_env": {"env_vars": ONE_THREAD}}
        actor = _Actor(remote_class.options(**options).remote(str(store_path), _is_cancelled))
        self._actors.append(actor)
        pending[actor.handle.ready.remote()] = (actor, "ready")

    def _give_work(self, waiting: deque[int], pending: dict[Any, tuple[_Actor, str]]) -> None:
        for actor in self._actors:
            if waiting and actor.is_ready and actor.batch is None:
                actor.batch = waiting.popleft()
                run_block = actor.handle.run_block.options(num_returns="streaming")
                pending[run_block.remote(actor.batch)] = (actor, "block")

    def _receive(
        self,
        reference: Any,
        actor: _Actor,
        question: str,
        store_path: Place,
        waiting: deque[int],
        pending: dict[Any, tuple[_Actor, str]],
    ) -> Progress | None:
        """Handle an answer and return its progress, if any; a dead actor is replaced."""
        from ray.exceptions import RayError, RayTaskError, TaskCancelledError

        try:
            answer = self._ray.get(next(reference) if question == "block" else reference)
        except TaskCancelledError:  # the block was told to stop and did, and its last answer is lost
            pending[actor.handle.latest.remote()] = (actor, "latest")
            return None
        except RayTaskError as exc:  # the worker is alive; the code that it ran raised
            self._let_others_finish()
            if isinstance(exc.cause, RayFBNNError):
                raise exc.cause from None
            raise
        except RayError as exc:
            if actor in self._actors:
                self._remove_dead(actor, exc, waiting, pending)
                if not self._stop.is_set():
                    self._start_actor(store_path, pending)
            return None
        if question == "ready":
            actor.name, actor.is_ready = answer, True
            return None
        if question == "block" and not answer.committed:
            pending[reference] = (actor, "block")  # there is more to come
            return answer  # type: ignore[no-any-return]
        if question == "latest" and (answer is None or answer.batch != actor.batch):
            actor.batch = None  # it was told to stop before it started the block
            return None
        if not answer.has_done(self._until):
            waiting.append(answer.batch)
        actor.batch = None
        return answer  # type: ignore[no-any-return]

    def _remove_dead(
        self, actor: _Actor, cause: Exception, waiting: deque[int], pending: dict[Any, tuple[_Actor, str]]
    ) -> None:
        self.failures += 1
        self._actors.remove(actor)
        for reference in [reference for reference, (asked, _) in pending.items() if asked is actor]:
            del pending[reference]
        self._ray.kill(actor.handle)  # Ray may have lost an actor that is still alive
        if actor.batch is not None:
            waiting.appendleft(actor.batch)
        if self.failures > self._max_failures:
            self._let_others_finish()
            doing = "starting" if actor.batch is None else f"running batch {actor.batch}"
            raise WorkerError(
                f"{self.failures} workers died, more than max_failures = {self._max_failures} allows; the"
                f" last was {actor.name}, {doing}: {first_line(cause)}. What was committed is kept:"
                " `resume` continues from there"
            ) from cause
        _log.warning("%s died: %s; it is replaced", actor.name, first_line(cause))

    def _tell_actors_to_stop(self) -> None:
        for reference, (_, question) in self._pending.items():
            if question == "block":
                self._ray.cancel(reference)

    def _let_others_finish(self) -> None:
        """Let the other actors commit what they have done, before an error ends the run."""
        self._tell_actors_to_stop()
        # An actor answers in turn.
        answers = [actor.handle.latest.remote() for actor in self._actors if actor.batch is not None]
        if answers:
            self._ray.wait(answers, num_returns=len(answers), timeout=60)


def _is_cancelled() -> bool:
    """Return True if the block that the current actor is running was told to stop."""
    import ray

    return bool(ray.get_runtime_context().is_canceled())
