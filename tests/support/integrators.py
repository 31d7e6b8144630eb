"""Claims about any integrator: it reverses, keeps volume, and has an energy error of its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.leapfrog import reversed_order
from rayfbnn.mcmc.operation import BuildContext, Operation
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import Streams
from tests.support.targets import BANANA


def reversal_error(
    advance: Advance,
    here: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    back_order: Callable[[Array], Array] = reversed_order,
) -> float:
    """Distance between the start and the state after steps there and back."""
    there, _ = advance(BANANA, here, n_steps=n_steps, order=order)
    turned = replace(there, stepsizes=-here.stepsizes)
    back, _ = advance(BANANA, turned, n_steps=n_steps, order=None if order is None else back_order(order))
    return float(max(abs(back.position - here.position).max(), abs(back.momentum - here.momentum).max()))


def jacobian(advance: Advance, here: Trajectory, *, n_steps: int, order: Array | None = None) -> Array:
    """Derivatives of one chain's state after steps by the state before, by central differences.

    In position / stepsize and momentum, the coordinates in which the masses are one.
    """
    state, width = np.concatenate([here.position, here.momentum], axis=1), 1e-5
    d, n = here.position.shape[1], 4 * here.position.shape[1]
    moved = state + width * np.concatenate([np.eye(2 * d), -np.eye(2 * d)])
    sizes = np.repeat(here.stepsizes, n, axis=0)
    after, _ = advance(
        BANANA,
        Trajectory(moved[:, :d].copy(), moved[:, d:].copy(), np.ones((n, 1)), sizes),
        n_steps=n_steps,
        order=None if order is None else np.repeat(order, n, axis=0),
    )
    states = np.concatenate([after.position, after.momentum], axis=1)
    scale = np.concatenate([here.stepsizes[0], np.ones(d)])
    return ((states[: 2 * d] - states[2 * d :]) / (2 * width)).T * scale / scale[:, None]


def symplectic_error(changed: Array) -> float:
    d = len(changed) // 2
    omega = np.block([[np.zeros((d, d)), np.eye(d)], [-np.eye(d), np.zeros((d, d))]])
    return float(abs(changed.T @ omega @ changed - omega).max())


def energy_error_slope(advance: Advance, here: Trajectory, *, n_steps: int) -> float:
    """Slope of log |change of H| in log stepsize, at the length of n_steps steps from `here`."""
    before = total_energy(BANANA.potential(here.position, here.precisions), here.momentum)
    sizes, errors = 2.0 ** -np.arange(4), []
    for size in sizes:
        shorter = replace(here, stepsizes=size * here.stepsizes)
        moved, potential = advance(BANANA, shorter, n_steps=round(n_steps / size))
        errors.append(np.median(abs(total_energy(potential, moved.momentum) - before)))
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def updating(kind: type[Operation]) -> Callable[..., tuple[ChainState, Any]]:
    """Return one update by an operation as a function of state, streams, target, and its settings."""

    def update(
        state: ChainState,
        streams: Streams,
        *,
        target: Target,
        advance: Advance = leapfrog.advance,
        **settings: Any,
    ) -> tuple[ChainState, Any]:
        return kind(**settings).build(BuildContext(target, {}, advance, None, 0))(state, streams)

    return update
