"""Rounds of the parts: chains travel from part to part in a ring, or a star asks all parts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.ring.home import Home
from rayfbnn.ring.message import Itinerary, Key, Message
from rayfbnn.ring.questions import DataEnergy, Kick, Question
from rayfbnn.state import Trajectory

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
        question: Question = DataEnergy(),  # noqa: B008, it has no state
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
        kick = Kick(np.ones_like(position), (), 1.0)
        gradient = -_sum_of_answers(self._answers(kick, position, precisions), np.zeros_like(position))
        return self.ask(DataEnergy(), position, precisions), gradient

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
                kick = Kick(chains.stepsizes, over, 0.5 if step in (0, n_steps) else 1.0)
                momentum = _sum_of_answers(self._answers(kick, position, chains.precisions), momentum)
        return chains.moved(position, momentum), self.ask(DataEnergy(), position, chains.precisions)

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
