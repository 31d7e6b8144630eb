"""A stand-in for Ray: its actors run in this process, and its nodes come and go as a test says."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from rayfbnn.run.on_ray.actors import _is_cancelled, current_node


class Death(Exception):
    """Raised by a worker whose process is to die."""


class StandinRay:
    """The functions of Ray's module that the executor and the transport of messages use.

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
            if handle.node == node:
                handle.lose()

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

    def available_resources(self) -> dict[str, float]:
        """Return what no actor has, like ray.available_resources."""
        held = sum(handle.cpus for handle in self.handles if handle.node and not handle.is_dead)
        return {**self.cluster_resources(), "CPU": sum(self.cpus.values()) - held}

    def remote(self, **resources: Any) -> Callable[[type], Any]:
        """Make a class of actors, like ray.remote."""

        def of_class(worker_class: type) -> Any:
            def start(options: dict[str, Any], *arguments: Any) -> Handle:
                self.handles.append(Handle(self, worker_class, arguments, resources | options))
                return self.handles[-1]

            return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=partial(start, options)))

        return of_class

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """Wait like ray.wait; the reference that has waited longest is answered first, whoever asks."""
        for handle in self.handles:
            self._place(handle)
        ready = [reference for reference in references if reference.has_fate()]
        return ready[:num_returns], []

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        """Return the value of a reference, like ray.get."""
        self._place(reference.handle)
        if reference.handle.is_dead:
            raise ActorDiedError
        if reference.is_lost():
            raise ActorUnavailableError("its node died", None)
        if reference.handle.node in self.cut_off:
            raise ActorUnavailableError("it cannot be reached", None)
        if not reference.handle.node:
            raise GetTimeoutError("it has not started")
        return reference.answer()

    def cancel(self, reference: Any, *, recursive: bool) -> None:
        """Cancel like ray.cancel: the block ends after the iteration under way."""
        reference.handle.is_stopped = True

    def kill(self, handle: Handle) -> None:
        """Kill an actor, like ray.kill."""
        handle.is_dead = True

    def _place(self, handle: Handle) -> None:
        if handle.node or handle.is_dead:
            return
        used = Counter(other.node for other in self.handles if not other.is_dead and other.cpus)
        for node, count in self.cpus.items():
            is_open = node not in self.draining | self.cut_off
            if is_open and (used[node] < count or not handle.cpus):
                handle.start(node)
                return


class Handle:
    """An actor, or what will be one when a node has room."""

    def __init__(
        self, ray: StandinRay, worker_class: type, arguments: tuple[Any, ...], resources: dict[str, Any]
    ) -> None:
        self.node, self.is_dead, self.is_stopped = "", False, False
        self.cpus, self._is_restarted = resources["num_cpus"], resources["max_restarts"] != 0
        self.worker_class = worker_class
        questions = {_is_cancelled: lambda: self.is_stopped, current_node: lambda: self.node}
        self._arguments = [questions.get(given, given) for given in arguments]
        self.steps: Iterator[Any] = iter(())  # of the block that it is running
        self.calls: deque[_Call] = deque()  # an actor answers in turn
        self.latest = SimpleNamespace(remote=lambda: _Reference(self, self._latest))
        self.run_block = SimpleNamespace(
            options=lambda **options: SimpleNamespace(remote=lambda *block: _Answers(ray, self, block))
        )

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def start(self, node: str) -> None:
        """Start on a node, for the first time or again."""
        self.node = node
        self.worker = self.worker_class(*self._arguments)

    def lose(self) -> None:
        """Die with the node, and with it all that was to be answered."""
        self.node, self.is_dead = "", not self._is_restarted
        while self.calls:
            self.calls.popleft().is_lost = True

    def _latest(self) -> Any:
        for _ in self.steps:  # an actor answers in turn
            pass
        return self.worker.latest()


class _Method:
    def __init__(self, handle: Handle, name: str, count: int = 1) -> None:
        self._handle, self._name, self._count = handle, name, count

    def options(self, num_returns: int) -> _Method:
        return _Method(self._handle, self._name, num_returns)

    def remote(self, *arguments: Any) -> Any:
        call = _Call(self._handle, self._name, arguments)
        self._handle.calls.append(call)
        if self._count == 1:
            return _Reference(self._handle, call.answer, call)
        return [_Reference(self._handle, partial(call.part, place), call) for place in range(self._count)]


class _Call:
    """A call, which is made when its answer is wanted, or that of a later call."""

    def __init__(self, handle: Handle, name: str, arguments: tuple[Any, ...]) -> None:
        self._handle, self._name, self._arguments = handle, name, arguments
        self.is_lost, self._is_made = False, False

    def part(self, place: int) -> Any:
        return self.answer()[place]

    def answer(self) -> Any:
        while not self._is_made:
            self._handle.calls.popleft()._make()
        return self._value

    def _make(self) -> None:
        self._is_made = True
        given = [one.answer() if isinstance(one, _Reference) else one for one in self._arguments]
        self._value = getattr(self._handle.worker, self._name)(*given)


class _Reference:
    """A reference to one answer; unlike a SimpleNamespace it can be the key of a dictionary."""

    def __init__(self, handle: Handle, answer: Callable[[], Any], call: _Call | None = None) -> None:
        self.handle, self.answer, self._call = handle, answer, call

    def is_lost(self) -> bool:
        return self._call is not None and self._call.is_lost

    def has_fate(self) -> bool:
        return bool(self.handle.node) or self.handle.is_dead or self.is_lost()


class _Answers:
    """A reference to the answers of a block, which is run as they are fetched."""

    def __init__(self, ray: StandinRay, handle: Handle, block: tuple[Any, ...]) -> None:
        handle.is_stopped = False
        self.handle = handle
        self._ray = ray
        handle.steps = handle.worker.run_block(*block)

    def has_fate(self) -> bool:
        return bool(self.handle.node) or self.handle.is_dead

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
