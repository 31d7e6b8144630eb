"""The integrators: leapfrog steps, and other symmetric compositions of kicks and drifts, for any target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.state import Advance, Target, Trajectory
from rayfbnn.streams import Purpose, Streams

Integrator: TypeAlias = Literal["leapfrog", "two-stage", "fourth-order"]
Order: TypeAlias = Literal["cyclic"]


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

LEAPFROG = Composition((0.5, 0.5), (1.0,))
COMPOSITIONS: dict[Integrator, Composition] = {
    "leapfrog": LEAPFROG,
    "two-stage": Composition((_LEAST_ERROR, 1 - 2 * _LEAST_ERROR, _LEAST_ERROR), (0.5, 0.5)),
    # Half a step of that method followed by half a step of its reverse is symmetric. FBM calls this
    # `opt4 sym`. The two drifts that meet in the middle are merged.
    "fourth-order": Composition(
        tuple(b / 2 for b in (*_KICKS, *_KICKS[::-1])),
        tuple(a / 2 for a in (*_DRIFTS[:-1], 2 * _DRIFTS[-1], *_DRIFTS[-2::-1])),
    ),
}


def kick(target: Target, trajectory: Trajectory, *, share: float) -> Array:
    """Return the momentum after a kick by `share` times the stepsizes, see `state.Kick`.

    `advance` runs the same trajectory as half kicks at both ends, whole kicks between them, and a drift
    q += s p before each kick but the first. In array code the bits are the same.
    """
    with np.errstate(all="ignore"):
        _, gradient = target.potential_and_gradient(trajectory.position, trajectory.precisions)
        return trajectory.momentum - share * trajectory.stepsizes * gradient


def advance(
    target: Target,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    composition: Composition = LEAPFROG,
) -> tuple[Trajectory, Array]:
    """Take n_steps steps of every chain, with kicks b and drifts a of a composition; by default the leapfrog.

    p -= s b_1 dE/dq ;  q += s a_1 p ;  p -= s b_2 dE/dq ;  ... ;  q += s a_n p ;  p -= s b_{n+1} dE/dq

    The mass is one in coordinates scaled by the stepsizes s. The leapfrog has b = 1/2, 1/2 and a = 1, Neal
    (1996) eqs. 3.25-3.27. The two kicks that meet between steps are merged. With `order` = a, a leapfrog step
    is a multi-leap: K = n_partitions sub-steps of size e = s/K with the gradients of E_k, eq. 3.37:

    p -= e/2 E_a[0]' ; q += e p ; p -= e E_a[1]' ; q += e p ; ... ; p -= e E_a[K-1]' ; q += e p ;
    p -= e/2 E_a[0]'

    Negative stepsizes undo a step; with an order, together with a[0], a[K-1], ..., a[1]. FBM does the same.
    Section 3.5.1 of the book has K whole leapfrog steps instead, with two gradients for each sub-step.

    A chain that blows up is not stopped: its arrays become NaN, and its potential is +inf.

    Parameters
    ----------
    trajectory : where the chains are; chains with negative stepsizes run backwards
    order : (n_chains, n_partitions) integers, the order of the partial gradients of each chain; only for the
        leapfrog, as the approximations would determine the error of a step, whatever its coefficients

    Returns
    -------
    The trajectory at its end, in new arrays, and the potential there, (n_chains,) float64, +inf where it is
    not finite. With n_steps = 0, the results are `trajectory` itself and its potential.
    """
    assert order is None or composition is LEAPFROG
    if n_steps == 0:
        with np.errstate(all="ignore"):
            potential = target.potential(trajectory.position, trajectory.precisions)
            return trajectory, finite_or_infinite(potential)
    xp, precisions = array_namespace(trajectory.position), trajectory.precisions
    n_partitions = 1 if order is None else order.shape[1]
    n_drifts = composition.gradients_per_step
    last = n_steps * n_partitions * n_drifts
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    change = xp.empty_like(position)
    with np.errstate(all="ignore"):
        sizes = trajectory.stepsizes / n_partitions
        for number in range(last + 1):
            if number > 0:
                _scale(sizes, momentum, composition.drifts[(number - 1) % n_drifts], out=change)
                position += change
            if order is None:
                potential, gradient = target.potential_and_gradient(position, precisions)
            else:
                part = order[:, number % n_partitions]
                _, gradient = target.potential_and_gradient(
                    position, precisions, partition=part, n_partitions=n_partitions
                )
            _scale(sizes, gradient, composition.kick(number, last), out=change)
            momentum -= change
        if order is not None:
            potential = target.potential(position, precisions)
        return trajectory.moved(position, momentum), finite_or_infinite(potential)


def integrator_of(name: Integrator, leapfrog: Advance) -> Advance:
    """Return the Advance that runs steps of this kind, given the one that runs leapfrog steps."""
    return leapfrog if name == "leapfrog" else partial(advance, composition=COMPOSITIONS[name])


def _scale(sizes: Array, values: Array, share: float, *, out: Array) -> None:
    """Write sizes * values * share to `out`."""
    array_namespace(out).multiply(sizes, values, out=out)
    if share != 1:
        out *= share


def drawn_order(streams: Streams, partitions: int, order: Order | None) -> Array | None:
    """Draw the order of the partial gradients of a trajectory, for each chain.

    Without `order` it is a random permutation. With "cyclic" it is a[j] = d j mod K with K = partitions and a
    direction d = +1 or -1, each with probability 1/2.

    Each chain draws its own order for each trajectory. A trajectory run backwards takes the reversed order
    (`reversed_order`), so an update with a fixed order would not be reversible for K > 2. If several chains
    shared an order, each chain's distribution would be invariant but their joint distribution would not: the
    chains would become dependent.

    Returns
    -------
    (n_chains, partitions) int64, or None if there is only one partition.
    """
    if partitions == 1:
        return None
    if order is None:
        return streams.permutation(partitions, Purpose.PARTITION_ORDER)
    xp = array_namespace(streams.chains)
    direction = 1 - 2 * streams.integers(2, Purpose.PARTITION_ORDER)
    return direction[:, None] * xp.arange(partitions) % partitions


def reversed_order(order: Array) -> Array:
    """Return the order a[0], a[K-1], ..., a[1], which undoes a step in the order a; (n_chains, K)."""
    xp = array_namespace(order)
    return xp.concatenate([order[:, :1], order[:, :0:-1]], axis=1)
