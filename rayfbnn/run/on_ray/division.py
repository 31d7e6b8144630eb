"""The division of the training cases among owners, which changes as owners join and leave a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any


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
