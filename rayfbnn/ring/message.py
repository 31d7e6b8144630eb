"""The message that carries chains from part to part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayfbnn.arrays import Array
from rayfbnn.ring.itinerary import Itinerary
from rayfbnn.ring.questions import Question


@dataclass(frozen=True)
class Key:
    """The name of a message, by which its home knows it again.

    home      differs between any two homes, those of the same batch one after the other included
    piece     number of the request of that home
    attempt   number of the attempt at that piece, from 1: a later one replaces all before it
    carriage  number of the message among those of the piece
    """

    home: str
    piece: int
    attempt: int
    carriage: int


@dataclass(frozen=True, eq=False)
class Message:
    """Chains on their way, with all that a visit needs besides the cases of its part.

    A visit depends on the message and the part alone, so that a message may be lost, sent again, doubled or
    overtaken. Nothing changes the arrays of a message: each visit makes new ones.

    number     of the next visit
    question   what the parts are asked
    rows       (n_chains,) int64, the numbers of the chains in their batch
    over       what is integrated out: ("precisions",), or () for nothing
    position, momentum, stepsizes  (n_chains, n_parameters); without columns where they are not needed
    precisions (n_chains, n_precisions) float64
    answers    of each part that was asked, None for the others
    """

    key: Key
    itinerary: Itinerary
    question: Question
    rows: Array
    over: tuple[str, ...]
    position: Array
    momentum: Array
    precisions: Array
    stepsizes: Array
    answers: tuple[Array | None, ...]
    number: int = 0

    @property
    def part(self) -> int | None:
        """The part that is visited next; None if the message is to go home."""
        if self.number == len(self.itinerary):
            return None
        return self.itinerary.visit(self.number).part

    def named(self, key: Key) -> Message:
        """Return the message under another name."""
        return replace(self, key=key)
