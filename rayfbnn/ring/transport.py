"""Transports, which carry messages to the owners of parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

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


class Transport(Protocol):
    """A carrier of messages between a home and the owners of the parts.

    A message goes to the owner of its next part, then to the owner of the part after that, and finally home.
    It may get lost, arrive more than once, or arrive late; its home handles these cases.
    """

    def send(self, message: Message) -> None:
        """Send a message to the owner of `message.part`."""

    def receive(self, seconds: float) -> Message | None:
        """Return a message that has come home; None if none arrives within this many seconds."""


class LocalTransport:
    """A transport inside this process. The owners make their visits while the home waits."""

    def __init__(self, owners: Sequence[Owner]) -> None:
        """Start with these owners, which together have every part once."""
        self._owner_of = {part: owner for owner in owners for part in owner.parts}
        self._under_way: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Add a message to the end of the queue."""
        self._under_way.append(message)

    def receive(self, seconds: float) -> Message | None:
        """Let the owners work until a message comes home; return None at once if no message is under way."""
        while self._under_way:
            message = self._under_way.popleft()
            if message.part is None:
                return message
            forwarded = self._owner_of[message.part].forward(message)
            if forwarded is not None:
                self.send(forwarded)
        return None
