"""The message that carries chains from part to part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayfbnn.arrays import Array
from rayfbnn.ring.itinerary import Itinerary
from rayfbnn.ring.questions import Question


@dataclass(frozen=True)
class Key:
    """The name of a message, which lets its home recognise it.

    home      the home's name, which differs between any two homes, also between successive homes of a batch
    piece     number of the home's request
    attempt   number of the attempt for the piece, from 1; a later attempt replaces all earlier ones
    carriage  number of the message among the messages of the piece
    """

    home: str
    piece: int
    attempt: int
    carriage: int


@dataclass(frozen=True, eq=False)
class Message:
    """Chains on their way, with everything that a visit needs apart from the cases of its part.

    A visit depends on the message and the part alone. A message may therefore be lost, sent again, duplicated
    or overtaken. The arrays of a message never change: each visit makes new ones.

    number     number of the next visit
    question   the question to the parts
    rows       (n_chains,) int64, the numbers of the chains in their batch
    over       the variables that are integrated out: ("precisions",), or () for none
    position, momentum, stepsizes  (n_chains, n_parameters); without columns if they are not needed
    precisions (n_chains, n_precisions) float64
    answers    the answer of each part that was asked, None for the others
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
        """The part to visit next; None if the message goes home."""
        if self.number == len(self.itinerary):
            return None
        return self.itinerary.visit(self.number).part

    def named(self, key: Key) -> Message:
        """Return the message under another name."""
        return replace(self, key=key)
