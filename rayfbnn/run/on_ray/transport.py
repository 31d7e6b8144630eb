"""The ring over Ray: chains travel by actor calls, as references, to the owners of the parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rayfbnn.ring.message import Itinerary, Message
from rayfbnn.run.on_ray.nodes import cause_of_task


@dataclass(frozen=True)
class RemoteOwner:
    """The owner of some parts, in its own actor (`PartsWorker`)."""

    handle: Any
    parts: tuple[int, ...]


def shares(holdings: Sequence[Collection[int]], n_parts: int) -> list[tuple[int, ...]]:
    """Divide the parts among owners in ranges, because a message then rarely passes between owners.

    The owners' numbers of parts differ by at most one. If owners have parts already, few parts are read
    again: the owner and the range with the most parts in common are paired, then the next two.

    holdings  the numbers of the parts that each owner has
    """
    count = len(holdings)
    bounds = [n_parts * number // count for number in range(count + 1)]
    ranges = [tuple(range(*pair)) for pair in zip(bounds, bounds[1:], strict=False)]
    pairs = sorted(
        product(range(count), range(count)),
        key=lambda pair: -len(set(holdings[pair[0]]).intersection(ranges[pair[1]])),
    )
    given: dict[int, int] = {}  # owner: range
    taken: set[int] = set()
    for owner, number in pairs:
        if owner not in given and number not in taken:
            given[owner] = number
            taken.add(number)
    return [ranges[given[owner]] for owner in range(count)]


_BACK_SECONDS = 300.0  # for a dead owner to be back; then its chains are sent again in any case
_ASK_SECONDS = 1.0  # between two questions to that owner
_ANSWER_SECONDS = 5.0  # for its answer
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Hop:
    """A call that makes all visits due at one owner.

    changed  Ray's reference to the message that comes out
    next     number of the visit after the last one there
    """

    owner: RemoteOwner
    itinerary: Itinerary
    changed: Any
    next: int


class RayTransport:
    """Carries the messages of one home. It knows the route of each, and calls one owner after the other.

    A message above half a megabyte goes from owner to owner directly, because only Ray's reference to it
    passes through the home. Ray restarts an owner that dies. The home is told that its messages are lost once
    that owner is back, and sends them again.
    """

    def __init__(self, owners: Sequence[RemoteOwner]) -> None:
        """Take the owners, which together have every part once."""
        self.adopt(owners)

    def adopt(self, owners: Sequence[RemoteOwner]) -> None:
        """Use these owners from now on, between two blocks. No chains are under way then."""
        self._owner_of = {part: owner for owner in owners for part in owner.parts}
        self._under_way: dict[Any, _Hop] = {}  # by Ray's reference to the sign that the visits were made

    def send(self, message: Message) -> None:
        """Send a message to the owner of `message.part`."""
        self._call(message, message.itinerary, message.number)

    def receive(self, seconds: float) -> Message | None:
        """Return a message that has come home, or None if none comes in time or messages were lost."""
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
                is_made = ray.get(signs[0])
                if is_made and hop.next == len(hop.itinerary):
                    return ray.get(hop.changed)  # type: ignore[no-any-return]
            except RayTaskError as exc:  # the owner is alive; the code that it ran raised
                raise cause_of_task(exc) from None
            except RayError as exc:
                _log.debug("the owner of parts %s was lost: %s", hop.owner.parts, exc)
                self._under_way.clear()
                self._wait_for(hop.owner)
                return None
            if is_made:
                self._call(hop.changed, hop.itinerary, hop.next)
        return None

    def _call(self, message: Any, itinerary: Itinerary, first: int) -> None:
        """Ask the owner of the next part to make all visits that are due there."""
        owner = self._owner_of[itinerary.visit(first).part]
        number = first
        while number < len(itinerary) and itinerary.visit(number).part in owner.parts:
            number += 1
        forward = owner.handle.forward.options(num_returns=2)
        sign, changed = forward.remote(message, owner.parts)
        self._under_way[sign] = _Hop(owner, itinerary, changed, number)

    def _wait_for(self, lost: RemoteOwner) -> None:
        """Wait until an owner is back, for at most five minutes.

        If it cannot be started again, the driver ends this home.
        """
        deadline = time.monotonic() + _BACK_SECONDS
        while time.monotonic() < deadline and not _is_up(lost):
            time.sleep(_ASK_SECONDS)


def _is_up(owner: RemoteOwner) -> bool:
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(owner.handle.ready.remote(), timeout=_ANSWER_SECONDS)
    except RayError:
        return False
    return True
