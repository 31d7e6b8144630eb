"""The star, which asks all parts at once and adds their answers at home."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.ring.itinerary import Itinerary
from rayfbnn.ring.questions import DataEnergy, Kick, Question
from rayfbnn.ring.ring import Ring, sum_of_answers
from rayfbnn.state import Trajectory


@dataclass(frozen=True, eq=False)
class Star(Ring):
    """The star of parts of the training cases; a home asks all of them at the same time.

    A star is for full gradients alone. All owners work on one batch of chains, which waits for the slowest
    owner at every step. Results have the same bits as with the ring, because both add the shares of a kick in
    the order of the parts. Partial gradients follow one another, so their chains go round the ring.
    """

    def ask(self, question: Question, position: Array, precisions: Array) -> Array:
        """Return the answers of all parts, added in the order of the parts; (n_chains, ...) float64."""
        return sum_of_answers(self._answers(question, position, precisions))

    def gradient(self, position: Array, precisions: Array) -> tuple[Array, Array]:
        """Return the data energy (n_chains,), and the gradient of the whole potential."""
        kick = Kick(np.ones_like(position), (), 1.0)
        gradient = -sum_of_answers(self._answers(kick, position, precisions), np.zeros_like(position))
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
                momentum = sum_of_answers(self._answers(kick, position, chains.precisions), momentum)
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
