"""Integrators that compose each step symmetrically from kicks and drifts, given by coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.mcmc.operation import Integrator
from rayfbnn.state import Target, Trajectory


@dataclass(frozen=True)
class Composition:
    """The kicks and drifts of a step, as shares of the stepsizes. The kicks sum to 1, and so do the drifts.

    kicks   b_1, ..., b_{n+1}; the sequence is symmetric
    drifts  a_1, ..., a_n; the sequence is symmetric
    """

    kicks: tuple[float, ...]
    drifts: tuple[float, ...]

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients per step. The last kick of a step and the first of the next share one."""
        return len(self.drifts)

    def kick(self, number: int, last: int) -> float:
        """Return the share of kick `number` of 0 .. last, with kicks merged where two steps meet."""
        stage = number % self.gradients_per_step
        return self.kicks[stage] + (self.kicks[-1] if stage == 0 and 0 < number < last else 0.0)


# Let A and B be the operators of kicks and drifts. The logarithm of a step with kicks x, 1 - 2x, x and drifts
# 1/2, 1/2 is s (A + B) + s**3 ((6 x**2 - 6 x + 1)/12 [A,[A,B]] + (6 x - 1)/24 [B,[B,A]]) + ... The sum of the
# squares of these two coefficients is least at the real root of 48 x**3 - 72 x**2 + 38 x - 5. McLachlan
# (1995), "On the numerical integration of ordinary differential equations by symmetric composition methods".
_LEAST_ERROR = 0.1931833275037836

# The "optimal" four-stage method for quadratic kinetic energies of McLachlan and Atela (1992), "The accuracy
# of symplectic integrators", Nonlinearity 5, 541-562: kicks b and drifts a, in this order.
_KICKS = (0.1344961992774310892, -0.2248198030794208058, 0.7563200005156682911, 0.3340036032863214255)
_DRIFTS = (0.5153528374311229364, -0.085782019412973646, 0.4415830236164665242, 0.1288461583653841854)

COMPOSITIONS: dict[Integrator, Composition] = {
    # `leapfrog.advance` runs these steps, also with partial gradients. A compiled kernel may replace it.
    "leapfrog": Composition((0.5, 0.5), (1.0,)),
    "two-stage": Composition((_LEAST_ERROR, 1 - 2 * _LEAST_ERROR, _LEAST_ERROR), (0.5, 0.5)),
    # Half a step of that method followed by half a step of its reverse is symmetric. FBM calls this
    # `opt4 sym`. The two drifts that meet in the middle are merged.
    "fourth-order": Composition(
        tuple(b / 2 for b in (*_KICKS, *_KICKS[::-1])),
        tuple(a / 2 for a in (*_DRIFTS[:-1], 2 * _DRIFTS[-1], *_DRIFTS[-2::-1])),
    ),
}


def advance(
    target: Target,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    composition: Composition,
) -> tuple[Trajectory, Array]:
    """Take n_steps steps of a composition in every chain, with kicks b and drifts a.

    p -= s b_1 dE/dq ;  q += s a_1 p ;  p -= s b_2 dE/dq ;  ... ;  q += s a_n p ;  p -= s b_{n+1} dE/dq

    Kicks and drifts are symmetric, so negative stepsizes undo a step. Arguments and results are those of
    `leapfrog.advance`, except that `order` must be None. With partial gradients, the approximations would
    determine the error of a step, whatever its coefficients.
    """
    assert order is None, "only the leapfrog takes partial gradients"
    if n_steps == 0:
        return leapfrog.advance(target, trajectory, n_steps=0)
    xp = array_namespace(trajectory.position)
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    change = xp.empty_like(position)
    last = n_steps * composition.gradients_per_step
    with np.errstate(all="ignore"):
        for number in range(last + 1):
            if number > 0:
                xp.multiply(trajectory.stepsizes, momentum, out=change)
                change *= composition.drifts[(number - 1) % composition.gradients_per_step]
                position += change
            potential, gradient = target.potential_and_gradient(position, trajectory.precisions)
            xp.multiply(trajectory.stepsizes, gradient, out=change)
            change *= composition.kick(number, last)
            momentum -= change
        return trajectory.moved(position, momentum), finite_or_infinite(potential)
