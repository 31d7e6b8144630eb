"""The home of a batch, which sends chains round the parts and waits until they are back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from rayfbnn.errors import WorkerError
from rayfbnn.ring.message import Key, Message
from rayfbnn.ring.transport import Transport

_LIMIT_SECONDS = 60.0  # for the first attempt
_MOST_ATTEMPTS = 12


class Home:
    """A sender of messages, which handles one piece after another until every message has come back once.

    Messages that are not back within a time limit are sent again, as a new attempt with twice the limit. A
    message from an earlier attempt or piece, or one that comes back a second time, is dropped. A visit
    depends on the message and the part alone, so losses and delays have no influence on results.
    """

    def __init__(
        self, transport: Transport, *, limit: float = _LIMIT_SECONDS, most_attempts: int = _MOST_ATTEMPTS
    ) -> None:
        """Start at the first piece.

        limit          seconds without any arrival until messages of the first attempt count as lost
        most_attempts  largest number of attempts at one piece; WorkerError is raised after the last
        """
        self._transport = transport
        self._limit = limit
        self._most_attempts = most_attempts
        # The name distinguishes this home's messages from those of earlier homes. No draw depends on it.
        self._name = secrets.token_hex(8)
        self._piece = 0

    def send_and_wait(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages, and return them in the same order after they have come back."""
        self._piece += 1
        arrived: dict[int, Message] = {}
        for attempt in range(1, self._most_attempts + 1):
            for carriage, message in enumerate(messages):
                if carriage not in arrived:
                    self._transport.send(message.named(Key(self._name, self._piece, attempt, carriage)))
            self._receive(arrived, len(messages), attempt, self._limit * 2.0 ** (attempt - 1))
            if len(arrived) == len(messages):
                return [arrived[carriage] for carriage in range(len(messages))]
        raise WorkerError(
            "the chains travelling round the parts of the training cases were lost"
            f" {self._most_attempts} times in a row. Committed draws are kept: `resume` continues from there"
        )

    def _receive(self, arrived: dict[int, Message], n_messages: int, attempt: int, limit: float) -> None:
        """Add to `arrived` the messages of an attempt that come back in time."""
        deadline = time.monotonic() + limit
        while len(arrived) < n_messages:
            message = self._transport.receive(max(0.0, deadline - time.monotonic()))
            if message is None:
                return
            key = message.key
            is_awaited = (key.home, key.piece, key.attempt) == (self._name, self._piece, attempt)
            if is_awaited and key.carriage not in arrived:
                arrived[key.carriage] = message
                deadline = time.monotonic() + limit
