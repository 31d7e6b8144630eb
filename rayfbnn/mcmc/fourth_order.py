"""A symplectic integrator of fourth order, in place of the leapfrog's second."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.state import Target, Trajectory

# The "optimal" four-stage method for quadratic kinetic energies of McLachlan and Atela (1992), "The accuracy
# of symplectic integrators", Nonlinearity 5, 541-562: kicks b and drifts a, in this order.
_KICKS = (0.1344961992774310892, -0.2248198030794208058, 0.7563200005156682911, 0.3340036032863214255)
_DRIFTS = (0.5153528374311229364, -0.085782019412973646, 0.4415830236164665242, 0.1288461583653841854)

# Half a step of that method and then half a step of its reverse are together their own reverse, as FBM's
# `opt4 sym`. The two drifts that meet in the middle are merged.
KICKS = tuple(b / 2 for b in (*_KICKS, *_KICKS[::-1]))
DRIFTS = tuple(a / 2 for a in (*_DRIFTS[:-1], 2 * _DRIFTS[-1], *_DRIFTS[-2::-1]))

GRADIENTS_PER_STEP = len(DRIFTS)  # the last kick of a step and the first of the next are merged


def advance(
    target: Target,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
) -> tuple[Trajectory, Array]:
    """Take n_steps fourth-order steps of every chain.

    p -= s b_1 dE/dq ;  q += s a_1 p ;  p -= s b_2 dE/dq ;  ... ;  q += s a_7 p ;  p -= s b_8 dE/dq

    with b = KICKS and a = DRIFTS. Both are symmetric, so that negative stepsizes undo a step. Arguments and
    results are those of `leapfrog.advance`. There is no `order`, because with partial gradients the method
    would only be of second order.
    """
    assert order is None, "the fourth-order integrator takes the full gradient"
    if n_steps == 0:
        return leapfrog.advance(target, trajectory, n_steps=0)
    xp = array_namespace(trajectory.position)
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    change = xp.empty_like(position)
    last = n_steps * GRADIENTS_PER_STEP
    with np.errstate(all="ignore"):
        for number in range(last + 1):
            if number > 0:
                xp.multiply(trajectory.stepsizes, momentum, out=change)
                change *= DRIFTS[(number - 1) % GRADIENTS_PER_STEP]
                position += change
            potential, gradient = target.potential_and_gradient(position, trajectory.precisions)
            xp.multiply(trajectory.stepsizes, gradient, out=change)
            change *= _kick(number, last)
            momentum -= change
        return trajectory.moved(position, momentum), finite_or_infinite(potential)


def _kick(number: int, last: int) -> float:
    """Return the factor of kick `number`; the last kick of a step and the first of the next are merged."""
    stage = number % GRADIENTS_PER_STEP
    return KICKS[stage] + (KICKS[-1] if stage == 0 and 0 < number < last else 0.0)
