"""The home of a batch: it sends chains round the parts, and waits until they are back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from rayfbnn.errors import WorkerError
from rayfbnn.ring.message import Key, Message
from rayfbnn.ring.transport import Transport

LIMIT_SECONDS = 60.0  # of the first attempt
MOST_ATTEMPTS = 12


class Home:
    """Sends the messages of one piece after another, each until it has come back once.

    Those that are not back within a time limit are sent again, as a new attempt with twice the limit. What
    comes back from an earlier attempt or piece, or a second time, is dropped. A visit depends on the
    message and the part alone, so that no loss and no delay has an influence on a result.
    """

    def __init__(
        self, transport: Transport, *, limit: float = LIMIT_SECONDS, most_attempts: int = MOST_ATTEMPTS
    ) -> None:
        """Start at the first piece.

        limit          seconds without any arrival after which messages of the first attempt count as lost
        most_attempts  attempts at one piece; after the last, WorkerError is raised
        """
        self._transport = transport
        self._limit = limit
        self._most_attempts = most_attempts
        # No message of an earlier home of the batch may be taken for one of this home; no draw depends on it.
        self._name = secrets.token_hex(8)
        self._piece = 0

    def send_and_wait(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages on their ways, and return them, in the same order, as they have come back."""
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
            f"the chains that travel round the parts of the training cases were lost {self._most_attempts}"
            " times in a row. What was committed is kept: `resume` continues from there"
        )

    def _receive(self, arrived: dict[int, Message], n_messages: int, attempt: int, limit: float) -> None:
        """Add the messages of an attempt that come back in time to `arrived`."""
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
