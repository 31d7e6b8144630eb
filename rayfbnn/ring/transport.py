"""How messages travel: the protocol, and the transport inside one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rayfbnn.ring.message import Message
from rayfbnn.ring.owner import Owner


class Transport(Protocol):
    """Carries messages between a home and the owners of the parts.

    A message that is sent goes to the owner of its next part, from there to the owner of the one after it,
    and at last home. It may be lost, arrive more than once, or late: its home sees to that.
    """

    def send(self, message: Message) -> None:
        """Send a message on its way, to the owner of `message.part`."""
        ...

    def receive(self, seconds: float) -> Message | None:
        """Return a message that has come home; None if none comes within so many seconds."""
        ...


class InProcess:
    """Carries messages between owners in this process, which make their visits while the home waits."""

    def __init__(self, owners: Sequence[Owner]) -> None:
        """Take the owners, who together have every part once."""
        self._owner_of = {part: owner for owner in owners for part in owner.parts}
        self._under_way: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Put a message behind those that are under way."""
        self._under_way.append(message)

    def receive(self, seconds: float) -> Message | None:
        """Let the owners work until a message comes home; None at once if none is under way."""
        while self._under_way:
            message = self._under_way.popleft()
            if message.part is None:
                return message
            forwarded = self._owner_of[message.part].forward(message)
            if forwarded is not None:
                self.send(forwarded)
        return None
