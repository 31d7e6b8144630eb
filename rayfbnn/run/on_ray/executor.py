"""Runs batches on Ray actors, on this machine or on a cluster."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

from rayfbnn.errors import WorkerError, at_most_ten
from rayfbnn.run.on_ray.actors import NEWS_SECONDS, Actor, Actors, Question, Worker
from rayfbnn.run.on_ray.cluster import (
    WORKER_ENVIRONMENT,
    cause_of,
    connect,
    result_alone_on_stdout,
    session_folder,
    stop_ray,
)
from rayfbnn.run.on_ray.nodes import (
    Deadline,
    NodeWatch,
    Waiting,
    cause_of_task,
    kill_processes,
    workers_in_words,
)
from rayfbnn.run.on_ray.owners import Owners
from rayfbnn.store.storage.places import Place

_log = logging.getLogger(__name__)
_DOUBT_SECONDS = 5.0  # a head that is silent for this long is not asked for anything
_FATE_SECONDS = 60.0  # for Ray to find out whether an unreachable worker has died
_HOMES_PER_OWNER = 2  # an owner then has work while the chains of one batch are elsewhere
_FINISH_SECONDS = 60.0  # for the other actors to commit their work, before an error ends the run
_KILL_SECONDS = 5.0  # for the driver to hear of workers that were killed at the deadline
_LAST_SECONDS = 10.0  # for the actors to commit their work, if the head is gone


class RayExecutor:
    """Runs batches on Ray actors, one for each core or GPU of the present nodes.

    Actors are started as nodes join. An actor that dies is replaced, and its block is computed again, up to
    max_failures times. Without an address, Ray is started on this machine, on the loopback interface, without
    its dashboard, and stopped at the end. The store's path must refer to the same folder on every node.

    With n_parts > 1 and two workers or more, the workers own the parts of the training cases, and the actors
    that run batches send their chains round them. The same holds for one worker of a cluster that may grow.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        address: str | None = None,
        max_failures: int = 3,
        gpus_per_worker: float = 0,
        n_parts: int = 1,
        worker_class: type[Worker] = Worker,
    ) -> None:
        self.failures = 0
        self._workers = workers
        self._max_failures = max_failures
        self._gpus_per_worker = gpus_per_worker
        self._stop = threading.Event()
        self._deadline = Deadline(self._kill_busy)
        self._worker_class = worker_class
        self._waiting: deque[Any] = deque()
        self._until: int | None = None
        self._deaths: Counter[Any] = Counter()  # by batch, since its last commit; None: not yet ready
        self._context = ExitStack()
        self._ray, self._is_ours = connect(workers, address)
        environment = {} if self._is_ours else WORKER_ENVIRONMENT
        self._watch = NodeWatch(self._ray, gpus_per_worker)
        self._n_parts = n_parts
        may_grow = address is not None and workers is None
        is_divided = n_parts > 1 and (may_grow or self._wanted_owners() > 1)
        self._owners = Owners(self._ray, n_parts, environment) if is_divided else None
        self._is_dividing = False  # whether all chains are on their way home, for another division of parts
        # Homes of chains that travel to owners of parts wait most of the time.
        cpus = 0 if is_divided else 1
        self._actors = Actors(self._ray, worker_class, environment, cpus=cpus, gpus=gpus_per_worker)
        session = session_folder() if self._is_ours else ""
        self._room = Waiting(self._ray, gpus_per_worker, session=session)

    @property
    def n_workers(self) -> int:
        """Number of workers: as many as were requested, or as there is room for now."""
        return self._workers or self._watch.nodes.room

    def run(self, store_path: Place, batches: Sequence[Any], *, until: int | None = None) -> Iterator[Any]:
        """Run the batches on the actors, and yield their progress as it arrives.

        Batches are numbers, or whatever the class of the workers takes as a batch; so is their progress.

        Raises ClusterGoneError if the head of the cluster no longer answers.
        """
        self._waiting, self._until = deque(batches), until
        self._actors.greet_idle()
        if self._owners is not None:
            self._room.starting()
            self._owners.start(store_path, self._wanted_owners())
        is_stopping = False
        while self._waiting or self._n_busy:
            if self._stop.is_set():
                if not is_stopping:
                    is_stopping = True
                    self._actors.stop_blocks()
                self._waiting.clear()
                if not self._n_busy:
                    return
                if self._deadline.is_past(_KILL_SECONDS):
                    return
            self._check_head()
            self._leave_nodes()
            self._follow_nodes(store_path)
            self._give_work()
            self._say_what_waits()
            for reference, actor, question in self._actors.answered(NEWS_SECONDS):
                progress = self._receive(reference, actor, question)
                if progress is not None:
                    yield progress

    def request_stop(self, within: float = math.inf) -> None:
        """End `run` once the current iterations are committed. A signal handler may call this.

        within  seconds until workers that have not committed their iterations are killed
        """
        self._deadline.set(within)
        self._stop.set()

    def __enter__(self) -> Self:
        self._context.enter_context(result_alone_on_stdout())
        self._context.enter_context(self._watch)
        self._context.enter_context(self._deadline)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._context:
            if self._is_ours:
                stop_ray(self._ray)
            elif self._watch.seconds_silent() < _DOUBT_SECONDS:
                for actor in self._actors:
                    self._actors.remove(actor)
                if self._owners is not None:
                    self._owners.end()

    @property
    def _n_busy(self) -> int:
        return sum(actor.batch is not None for actor in self._actors)

    def _kill_busy(self) -> None:
        """Kill the workers that have not ended, because one that is stopped or hangs would never end."""
        busy = [actor for actor in self._actors if actor.batch is not None]
        if busy:
            names = ", ".join(at_most_ten(actor.name for actor in busy))
            _log.warning("%s: did not end in time after the signal, killed; committed work is kept", names)
            kill_processes(self._ray, [(actor.name, actor.node) for actor in busy])

    def _check_head(self) -> None:
        if self._watch.is_gone:
            error = self._watch.gone()
            self._actors.let_finish(_LAST_SECONDS)
            raise error

    def _leave_nodes(self) -> None:
        """Stop the actors on nodes that will be taken away, and remove them once they have committed."""
        nodes = self._watch.nodes
        new = [actor for actor in self._actors if actor.node in nodes.draining and not actor.is_leaving]
        for actor in new:
            actor.is_leaving = True
            self._actors.stop_blocks(of=actor)
        leaving = Counter(actor.node for actor in new)
        if self._owners is not None:
            leaving += self._owners.leaving(nodes)
        for node, count in leaving.items():
            _log.warning(
                "node %s will be taken away: its %s will commit and stop, and others continue elsewhere",
                node[:8],
                workers_in_words(count),
            )
        for actor in self._actors:
            if actor.is_leaving and actor.batch is None:
                self._actors.remove(actor)

    def _follow_nodes(self, store_path: Place) -> None:
        """Start as many actors as there is work and room for, or as many as were requested."""
        if self._stop.is_set() or self._watch.seconds_silent() > _DOUBT_SECONDS:
            return
        self._follow_owners()
        n_staying = sum(not actor.is_leaving for actor in self._actors)
        wanted = min(self._wanted_workers(), len(self._waiting) + self._n_busy)
        if wanted > n_staying:
            self._room.starting()
        for _ in range(wanted - n_staying):
            self._actors.start(store_path)

    def _follow_owners(self) -> None:
        """Let the owners of parts follow the nodes, and divide the parts anew once all chains are at home.

        Homes that wait for an owner that is not up may wait for long. They are ended, and others compute
        their blocks again.
        """
        if self._owners is None:
            return
        self._owners.follow(self._watch.nodes, self._wanted_owners())
        was_dividing, self._is_dividing = self._is_dividing, self._owners.is_read
        if self._is_dividing and not was_dividing:
            self._actors.stop_blocks()
        if self._is_dividing and self._owners.has_lost_parts:
            for actor in self._actors:
                if actor.batch is not None:
                    self._put_back(actor)
                    self._actors.remove(actor)
        if self._is_dividing and not self._n_busy:
            self._owners.divide(self._watch.nodes)
            self._is_dividing = False

    def _say_what_waits(self) -> None:
        """Say what the workers that have not started wait for; with owners of parts, what these wait for."""
        if not self._stop.is_set() and self._watch.seconds_silent() < _DOUBT_SECONDS:
            workers = list(self._actors) if self._owners is None else self._owners.all
            n_working = sum(bool(worker.node) for worker in workers)
            self._room.note(len(workers) - n_working, n_working)

    def _wanted_owners(self) -> int:
        """Return how many owners of parts are wanted, at most one for each part."""
        return min(self.n_workers, self._n_parts)

    def _wanted_workers(self) -> int:
        """Return how many workers are wanted; on this machine not more than there are GPUs for.

        Raises WorkerError if workers need a GPU of this machine and Ray finds none, because they would wait
        forever. A cluster may add nodes.
        """
        if self._owners is not None:
            return _HOMES_PER_OWNER * self._wanted_owners()
        if not (self._gpus_per_worker and self._is_ours):
            return self.n_workers
        if self._ray.cluster_resources().get("GPU", 0) < self._gpus_per_worker:
            raise WorkerError("workers: Ray finds no GPU here; use workers = 0 to run without Ray")
        return min(self.n_workers, self._watch.nodes.room)

    def _give_work(self) -> None:
        owners = None if self._owners is None else self._owners.present
        for actor in self._actors:
            is_free = actor.is_ready and not actor.is_leaving and actor.batch is None
            if self._waiting and is_free and not self._is_dividing:
                self._actors.ask_for_block(actor, self._waiting.popleft(), owners, until=self._until)

    def _receive(self, reference: Any, actor: Actor, question: Question) -> Any:
        from ray.exceptions import ActorUnavailableError, RayError, RayTaskError, TaskCancelledError

        try:
            answer = self._ray.get(next(reference) if question == "block" else reference)
        except TaskCancelledError:  # the block stopped as told, and its last answer is lost
            self._actors.ask_for_latest(actor)
            return None
        except RayTaskError as exc:  # the worker is alive; the code that it ran raised
            self._actors.let_finish(_FINISH_SECONDS)
            raise cause_of_task(exc) from None
        except ActorUnavailableError as exc:
            self._wait_for_fate(actor, exc)
            return None
        except RayError as exc:
            self._remove_dead(actor, exc)
            return None
        actor.unreachable_since = None
        if question == "ready":
            (actor.name, actor.node), actor.is_ready = answer, True
            del self._deaths[None]
            return None
        if question == "block" and not answer.committed:
            self._actors.expect_more(reference, actor)
            return answer
        if question == "latest" and (answer is None or answer.batch != actor.batch):
            self._put_back(actor)  # it was told to stop before it started the block
            return None
        actor.batch = None
        del self._deaths[answer.batch]
        if not answer.has_done(self._until):
            self._waiting.append(answer.batch)
        return answer

    def _wait_for_fate(self, actor: Actor, cause: Exception) -> None:
        """Ask an unreachable worker again, until Ray knows whether it or its node has died.

        Ray takes some twelve seconds to notice that a node has died. A worker that can be reached again has
        continued its block meanwhile.
        """
        now = time.monotonic()
        actor.unreachable_since = actor.unreachable_since or now
        if now - actor.unreachable_since < _FATE_SECONDS:
            self._actors.ask_again(actor)
        else:
            self._remove_dead(actor, cause)

    def _put_back(self, actor: Actor) -> None:
        if actor.batch is not None:
            self._waiting.appendleft(actor.batch)
            actor.batch = None

    def _remove_dead(self, actor: Actor, cause: Exception) -> None:
        """Remove a dead actor, and all others on its node if the node is gone or will be taken away.

        Raises WorkerError if too many have died at the same block, or as they started.
        """
        if self._deadline.is_past():
            self._remove(actor)
            self._put_back(actor)
            return
        nodes = self._watch.look_again()
        if actor.node and actor.node not in nodes.alive - nodes.draining:
            self._remove_node(actor.node)
            return
        self._remove(actor)
        batch = actor.batch
        self._put_back(actor)
        was_idle = batch is None and bool(actor.node)  # it died between two calls of `run`, at no block
        if not was_idle:
            self._count_death(batch, actor.name, cause)
        _log.warning("%s died: %s; another worker replaces it", actor.name, cause_of(cause))

    def _count_death(self, batch: Any, name: str, cause: Exception) -> None:
        """Count a worker that died at a batch, or as it started. WorkerError if it was one too many."""
        self._deaths[batch] += 1
        if self._deaths[batch] > self._max_failures:
            self._actors.let_finish(_FINISH_SECONDS)
            doing = "starting" if batch is None else f"running {self._worker_class.noun} {batch}"
            raise WorkerError(
                f"{workers_in_words(self._deaths[batch])} died {doing}, one after another, more than"
                f" max_failures = {self._max_failures} allows; the last was {name}:"
                f" {cause_of(cause)}. Committed work is kept: `resume` continues from there"
            ) from cause

    def _remove_node(self, node: str) -> None:
        """Remove all actors of a dead node. This counts against no block, because no block is the cause."""
        dead = [actor for actor in self._actors if actor.node == node]
        for actor in dead:
            self._remove(actor)
            self._put_back(actor)
        _log.warning("node %s died with %s: other workers continue", node[:8], workers_in_words(len(dead)))

    def _remove(self, actor: Actor) -> None:
        self.failures += 1
        self._actors.remove(actor, is_killed=self._watch.seconds_silent() < _DOUBT_SECONDS)
