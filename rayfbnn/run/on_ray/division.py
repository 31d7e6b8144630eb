"""Who owns which parts of the training cases: it changes as owners join a run and leave it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True)
class RemoteOwner:
    """The owner of some parts, in an actor of its own (`PartsWorker`)."""

    handle: Any
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Division:
    """The owners from some moment on, who together have every part once.

    number  the first division has 1, and each later one a greater number
    prefix  with which Ray's names of all owners of the run begin, also of those in later divisions
    """

    number: int
    owners: tuple[RemoteOwner, ...]
    prefix: str


def shares(holdings: Sequence[Collection[int]], n_parts: int) -> list[tuple[int, ...]]:
    """Divide the parts among owners in ranges, so that a message passes few times between owners.

    Each owner gets as many parts as the others or one more. Where they have parts already, few are read
    again: range and owner with the most parts in common belong together, then the next two.

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
