"""A stand-in for Ray: its actors run in this process, and its nodes come and go as a test says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError


class Death(Exception):
    """Raised by a worker whose process is to die."""


class StandinRay:
    """The functions of Ray's module that the executor uses.

    `add` and `lose` change the nodes, `draining` and `cut_off` have those that will be taken away and those
    that cannot be reached at present. `be_silent` keeps the head from answering. `blocks` counts the blocks
    that each node has run to their commit.
    """

    def __init__(self, **cpus: int) -> None:
        self.cpus: dict[str, int] = {}
        self.gpus: Counter[str] = Counter()
        self.draining: set[str] = set()
        self.cut_off: set[str] = set()
        self.blocks: Counter[str] = Counter()
        self.handles: list[Handle] = []
        self._answers = threading.Event()
        self._answers.set()
        ask = SimpleNamespace(get_draining_nodes=lambda: dict.fromkeys(self.draining, 0))
        self._private = SimpleNamespace(state=SimpleNamespace(state=ask))
        for node, count in cpus.items():
            self.add(node, count)

    def add(self, node: str, cpus: int, gpus: int = 0) -> None:
        """Let a node join."""
        self.cpus[node], self.gpus[node] = cpus, gpus

    def lose(self, node: str) -> None:
        """Kill a node with all actors on it."""
        del self.cpus[node], self.gpus[node]
        self.cut_off.discard(node)
        for handle in self.handles:
            handle.is_dead |= handle.node == node

    def be_silent(self) -> None:
        """Let the head answer no question any more, until `speak`."""
        self._answers.clear()

    def speak(self) -> None:
        """Let the head answer again."""
        self._answers.set()

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are up and one that died long ago, like ray.nodes."""
        self._answers.wait()
        up = [
            {"NodeID": node, "Alive": True, "Resources": {"CPU": count, "GPU": self.gpus[node]}}
            for node, count in self.cpus.items()
        ]
        return [*up, {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 8, "GPU": 8}}]

    def cluster_resources(self) -> dict[str, float]:
        """Return the resources of the nodes, like ray.cluster_resources."""
        return {"CPU": sum(self.cpus.values()), "GPU": self.gpus.total()}

    def remote(self, **resources: Any) -> Callable[[type], Any]:
        """Make a class of actors, like ray.remote."""

        def of_class(worker_class: type) -> Any:
            start = SimpleNamespace(remote=lambda *arguments: self._start(worker_class, arguments))

            def options(**options: Any) -> Any:
                return start

            return SimpleNamespace(options=options)

        return of_class

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """Wait like ray.wait; the reference that has waited longest is answered first, whoever asks."""
        for handle in self.handles:
            self._place(handle)
        ready = [reference for reference in references if reference.handle.node or reference.handle.is_dead]
        return ready[:num_returns], []

    def get(self, reference: Any) -> Any:
        """Return the value of a reference, like ray.get."""
        if reference.handle.is_dead:
            raise ActorDiedError
        if reference.handle.node in self.cut_off:
            raise ActorUnavailableError("it cannot be reached", None)
        return reference.answer()

    def cancel(self, reference: Any, *, recursive: bool) -> None:
        """Cancel like ray.cancel: the block ends after the iteration under way."""
        reference.handle.is_stopped = True

    def kill(self, handle: Handle) -> None:
        """Kill an actor, like ray.kill."""
        handle.is_dead = True

    def _start(self, worker_class: type, arguments: tuple[Any, ...]) -> Handle:
        self.handles.append(Handle(self, worker_class, arguments[0]))
        return self.handles[-1]

    def _place(self, handle: Handle) -> None:
        if handle.node or handle.is_dead:
            return
        used = Counter(other.node for other in self.handles if not other.is_dead)
        for node, count in self.cpus.items():
            if node not in self.draining | self.cut_off and used[node] < count:
                handle.node = node
                return


class Handle:
    """An actor, or what will be one when a node has room."""

    def __init__(self, ray: StandinRay, worker_class: type, store_path: str) -> None:
        self.node, self.is_dead, self.is_stopped = "", False, False
        self.worker = worker_class(store_path, lambda: self.is_stopped, lambda: self.node)
        self.ready = _Method(self, lambda: self.worker.ready())
        self.steps: Iterator[Any] = iter(())  # of the block that it is running
        self.latest = _Method(self, self._latest)
        self.run_block = SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=lambda batch: _Answers(ray, self, batch))
        )

    def _latest(self) -> Any:
        for _ in self.steps:  # an actor answers in turn
            pass
        return self.worker.latest()


class _Method:
    def __init__(self, handle: Handle, answer: Callable[[], Any]) -> None:
        self._handle, self._answer = handle, answer

    def remote(self) -> Any:
        return _Reference(self._handle, self._answer)


class _Reference:
    """A reference to one answer; unlike a SimpleNamespace it can be the key of a dictionary."""

    def __init__(self, handle: Handle, answer: Callable[[], Any]) -> None:
        self.handle, self.answer = handle, answer


class _Answers:
    """A reference to the answers of a block, which is run as they are fetched."""

    def __init__(self, ray: StandinRay, handle: Handle, batch: int) -> None:
        handle.is_stopped = False
        self.handle = handle
        self._ray = ray
        handle.steps = handle.worker.run_block(batch)

    def __next__(self) -> _Reference:
        return _Reference(self.handle, self._next)

    def _next(self) -> Any:
        try:
            progress = next(self.handle.steps)
        except Death as exc:
            self.handle.is_dead = True
            raise ActorDiedError from exc
        if progress.committed:
            self._ray.blocks[self.handle.node] += 1
        return progress
