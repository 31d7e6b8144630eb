"""Random-walk Metropolis updates, of all parameters at once or of one at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import (
    Acceptance,
    acceptance_threshold,
    describe_acceptance,
    finite_or_infinite,
    require_finite,
)
from rayfbnn.mcmc.operation import BuildContext, Operation
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, jittered_stepsize, scaled_stepsizes
from rayfbnn.state import ChainState, HMCInfo, Target
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class Metropolis(Operation):
    """A random-walk Metropolis update of all parameters at once, with Gaussian proposals.

    acceptance  the acceptance rule, see `energy.acceptance_threshold`; "barker" is only for comparison
    """

    stepsize: float
    stepsize_jitter: float | None = None
    acceptance: Acceptance = "metropolis"
    op: ClassVar[str] = "metropolis"
    is_reversible: ClassVar[bool] = True
    has_energy_change: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_stepsize(self.stepsize, self.stepsize_jitter)

    def description(self) -> str:
        stepsize = describe_stepsize(self.stepsize, self.stepsize_jitter)
        return f"metropolis: propose all parameters at once, {stepsize}{describe_acceptance(self.acceptance)}"

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, HMCInfo]:
        """Propose new values of all parameters at once and accept or reject them; keep the momentum.

        q' = q + stepsize * target.stepsizes * n, where n is standard normal, is accepted with probability
        min(1, exp(U - U')), or 1/(1 + exp(U' - U)) by Barker's rule.

        Neal (1996) sec. 1.3.3. `stepsize_jitter` is explained in `stepsizes.jittered_stepsize`. Barker's rule
        also leaves the distribution invariant, but the asymptotic variance of an estimate is never smaller
        with it; Peskun (1973), "Optimum Monte-Carlo sampling using Markov chains".
        """
        xp, target = array_namespace(state.position), context.target
        factor = jittered_stepsize(self.stepsize, self.stepsize_jitter, streams)
        noise = streams.normal(Purpose.PROPOSAL, state.position.shape[1:])
        with np.errstate(all="ignore"):
            change = factor[:, None] * target.stepsizes(state.precisions) * noise
            proposal = state.position + change.astype(state.position.dtype)
            start_energy = _potential(target, state.position, state.precisions)
            proposal_energy = _potential(target, proposal, state.precisions)
        require_finite(start_energy, streams)
        energy_change = proposal_energy - start_energy
        accepted = energy_change < acceptance_threshold(streams.uniform(Purpose.ACCEPT), self.acceptance)
        position = xp.where(accepted[:, None], proposal, state.position)
        info = HMCInfo(accepted, energy_change, xp.isinf(proposal_energy))
        return ChainState(position, state.momentum, state.precisions), info


def _potential(target: Target, position: Array, precisions: Array) -> Array:
    return finite_or_infinite(target.potential(position, precisions))


def turns(streams: Streams, n_parameters: int, *, random: bool) -> Array:
    """Return the parameter that each chain updates at each turn, (n_turns, n_chains) int64.

    Every parameter has one turn, in order. With `random` there is a single turn, and each chain updates a
    parameter chosen at random.
    """
    xp = array_namespace(streams.chains)
    if random:
        return streams.integers(n_parameters, Purpose.COORDINATE)[None, :]
    return xp.broadcast_to(xp.arange(n_parameters)[:, None], (n_parameters, streams.n_chains))


def describe_turns(random: bool) -> str:
    """Say in a few words which parameters have turns."""
    return "one parameter at random" if random else "each parameter in turn"


@dataclass(frozen=True)
class Line:
    """The potential along one parameter of each chain; the others keep their values in `position`."""

    target: Target
    position: Array
    precisions: Array
    parameter: Array  # (n_chains,) int64

    @property
    def value(self) -> Array:
        """The current value of the parameter, (n_chains,)."""
        return self.position[self._places]

    def at(self, value: Array) -> tuple[Array, Array]:
        """Return the position with the parameter set to `value` (n_chains,), and its potential.

        The potential is (n_chains,), and +inf where it is not finite.
        """
        moved = self.position.copy()
        moved[self._places] = value
        return moved, finite_or_infinite(self.target.potential(moved, self.precisions))

    @property
    def _places(self) -> tuple[Array, Array]:
        xp = array_namespace(self.position)
        return xp.arange(len(self.position)), self.parameter


ONE_AT_A_TIME = (
    "computes energies for one parameter after another, and would have to wait for every part each time;"
    " leave out data.parts, or use metropolis or hybrid"
)
"""Why training cases cannot be divided into parts for updates of one parameter at a time."""


@dataclass(frozen=True)
class Metropolis1(Operation):
    """Random-walk Metropolis updates of one parameter after another.

    random      whether each chain updates a single parameter chosen at random instead of all in order
    acceptance  the acceptance rule, as in `Metropolis`
    """

    stepsize: float
    stepsize_jitter: float | None = None
    random: bool = False
    acceptance: Acceptance = "metropolis"
    op: ClassVar[str] = "metropolis-1"
    undivided: ClassVar[str] = ONE_AT_A_TIME
    has_energy_change: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_stepsize(self.stepsize, self.stepsize_jitter)

    def description(self) -> str:
        stepsize = describe_stepsize(self.stepsize, self.stepsize_jitter)
        proposals = f"metropolis-1: propose {describe_turns(self.random)}, {stepsize}"
        return proposals + describe_acceptance(self.acceptance)

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, HMCInfo]:
        """Propose and decide on one parameter after another, as `Metropolis` does; keep the momentum.

        The info holds the share of accepted proposals, and the energy change of the last proposal.
        """
        xp, target = array_namespace(state.position), context.target
        parameters = turns(streams, target.n_parameters, random=self.random)  # (n_turns, n_chains)
        normal = streams.normal(Purpose.PROPOSAL, (len(parameters),))
        uniform = streams.uniform(Purpose.ACCEPT, (len(parameters),))
        threshold = acceptance_threshold(uniform, self.acceptance)
        stepsizes = scaled_stepsizes(target, state, self.stepsize, self.stepsize_jitter, streams)
        n_accepted, diverged = xp.zeros(streams.n_chains), xp.zeros(streams.n_chains, dtype=bool)
        with np.errstate(all="ignore"):
            position = state.position
            energy = _potential(target, position, state.precisions)
            require_finite(energy, streams)
            for turn, parameter in enumerate(parameters):
                line = Line(target, position, state.precisions, parameter)
                step = stepsizes[xp.arange(streams.n_chains), parameter] * normal[:, turn]
                proposal, proposal_energy = line.at(line.value + step)
                energy_change = proposal_energy - energy
                accepted = energy_change < threshold[:, turn]
                position = xp.where(accepted[:, None], proposal, position)
                energy = xp.where(accepted, proposal_energy, energy)
                n_accepted += accepted
                diverged |= xp.isinf(proposal_energy)
        share = n_accepted / len(parameters)
        return replace(state, position=position), HMCInfo(share, energy_change, diverged)
