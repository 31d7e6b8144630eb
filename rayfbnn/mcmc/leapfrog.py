"""The plain leapfrog integrator for any target, with the full gradient or with partial gradients."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.state import Target, Trajectory


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
) -> tuple[Trajectory, Array]:
    """Take n_steps leapfrog steps of every chain.

    p -= s/2 dE/dq ;  q += s p ;  p -= s/2 dE/dq,    with unit mass in coordinates scaled by the stepsizes s

    Neal (1996) eqs. 3.25-3.27. The two half kicks that meet between steps are merged. With `order` = a, a
    step is a multi-leap: K = n_partitions sub-steps of size e = s/K with the gradients of E_k, eq. 3.37:

    p -= e/2 E_a[0]' ; q += e p ; p -= e E_a[1]' ; q += e p ; ... ; p -= e E_a[K-1]' ; q += e p ;
    p -= e/2 E_a[0]'

    Negative stepsizes with the order a[0], a[K-1], ..., a[1] undo it. FBM does the same. Section 3.5.1 of the
    book has K whole leapfrog steps instead, with two gradients for each sub-step. A chain that blows up is
    not stopped: its arrays become NaN, and its potential is +inf.

    Parameters
    ----------
    trajectory : where the chains are; chains with negative stepsizes run backwards
    order : (n_chains, n_partitions) integers, the order of the partial gradients of each chain

    Returns
    -------
    The trajectory at its end, in new arrays, and the potential there, (n_chains,) float64, +inf where it is
    not finite. With n_steps = 0, the results are `trajectory` itself and its potential.
    """
    if n_steps == 0:
        with np.errstate(all="ignore"):
            potential = target.potential(trajectory.position, trajectory.precisions)
            return trajectory, finite_or_infinite(potential)
    xp, precisions = array_namespace(trajectory.position), trajectory.precisions
    n_partitions = 1 if order is None else order.shape[1]
    last = n_steps * n_partitions
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    change = xp.empty_like(position)
    with np.errstate(all="ignore"):
        full = trajectory.stepsizes / n_partitions
        half = full / 2
        for number in range(last + 1):
            if number > 0:
                xp.multiply(full, momentum, out=change)
                position += change
            if order is None:
                potential, gradient = target.potential_and_gradient(position, precisions)
            else:
                _, gradient = target.potential_and_gradient(
                    position,
                    precisions,
                    partition=order[:, number % n_partitions],
                    n_partitions=n_partitions,
                )
            xp.multiply(half if number in (0, last) else full, gradient, out=change)
            momentum -= change
        if order is not None:
            potential = target.potential(position, precisions)
        return trajectory.moved(position, momentum), finite_or_infinite(potential)
