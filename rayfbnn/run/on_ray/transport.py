"""The ring over Ray: chains travel by actor calls, as references, to the owners of the parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from rayfbnn.errors import RayFBNNError
from rayfbnn.ring.message import Itinerary, Message


@dataclass(frozen=True)
class RemoteOwner:
    """The owner of some parts, in its own actor (`PartsWorker`)."""

    handle: Any
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Division:
    """The owners from some moment on. Each part has exactly one owner.

    number  1 for the first division, and a greater number for each later one
    prefix  beginning of the names in Ray of all owners of the run, including those in later divisions
    """

    number: int
    owners: tuple[RemoteOwner, ...]
    prefix: str


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
_ANSWER_SECONDS = 5.0  # for an answer of another owner, which may be busy with a visit
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Hop:
    """A call that makes all visits due at one owner.

    message      the message that goes in, or Ray's reference to it
    changed      Ray's reference to the message that comes out
    first, next  numbers of the first visit there, and of the one after the last
    """

    owner: RemoteOwner
    itinerary: Itinerary
    message: Any
    changed: Any
    first: int
    next: int


class RayTransport:
    """Carries the messages of one home. It knows the route of each, and calls one owner after the other.

    A message above half a megabyte goes from owner to owner directly, because only Ray's reference to it
    passes through the home. Ray restarts an owner that dies. The home is told that its messages are lost once
    that owner is back, or another has its parts, and sends them again. An owner that knows a later division
    than the home answers with that division, and the home calls the owner that has the part now.
    """

    def __init__(self, division: Division) -> None:
        """Take the division of the parts at present."""
        self._division = division
        self._owner_of = _by_part(division)
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
                sign = ray.get(signs[0])
                if sign is True and hop.next == len(hop.itinerary):
                    return ray.get(hop.changed)  # type: ignore[no-any-return]
            except RayTaskError as exc:  # the owner is alive; the code that it ran raised
                if isinstance(exc.cause, RayFBNNError):
                    raise exc.cause from None
                raise
            except RayError as exc:
                _log.debug("the owner of parts %s was lost: %s", hop.owner.parts, exc)
                self._under_way.clear()
                self._wait_for(hop.owner)
                return None
            if isinstance(sign, Division):
                self.adopt(sign)
                self._call(hop.message, hop.itinerary, hop.first)
            elif sign:
                self._call(hop.changed, hop.itinerary, hop.next)
        return None

    def adopt(self, division: Division) -> None:
        """Adopt a division, unless a later one is known."""
        if division.number > self._division.number:
            self._division, self._owner_of = division, _by_part(division)

    def _call(self, message: Any, itinerary: Itinerary, first: int) -> None:
        """Ask the owner of the next part to make all visits that are due there."""
        owner = self._owner_of[itinerary.visit(first).part]
        number = first
        while number < len(itinerary) and itinerary.visit(number).part in owner.parts:
            number += 1
        forward = owner.handle.forward.options(num_returns=2)
        sign, changed = forward.remote(message, owner.parts, self._division.number)
        self._under_way[sign] = _Hop(owner, itinerary, message, changed, first, number)

    def _wait_for(self, lost: RemoteOwner) -> None:
        """Wait until an owner is back, or others say who has its parts now, for at most five minutes."""
        deadline = time.monotonic() + _BACK_SECONDS
        while time.monotonic() < deadline:
            if _answer(lost.handle.ready) is not None:
                return
            for handle in _named(self._division.prefix):
                latest = _answer(handle.division)
                if latest is not None and latest.number > self._division.number:
                    self.adopt(latest)
                    return
            time.sleep(_ASK_SECONDS)


def _by_part(division: Division) -> dict[int, RemoteOwner]:
    return {part: owner for owner in division.owners for part in owner.parts}


def _named(prefix: str) -> Iterator[Any]:
    """Yield the handles of the actors with names that begin with `prefix`.

    All owners that a home knows may be gone; it then asks these.
    """
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):  # the head may be silent for a while
        for name in ray.util.list_named_actors():
            if name.startswith(prefix):
                with suppress(ValueError):  # it has ended since
                    yield ray.get_actor(name)


def _answer(question: Any) -> Any:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(question.remote(), timeout=_ANSWER_SECONDS)
    except RayError:
        return None
