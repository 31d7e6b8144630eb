"""Random-walk Metropolis updates of all parameters at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, jittered_stepsize
from rayfbnn.state import ChainState, HMCInfo, Target, Update
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
        """Check the settings."""
        check_stepsize(self.stepsize, self.stepsize_jitter)

    def build(self, context: BuildContext) -> Update:
        """Bind `metropolis` to the target and the stepsize."""
        return partial(
            metropolis,
            target=context.target,
            stepsize=self.stepsize,
            stepsize_jitter=self.stepsize_jitter,
            acceptance=self.acceptance,
        )

    def description(self) -> str:
        """Give the stepsize, and the acceptance rule if it is Barker's."""
        stepsize = describe_stepsize(self.stepsize, self.stepsize_jitter)
        return f"metropolis: propose all parameters at once, {stepsize}{describe_acceptance(self.acceptance)}"


def metropolis(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    stepsize: float,
    stepsize_jitter: float | None = None,
    acceptance: Acceptance = "metropolis",
) -> tuple[ChainState, HMCInfo]:
    """Propose new values of all parameters at once and accept or reject them; the momentum does not change.

    q' = q + stepsize * target.stepsizes * n, where n is standard normal, is accepted with probability
    min(1, exp(U - U')), or 1/(1 + exp(U' - U)) by Barker's rule.

    Neal (1996) sec. 1.3.3. `stepsize_jitter` is explained in `stepsizes.jittered_stepsize`. Barker's rule
    also leaves the distribution invariant, but the asymptotic variance of an estimate is never smaller with
    it; Peskun (1973), "Optimum Monte-Carlo sampling using Markov chains".
    """
    xp = array_namespace(state.position)
    factor = jittered_stepsize(stepsize, stepsize_jitter, streams)
    noise = streams.normal(Purpose.PROPOSAL, state.position.shape[1:])
    with np.errstate(all="ignore"):
        change = factor[:, None] * target.stepsizes(state.precisions) * noise
        proposal = state.position + change.astype(state.position.dtype)
        start_energy = _potential(target, state.position, state.precisions)
        proposal_energy = _potential(target, proposal, state.precisions)
    require_finite(start_energy, streams)
    energy_change = proposal_energy - start_energy
    accepted = energy_change < acceptance_threshold(streams.uniform(Purpose.ACCEPT), acceptance)
    position = xp.where(accepted[:, None], proposal, state.position)
    info = HMCInfo(accepted, energy_change, xp.isinf(proposal_energy))
    return ChainState(position, state.momentum, state.precisions), info


def _potential(target: Target, position: Array, precisions: Array) -> Array:
    return finite_or_infinite(target.potential(position, precisions))
