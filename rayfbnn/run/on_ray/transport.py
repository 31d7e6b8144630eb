"""The ring over Ray: chains travel by actor calls from owner to owner, as references."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayfbnn.errors import RayFBNNError
from rayfbnn.ring.itinerary import Itinerary
from rayfbnn.ring.message import Message

_BACK_SECONDS = 300.0  # for an owner that died to be back, before its chains are sent again in any case
_ASK_SECONDS = 1.0  # between two questions to it
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteOwner:
    """The owner of some parts, in an actor of its own (`PartsWorker`)."""

    handle: Any
    parts: tuple[int, ...]


@dataclass(frozen=True)
class _Hop:
    """A call that makes all visits due at one owner; `number` is that of the first visit after them."""

    owner: RemoteOwner
    itinerary: Itinerary
    number: int
    message: Any  # Ray's reference to the message that comes out


class RayTransport:
    """Carries the messages of one home, which knows the way of each and calls one owner after the other.

    A message of more than 100 kB goes from owner to owner directly, because only Ray's reference to it passes
    through the home. An owner that dies is started again by Ray; the home hears that its messages are lost
    once that owner has read its parts, and sends them again.
    """

    def __init__(self, owners: Sequence[RemoteOwner]) -> None:
        """Take the owners, who together have every part once."""
        self._owner_of = {part: owner for owner in owners for part in owner.parts}
        self._under_way: dict[Any, _Hop] = {}  # by Ray's reference to the sign that the visits were made

    def send(self, message: Message) -> None:
        """Send a message on its way, to the owner of `message.part`."""
        self._call(message, message.itinerary, message.number)

    def receive(self, seconds: float) -> Message | None:
        """Return a message that has come home; None if none comes in time, or if messages were lost."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        deadline = time.monotonic() + seconds
        while self._under_way:
            left = max(0.0, deadline - time.monotonic())
            signs, _ = ray.wait(list(self._under_way), num_returns=1, timeout=left)
            if not signs:
                return None
            hop = self._under_way.pop(signs[0])
            try:
                is_kept = ray.get(signs[0])
                if is_kept and hop.number == len(hop.itinerary):
                    return ray.get(hop.message)  # type: ignore[no-any-return]
            except RayTaskError as exc:  # the owner is alive; the code that it ran raised
                if isinstance(exc.cause, RayFBNNError):
                    raise exc.cause from None
                raise
            except RayError as exc:
                _log.debug("the owner of parts %s was lost: %s", hop.owner.parts, exc)
                self._under_way.clear()
                _wait_for(hop.owner)
                return None
            if is_kept:
                self._call(hop.message, hop.itinerary, hop.number)
        return None

    def _call(self, message: Any, itinerary: Itinerary, number: int) -> None:
        """Let the owner of the next part make all visits that are due there."""
        owner = self._owner_of[itinerary.visit(number).part]
        while number < len(itinerary) and itinerary.visit(number).part in owner.parts:
            number += 1
        sign, changed = owner.handle.forward.options(num_returns=2).remote(message)
        self._under_way[sign] = _Hop(owner, itinerary, number, changed)


def _wait_for(owner: RemoteOwner) -> None:
    """Wait until an owner is back, but no longer than five minutes."""
    import ray
    from ray.exceptions import RayError

    deadline = time.monotonic() + _BACK_SECONDS
    while time.monotonic() < deadline:
        try:
            ray.get(owner.handle.ready.remote(), timeout=_BACK_SECONDS)
        except RayError:
            time.sleep(_ASK_SECONDS)
        else:
            return
