"""The work of a Ray actor that owns parts of the training cases: it handles the messages of homes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from rayfbnn.memory import give_back_freed_memory
from rayfbnn.ring.message import Message
from rayfbnn.ring.owner import Owner
from rayfbnn.run.in_parts import parts_of_run
from rayfbnn.run.on_ray.division import Division
from rayfbnn.store.store import Store


class PartsWorker:
    """The work of an actor that owns parts.

    Its only state is its cases and its division. It reads cases when they are needed, so Ray may restart it.
    """

    def __init__(self, store_path: str, node: Callable[[], str] = lambda: "", niceness: int = 0) -> None:
        """Take the store, a function that asks Ray for the node, and the least niceness of this process."""
        os.nice(max(0, niceness - os.nice(0)))
        self._store_path, self._node = store_path, node
        self._owner = Owner()
        self._division: Division | None = None

    def ready(self) -> str:
        """Return the node of this worker, once it is up."""
        return self._node()

    def hold(self, parts: Sequence[int]) -> None:
        """Read the parts that this worker does not have yet. Their numbers are in ascending order."""
        missing = [number for number in parts if number not in self._owner.parts]
        if missing:
            self._owner.add(parts_of_run(Store.open(self._store_path), missing))
            give_back_freed_memory()

    def follow(self, division: Division, parts: Collection[int]) -> None:
        """Adopt a new division, and keep only the parts that this worker has in it."""
        self._division = division
        self._owner.keep(parts)

    def division(self) -> Division | None:
        """Return the latest division that this worker was told about."""
        return self._division

    def forward(
        self, message: Message, parts: Sequence[int], number: int
    ) -> tuple[bool | Division, Message | None]:
        """Make all visits that are due here. Return whether the message continues, and the message.

        A home that knows an older division gets the latest one instead.

        parts   the parts of this worker, as the home knows them
        number  number of the division that the home knows
        """
        if self._division is not None and number < self._division.number:
            return self._division, None
        self.hold(parts)  # a restarted worker has none
        forwarded = self._owner.forward(message, parts)
        return forwarded is not None, forwarded
