"""The protocol of a transport for messages, and the transport inside one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rayfbnn.ring.message import Message
from rayfbnn.ring.owner import Owner


class Transport(Protocol):
    """A carrier of messages between a home and the owners of the parts.

    A message goes to the owner of its next part, then to the owner of the part after that, and finally home.
    It may get lost, arrive more than once, or arrive late; its home handles these cases.
    """

    def send(self, message: Message) -> None:
        """Send a message to the owner of `message.part`."""
        ...

    def receive(self, seconds: float) -> Message | None:
        """Return a message that has come home; None if none arrives within this many seconds."""
        ...


class InProcess:
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
