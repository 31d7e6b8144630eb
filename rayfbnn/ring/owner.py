"""The owner of some parts, which makes the visits to them, one message at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rayfbnn.ring.message import Message
from rayfbnn.ring.parts import Part


class Owner:
    """A worker that holds some of the parts.

    An owner that has seen a later attempt drops the messages of earlier ones, because their home no longer
    waits for them and they would pile up. Dropping them has no influence on any result.
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        """Start with these parts."""
        self._parts = {part.number: part for part in parts}
        self._latest: dict[str, tuple[int, int]] = {}  # by home: piece and attempt

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of the parts."""
        return tuple(self._parts)

    def add(self, parts: Iterable[Part]) -> None:
        """Add further parts."""
        self._parts |= {part.number: part for part in parts}

    def keep(self, numbers: Collection[int]) -> None:
        """Remove all other parts."""
        self._parts = {number: part for number, part in self._parts.items() if number in numbers}

    def forward(self, message: Message, numbers: Collection[int] | None = None) -> Message | None:
        """Make all visits that are due here, and return the message after them; None if it is dropped.

        numbers  the parts to visit; by default all parts of this owner
        """
        seen = message.key.piece, message.key.attempt
        latest = self._latest.get(message.key.home, seen)
        if seen < latest:
            return None
        self._latest[message.key.home] = seen
        visited = self._parts if numbers is None else numbers
        while message.part is not None and message.part in visited:
            visit = message.itinerary.visit(message.number)
            message = self._parts[visit.part].visit(message, visit)
        return message
