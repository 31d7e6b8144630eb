"""The driver's record of the owners of parts of the training cases, which follow the nodes of a cluster."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rayfbnn.run.on_ray.actors import PartsWorker, current_node
from rayfbnn.run.on_ray.nodes import Nodes, cause_of_task
from rayfbnn.run.on_ray.transport import RemoteOwner, shares
from rayfbnn.store.storage.places import Place

_ASK_SECONDS = 1.0  # between two questions to an owner that is not up
_SETTLE_SECONDS = 30.0  # wait for owners that are starting, before the parts are divided without them
_log = logging.getLogger(__name__)

_Question: TypeAlias = Literal["ready", "hold"]


@dataclass(eq=False)
class _Owner:
    """An owner as the driver knows it.

    handle  Ray's handle
    parts   its parts in the present division
    node    Ray's id of its node; "" unless it is up
    asked   when it was last asked whether it is up, on the monotonic clock
    """

    handle: Any
    parts: tuple[int, ...] = ()
    node: str = ""
    asked: float = 0.0


class Owners:
    """The actors that own the parts.

    The parts are divided anew when owners have joined, or are to leave. Each owner first reads its parts of
    the next division, while chains travel to the present owners. Once it `is_read`, the driver stops all
    blocks, calls `divide`, and names the new owners to the homes with their next blocks. No draw depends on
    the division.

    Ray restarts an owner that dies, on another node if its own is gone. The owner then reads the parts that
    it is asked for, and the division does not change unless that takes too long.
    """

    def __init__(self, ray: Any, n_parts: int, environment: dict[str, str]) -> None:
        """Take Ray's module, the number of parts, and the environment variables of an owner."""
        self.present: tuple[RemoteOwner, ...] = ()  # those that chains travel to, which have every part once
        self._ray, self._n_parts = ray, n_parts
        # A visit is a function of its message and the part, so repeating one is harmless. But a message that
        # kills its owner again and again must end the run. Therefore the home decides what to repeat.
        remote_class = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)(PartsWorker)
        options = {"runtime_env": {"env_vars": environment}} if environment else {}
        self._remote_class = remote_class.options(**options)
        self.all: list[_Owner] = []  # one without a node is not up
        self._questions: dict[Any, tuple[_Owner, _Question]] = {}  # by Ray's reference to the answer
        self._next: dict[_Owner, tuple[int, ...]] = {}  # the next division, whose parts are being read
        self._announced: set[_Owner] = set()  # owners on nodes that will be taken away
        self._changed = 0.0  # when an owner was last started or lost

    @property
    def is_read(self) -> bool:
        """True if the next division has been read, and waits for the chains to be at home."""
        return bool(self._next) and not any(question == "hold" for _, question in self._questions.values())

    @property
    def has_lost_parts(self) -> bool:
        """True if an owner that chains travel to is not up."""
        return sum(len(owner.parts) for owner in self.all if owner.node) < self._n_parts

    def start(self, store_path: Place, count: int) -> None:
        """Start `count` owners, unless they have been started. They read their parts at once."""
        if self.all:
            return
        self._arguments = str(store_path), current_node, os.nice(0)
        for parts in shares([()] * count, self._n_parts):
            self._start(parts).handle.hold.remote(parts)
        self._set_present()

    def follow(self, nodes: Nodes, wanted: int) -> None:
        """Let owners join and leave as nodes do. This is called again and again, and never waits.

        wanted  number of owners to have
        """
        self._hear()
        for owner in self.all:
            if owner.node and owner.node not in nodes.alive:
                self._lose(owner)
        staying = [owner for owner in self.all if owner.node not in nodes.draining]
        for owner in [owner for owner in staying if not owner.node][: max(0, len(staying) - wanted)]:
            self._end(owner)
        for _ in range(wanted - len(staying)):
            self._start()
        self._ask()
        up = [owner for owner in self.all if owner.node and owner.node not in nodes.draining]
        del up[self._n_parts :]
        if not self._next.keys() <= set(up):
            self._next = {}
        if not self._next and up and self._is_due(up):
            self._next = dict(zip(up, shares([o.parts for o in up], self._n_parts), strict=True))
            for owner, parts in self._next.items():
                self._questions[owner.handle.hold.remote(parts)] = owner, "hold"

    def divide(self, nodes: Nodes) -> None:
        """Make the next division the present one, and end the owners that have no parts in it.

        No chains may be under way. Owners that are starting stay, for a later division.
        """
        for owner in list(self.all):
            had_parts, owner.parts = bool(owner.parts), self._next.get(owner, ())
            if owner.parts:
                owner.handle.keep.remote(owner.parts)
            elif had_parts or owner.node in nodes.draining:
                self._end(owner)
        self._next = {}
        self._set_present()

    def _set_present(self) -> None:
        self.present = tuple(RemoteOwner(owner.handle, owner.parts) for owner in self.all if owner.parts)

    def leaving(self, nodes: Nodes) -> Counter[str]:
        """Return the number of owners on each node that will be taken away, without those counted before."""
        new = [o for o in self.all if o.node in nodes.draining and o not in self._announced]
        self._announced.update(new)
        return Counter(owner.node for owner in new)

    def end(self) -> None:
        """End the owners."""
        for owner in list(self.all):
            self._end(owner)

    def _start(self, parts: tuple[int, ...] = ()) -> _Owner:
        owner = _Owner(self._remote_class.remote(*self._arguments), parts)
        self.all.append(owner)
        self._changed = time.monotonic()
        return owner

    def _hear(self) -> None:
        if not self._questions:
            return
        from ray.exceptions import RayError, RayTaskError

        references = list(self._questions)
        answered, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        for reference in answered:
            owner, question = self._questions.pop(reference)
            try:
                answer = self._ray.get(reference)
            except RayTaskError as exc:  # the owner is alive; the code that it ran raised
                raise cause_of_task(exc) from None
            except RayError as exc:
                _log.debug("an owner of parts cannot be reached: %s", exc)
                self._lose(owner)
                continue
            if question == "ready":
                owner.node = answer

    def _lose(self, owner: _Owner) -> None:
        """Treat an owner as not up until it answers again."""
        owner.node = ""
        self._next = {}
        self._changed = time.monotonic()

    def _ask(self) -> None:
        asked = {owner for owner, question in self._questions.values() if question == "ready"}
        now = time.monotonic()
        for owner in self.all:
            if not owner.node and owner not in asked and now - owner.asked >= _ASK_SECONDS:
                owner.asked = now
                self._questions[owner.handle.ready.remote()] = owner, "ready"

    def _is_due(self, up: list[_Owner]) -> bool:
        """Return True if the parts should be divided among the owners that are up.

        These must differ from the owners that have the parts, and no other owner may be worth waiting for.
        """
        if all(owner.parts for owner in up) and sum(len(owner.parts) for owner in up) == self._n_parts:
            return False
        is_settled = all(owner.node for owner in self.all)
        return is_settled or time.monotonic() - self._changed >= _SETTLE_SECONDS

    def _end(self, owner: _Owner) -> None:
        self.all.remove(owner)
        self._questions = {ref: asked for ref, asked in self._questions.items() if asked[0] is not owner}
        self._ray.kill(owner.handle)
