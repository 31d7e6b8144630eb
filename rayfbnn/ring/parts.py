"""One part of the training cases at the worker that owns it, and the visits of chains to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels import choose
from rayfbnn.kernels.backend import Compiled
from rayfbnn.model.batches import cases_of_part, posterior_of_chains, posterior_of_part
from rayfbnn.model.integrated import WithoutPrecisions, marginal
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates.gibbs import Values
from rayfbnn.ring.message import Message, Visit
from rayfbnn.state import Trajectory
from rayfbnn.streams import Streams

Density: TypeAlias = SampledPosterior | WithoutPrecisions


class Part:
    """The cases of one part, with the densities that visits need.

    A visit is a function of a message and the part alone. It treats each chain separately, so a chain's bits
    do not depend on the chains that travel with it.
    """

    def __init__(
        self,
        posterior: SampledPosterior,
        compiled: Compiled,
        *,
        number: int,
        n_parts: int,
        first: int,
        n_all: int,
    ) -> None:
        """Store the posterior of the part (`model.parts.posterior_of_part`).

        compiled       computes kicks and energies
        first, n_all   number of the part's first case, and of all cases
        """
        self.number = number
        self.posterior = posterior
        self._compiled = compiled
        self._first, self._n_all = first, n_all
        self._n_parts = n_parts
        self._multiplied = posterior.tempered(float(n_parts))
        self._marginals: dict[tuple[bool, tuple[str, ...]], WithoutPrecisions] = {}

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs the visits."""
        return self._compiled.name

    def visit(self, message: Message, visit: Visit) -> Message:
        """Return the message as it leaves the part: moved, kicked, with the part's answer if it was asked.

        A drift is q += s p, and then a kick is p -= kick s dE/dq. In a multi-leap s/n_parts replaces s. The
        part's share of a kick by a full gradient is computed first and then added, as in a star.
        """
        position, momentum, stepsizes = message.position, message.momentum, message.stepsizes
        is_partial = message.itinerary.kind == "partial"
        if is_partial:
            stepsizes = stepsizes / self._n_parts
        answers = message.answers
        with np.errstate(all="ignore"):
            if visit.drift:
                position = position + stepsizes * momentum
            if visit.kick and is_partial:
                chains = Trajectory(position, momentum, message.precisions, stepsizes)
                density, chains = self._density(message.rows, chains, message.over, is_partial=True)
                momentum = self._compiled.kick(density, chains, share=visit.kick)
            elif visit.kick:
                momentum = momentum + self.kick_share(
                    message.rows, position, message.precisions, stepsizes, message.over, visit.kick
                )
            if visit.is_asked:
                answer = message.question(self, message.rows, position, message.precisions)
                answers = (*answers[: self.number], answer, *answers[self.number + 1 :])
        number, stepsizes = message.number + 1, message.stepsizes
        if number == len(message.itinerary):  # its home already has the values that have not changed
            stepsizes = stepsizes[:, :0]
            if message.itinerary.kind in ("question", "part"):
                position = position[:, :0]
        return replace(
            message, position=position, momentum=momentum, stepsizes=stepsizes, answers=answers, number=number
        )

    # The methods that are questions.

    def kick_share(
        self,
        rows: Array,
        position: Array,
        precisions: Array,
        stepsizes: Array,
        over: tuple[str, ...],
        share: float,
    ) -> Array:
        """Return the part's share of a kick by the full gradient, (n_chains, n_parameters).

        It is the change -share s dE/dq of the momentum. Part 0 alone adds the prior's gradient.

        stepsizes  (n_chains, n_parameters)
        over       the variables that are integrated out: ("precisions",), or () for none
        share      factor on the stepsizes: 1/2 at either end of a trajectory
        """
        chains = Trajectory(position, np.zeros_like(position), precisions, stepsizes)
        density, chains = self._density(rows, chains, over, is_partial=False)
        with np.errstate(all="ignore"):
            return self._compiled.kick(density, chains, share=share)

    def data_energy(self, rows: Array, position: Array, precisions: Array) -> Array:
        """Return -b log likelihood of the part's cases, (n_chains,) float64, +inf where it is not finite."""
        nothing = array_namespace(position).zeros_like(position)
        trajectory = Trajectory(position, nothing, self._of_data(precisions), nothing)
        _, energy = self._compiled.advance(self._of_chains(rows), trajectory, n_steps=0)
        return energy

    def squared_residuals(self, rows: Array, position: Array, precisions: Array) -> Array:
        """Return the weighted sum of squared residuals of each target, (n_chains, n_targets)."""
        return self._residuals(rows, position).sum_of_squares()

    def t_precisions(
        self, rows: Array, position: Array, precisions: Array, current: Array, alpha: float, streams: Streams
    ) -> Array:
        """Return sums of precisions drawn for single cases of t noise, (n_chains, n_targets).

        current  (n_chains, n_targets): the precisions that these draws are conditional on
        alpha    degrees of freedom of the noise
        """
        return self._residuals(rows, position).sum_of_t_precisions(current, alpha, streams)

    def t_densities(self, rows: Array, position: Array, precisions: Array, x: Array, alpha: float) -> Array:
        """Return sums of log densities under t noise given logs x of precisions, (n_chains, n_targets)."""
        return self._residuals(rows, position).sum_of_t_densities(x, alpha)

    def target_densities(self, rows: Array, position: Array, precisions: Array, x: Array) -> Array:
        """Return sums of log densities of counts given logs x of their shapes, (n_chains, n_targets)."""
        return self._of_chains(rows).density_of_targets(position)(x)

    def _residuals(self, rows: Array, position: Array) -> Values:
        """Return the residuals of the part's cases, for updates of the noise."""
        values, n = self._of_chains(rows).residuals(position), self.posterior.n_cases
        weights = values.weights if isinstance(values.weights, float) else values.weights[..., :n]
        return replace(
            values, squares=values.squares[..., :n], weights=weights, first=self._first, n_all=self._n_all
        )

    def _density(
        self, rows: Array, chains: Trajectory, over: tuple[str, ...], *, is_partial: bool
    ) -> tuple[Density, Trajectory]:
        """Return the density for the gradient of a kick, and the chains with the precisions for it."""
        posterior = self._of_chains(rows)
        if not is_partial and self.number > 0:
            return posterior, replace(chains, precisions=self._of_data(chains.precisions))
        if is_partial:
            is_shared = posterior is self.posterior
            posterior = self._multiplied if is_shared else posterior.tempered(float(self._n_parts))
        if not over:
            return posterior, chains
        key = is_partial, over
        kept = self._marginals.get(key)  # its kernel has already laid out the inputs
        if kept is None or posterior.targets is not kept.posterior.targets:
            without = marginal(posterior, over)
            assert isinstance(without, WithoutPrecisions)
            self._marginals[key] = kept = without
        return kept, chains

    def _of_chains(self, rows: Array) -> SampledPosterior:
        return posterior_of_chains(self.posterior, rows)

    def _of_data(self, precisions: Array) -> Array:
        """Return the precisions of the noise alone; with them the prior's energy and gradient are zero."""
        columns = self.posterior.precision_layout.noise_columns
        of_data = array_namespace(precisions).zeros_like(precisions)
        of_data[:, columns] = precisions[:, columns]
        return of_data


def part_of(
    whole: SampledPosterior,
    number: int,
    n_parts: int,
    *,
    recorded: str | None = None,
    inputs: Array | None = None,
) -> Part:
    """Cut one part out of a posterior.

    recorded  the name of the kernel that a run started with; it is kept if this machine has it
    inputs    the inputs of the part, as for `model.parts.posterior_of_part`
    """
    posterior = posterior_of_part(whole, number, n_parts, inputs=inputs)
    compiled = choose.compiled_for(posterior, recorded=recorded)
    first, _ = cases_of_part(whole.n_cases, number, n_parts)
    return Part(posterior, compiled, number=number, n_parts=n_parts, first=first, n_all=whole.n_cases)


def parts_of(whole: SampledPosterior, n_parts: int, *, recorded: str | None = None) -> tuple[list[Part], str]:
    """Cut a posterior into parts; return them, and the name of the kernel that runs their visits.

    recorded  as for `part_of`
    """
    parts = [part_of(whole, number, n_parts, recorded=recorded) for number in range(n_parts)]
    return parts, parts[0].kernel
