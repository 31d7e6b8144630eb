"""The message that carries chains and their questions from part to part, with its itinerary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from rayfbnn.arrays import Array

Question: TypeAlias = Callable[[Any, Array, Array, Array], Array]
"""A question that every part answers with one array, (n_chains, ...).

It is a method of `ring.parts.Part`, or a partial of one. It is called with the part, the numbers of the
chains in their batch, their positions, and their precisions.
"""

Kind: TypeAlias = Literal["partial", "full", "gradient", "question", "part"]


@dataclass(frozen=True)
class Visit:
    """One visit to a part.

    drift     whether positions move at the start of the visit
    kick      factor on the stepsize in the change of the momentum; 0 for no change
    is_asked  whether the part answers the message's question, after the kick
    """

    part: int
    drift: bool
    kick: float
    is_asked: bool


@dataclass(frozen=True)
class Itinerary:
    """The visits of a message, in order. Each part is asked once, at the final position of the chains.

    kind       "partial"   n_steps multi-leaps with the gradients of E_k = prior + n_parts * (data terms of k)
               "full"      n_steps leapfrog steps; the parts add shares of a kick in turn, at one position
               "gradient"  one whole kick by every part, without a step
               "question"  the question alone
               "part"      the question alone, to part `first` alone
    direction  +1 or -1: partial gradients come in the order 0, direction, 2 direction, ... modulo n_parts

    With a = the parts in this order, a multi-leap is that of `mcmc.leapfrog.advance`. It ends at part 0,
    where the next one begins, so their two half kicks become one.
    """

    kind: Kind
    n_parts: int
    n_steps: int = 0
    direction: Literal[1, -1] = 1
    first: int = 0

    @property
    def n_kicks(self) -> int:
        """Number of visits that change the momentum."""
        match self.kind:
            case "partial":
                return self.n_steps * self.n_parts + 1
            case "full":
                return (self.n_steps + 1) * self.n_parts
            case "gradient":
                return self.n_parts
            case _:
                return 0

    def __len__(self) -> int:
        if self.kind == "part":
            return 1
        if self.kind == "partial":  # the last kick is at the first part that is asked
            return self.n_kicks + self.n_parts - 1
        return max(self.n_kicks, self.n_parts)

    def visit(self, number: int) -> Visit:
        """Return the visit with this number, counted from 0."""
        if self.kind == "part":
            return Visit(self.first, False, 0.0, True)
        part = self.direction * number % self.n_parts
        is_asked = number >= len(self) - self.n_parts
        if self.kind == "partial":
            kick = 0.0 if number >= self.n_kicks else 0.5 if number in (0, self.n_kicks - 1) else 1.0
            return Visit(part, 0 < number < self.n_kicks, kick, is_asked)
        if self.kind == "full":
            is_half = number < self.n_parts or is_asked
            return Visit(part, number > 0 and part == 0, 0.5 if is_half else 1.0, is_asked)
        return Visit(part, False, 1.0 if self.kind == "gradient" else 0.0, is_asked)


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
