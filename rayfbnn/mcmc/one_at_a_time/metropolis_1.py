"""Random-walk Metropolis updates of one parameter at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from rayfbnn.arrays import array_namespace
from rayfbnn.mcmc.energy import (
    Acceptance,
    acceptance_threshold,
    describe_acceptance,
    finite_or_infinite,
    require_finite,
)
from rayfbnn.mcmc.one_at_a_time.coordinates import Line, describe_turns, turns
from rayfbnn.mcmc.operation import BuildContext, Operation
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, scaled_stepsizes
from rayfbnn.state import ChainState, HMCInfo, Target, Update
from rayfbnn.streams import Purpose, Streams


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
    has_energy_change: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_stepsize(self.stepsize, self.stepsize_jitter)

    def build(self, context: BuildContext) -> Update:
        """Bind `metropolis_1` to the target and its settings."""
        return partial(
            metropolis_1,
            target=context.target,
            stepsize=self.stepsize,
            stepsize_jitter=self.stepsize_jitter,
            random=self.random,
            acceptance=self.acceptance,
        )

    def why_undivided(self) -> str | None:
        """Return that each parameter would have to wait for every part."""
        return (
            "metropolis-1 computes energies for one parameter after another, and would have to wait for every"
            " part each time; leave out data.parts, or use metropolis or hybrid"
        )

    def description(self) -> str:
        """Say which parameters are proposed, with the stepsize, and Barker's rule if it decides."""
        stepsize = describe_stepsize(self.stepsize, self.stepsize_jitter)
        proposals = f"metropolis-1: propose {describe_turns(self.random)}, {stepsize}"
        return proposals + describe_acceptance(self.acceptance)


def metropolis_1(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    stepsize: float,
    stepsize_jitter: float | None = None,
    random: bool = False,
    acceptance: Acceptance = "metropolis",
) -> tuple[ChainState, HMCInfo]:
    """Propose and decide on one parameter after another, as `metropolis` does; the momentum does not change.

    All parameters are updated in order. With `random`, each chain updates a single parameter chosen at
    random. The info holds the share of accepted proposals, and the energy change of the last proposal.
    """
    xp = array_namespace(state.position)
    parameters = turns(streams, target.n_parameters, random=random)  # (n_turns, n_chains)
    normal = streams.normal(Purpose.PROPOSAL, (len(parameters),))
    threshold = acceptance_threshold(streams.uniform(Purpose.ACCEPT, (len(parameters),)), acceptance)
    stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams)
    n_accepted, diverged = xp.zeros(streams.n_chains), xp.zeros(streams.n_chains, dtype=bool)
    with np.errstate(all="ignore"):
        position = state.position
        energy = finite_or_infinite(target.potential(position, state.precisions))
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
    return replace(state, position=position), HMCInfo(n_accepted / len(parameters), energy_change, diverged)
