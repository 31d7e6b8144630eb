"""Rounds of the parts in a ring or a star, and the home of a batch, which waits until they end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import WorkerError
from rayfbnn.ring.message import Itinerary, Key, Message, Question
from rayfbnn.ring.parts import Part
from rayfbnn.ring.transport import Transport
from rayfbnn.state import Trajectory

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


_UNNAMED = Key("", 0, 0, 0)  # a message's name until its home gives it one


@dataclass(frozen=True, eq=False)
class Ring:
    """The ring of parts of the training cases; a home sends chains round it.

    n_parts  number of parts
    """

    home: Home
    n_parts: int

    def ask(self, question: Question, position: Array, precisions: Array) -> Array:
        """Return the answers of all parts, added in the order of the parts; (n_chains, ...) float64."""
        nothing = position[:, :0]  # chains that do not move need neither momentum nor stepsizes
        chains = Trajectory(position, nothing, precisions, nothing)
        rows = np.arange(len(position))
        message = self._message(chains, rows, Itinerary("question", self.n_parts), question)
        (back,) = self.home.send_and_wait([message])
        return _sum_of_answers(back.answers)

    def gradient(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        """Return the data energy (n_chains,), and the gradient of the whole potential."""
        chains = Trajectory(position, np.zeros_like(position), precisions, np.ones_like(position))
        message = self._message(chains, np.arange(len(position)), Itinerary("gradient", self.n_parts))
        (back,) = self.home.send_and_wait([message])
        return _sum_of_answers(back.answers), -back.momentum

    def travel(
        self, chains: Trajectory, *, n_steps: int, order: Array | None, over: tuple[str, ...] = ()
    ) -> tuple[Trajectory, Array]:
        """Take n_steps >= 1 leapfrog steps; return the trajectory at their end and the data energy there.

        Chains with the same direction travel together.

        order   as for `mcmc.leapfrog.advance`; orders of partial gradients must be cyclic
        over    the variables that are integrated out: ("precisions",), or () for none
        """
        carriages = _carriages(order, n_chains=len(chains.position), n_parts=self.n_parts)
        messages = []
        for direction, rows in carriages:
            itinerary = Itinerary("full" if order is None else "partial", self.n_parts, n_steps, direction)
            messages.append(self._message(_chosen(chains, rows), rows, itinerary, over=over))
        position, momentum = np.empty_like(chains.position), np.empty_like(chains.momentum)
        energy = np.empty(len(position))
        for (_, rows), back in zip(carriages, self.home.send_and_wait(messages), strict=True):
            position[rows], momentum[rows] = back.position, back.momentum
            energy[rows] = _sum_of_answers(back.answers)
        return chains.moved(position, momentum), energy

    def _message(
        self,
        chains: Trajectory,
        rows: Array,
        itinerary: Itinerary,
        question: Question = Part.data_energy,
        over: tuple[str, ...] = (),
    ) -> Message:
        return Message(
            key=_UNNAMED,
            itinerary=itinerary,
            question=question,
            rows=rows,
            over=over,
            position=chains.position,
            momentum=chains.momentum,
            precisions=chains.precisions,
            stepsizes=chains.stepsizes,
            answers=(None,) * self.n_parts,
        )


def _carriages(order: Array | None, *, n_chains: int, n_parts: int) -> list[tuple[Literal[1, -1], Array]]:
    """Return each direction that some chains take, with the rows of these chains.

    Raises ValueError unless each chain's order is d j mod n_parts with d = 1 or -1.
    """
    if order is None:
        return [(1, np.arange(n_chains))]
    if order.shape[1] != n_parts:
        raise ValueError(f"order: must have one partition for each of {n_parts} parts, got {order.shape[1]}")
    is_forwards = order[:, 1] == 1
    directions = np.where(is_forwards, 1, -1)
    if not np.array_equal(order, directions[:, None] * np.arange(n_parts) % n_parts):
        raise ValueError('order: must be "cyclic" where the training cases are divided into parts')
    both: list[tuple[Literal[1, -1], Array]] = [
        (1, np.flatnonzero(is_forwards)),
        (-1, np.flatnonzero(~is_forwards)),
    ]
    return [(direction, rows) for direction, rows in both if len(rows)]


def _chosen(chains: Trajectory, rows: Array) -> Trajectory:
    if len(rows) == len(chains.position):
        return chains
    return Trajectory(
        chains.position[rows], chains.momentum[rows], chains.precisions[rows], chains.stepsizes[rows]
    )


def _sum_of_answers(answers: Sequence[Array | None], total: Array | float = 0.0) -> Array:
    """Add the answers of the parts to a total, in the order of the parts, not of the visits."""
    for answer in answers:
        assert answer is not None, "every part is asked once"
        total = total + answer
    return total


@dataclass(frozen=True, eq=False)
class Star(Ring):
    """The star of parts of the training cases; a home asks all of them at the same time.

    A star is for full gradients alone. All owners work on one batch of chains, which waits for the slowest
    owner at every step. Results have the same bits as with the ring, because both add the shares of a kick in
    the order of the parts. Partial gradients follow one another, so their chains go round the ring.
    """

    def ask(self, question: Question, position: Array, precisions: Array) -> Array:
        """Return the answers of all parts, added in the order of the parts; (n_chains, ...) float64."""
        return _sum_of_answers(self._answers(question, position, precisions))

    def gradient(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        """Return the data energy (n_chains,), and the gradient of the whole potential."""
        kick = partial(Part.kick_share, stepsizes=np.ones_like(position), over=(), share=1.0)
        gradient = -_sum_of_answers(self._answers(kick, position, precisions), np.zeros_like(position))
        return self.ask(Part.data_energy, position, precisions), gradient

    def travel(
        self, chains: Trajectory, *, n_steps: int, order: Array | None, over: tuple[str, ...] = ()
    ) -> tuple[Trajectory, Array]:
        """Take n_steps >= 1 leapfrog steps; return the trajectory at their end and the data energy there."""
        if order is not None:
            return super().travel(chains, n_steps=n_steps, order=order, over=over)
        position, momentum = chains.position, chains.momentum
        with np.errstate(all="ignore"):
            for step in range(n_steps + 1):
                if step > 0:
                    position = position + chains.stepsizes * momentum
                share = 0.5 if step in (0, n_steps) else 1.0
                kick = partial(Part.kick_share, stepsizes=chains.stepsizes, over=over, share=share)
                momentum = _sum_of_answers(self._answers(kick, position, chains.precisions), momentum)
        return chains.moved(position, momentum), self.ask(Part.data_energy, position, chains.precisions)

    def _answers(self, question: Question, position: Array, precisions: Array) -> list[Array | None]:
        """Return the answer of each part, in the order of the parts."""
        nothing = position[:, :0]
        chains = Trajectory(position, nothing, precisions, nothing)
        rows = np.arange(len(position))
        messages = [
            self._message(chains, rows, Itinerary("part", self.n_parts, first=part), question)
            for part in range(self.n_parts)
        ]
        back = self.home.send_and_wait(messages)
        return [message.answers[part] for part, message in enumerate(back)]
