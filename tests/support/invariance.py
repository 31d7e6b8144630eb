"""Tests that iterations keep exact draws exact, on targets with known distribution functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import scipy.special

from rayfbnn.arrays import Array, to_host
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.schedule import IterationInfo
from rayfbnn.selftest.pivots import is_exact, ks_p_value, square_p_value
from rayfbnn.state import Advance, ChainState, Target
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import streams_on_array
from tests.support.targets import (
    ANHARMONIC,
    anharmonic_cdf,
    anharmonic_draws,
    banana,
    banana_draws,
    banana_uniforms,
)

N_ITERATIONS = 3
QUICK, LONG = 50_000, 400_000


@dataclass(frozen=True)
class ExactTarget:
    """A target, a function for exact draws from it, and a map that makes them independent and uniform."""

    target: Target
    draws: Callable[[Streams], Array]
    uniforms: Callable[[Array], Array]


ONE = ExactTarget(ANHARMONIC, anharmonic_draws, anharmonic_cdf)
THREE = ExactTarget(banana(), banana_draws, banana_uniforms)


def after_iterations(
    exact: ExactTarget,
    operations: tuple[Operation, ...],
    *,
    seed: int,
    n_chains: int,
    schedule: ModuleType = schedule,
    advance: Advance = leapfrog.advance,
    xp: Any = np,
    dtype: str = "float64",
) -> tuple[ChainState, IterationInfo]:
    """Return the state N_ITERATIONS after exact draws of position and momentum."""
    streams = streams_on_array(seed, xp.arange(n_chains, dtype=xp.uint64))
    state = ChainState(
        exact.draws(streams).astype(dtype),
        streams.normal(Purpose.MOMENTUM, (exact.target.n_parameters,)).astype(dtype),
        xp.ones((n_chains, 1)),
    )
    iteration = schedule.build_iteration(operations, target=exact.target, updates={}, advance=advance)
    *_, (_, state, info) = schedule.run(state, streams, iteration=iteration, first=1, count=N_ITERATIONS)
    return state, info


def stays_exact(
    exact: ExactTarget, operations: tuple[Operation, ...], *, name: str, n_chains: int = QUICK, **options: Any
) -> bool:
    """Return True if parameters, momenta and pairs of neighbours still have their exact distribution."""

    def p_values(seed: int, n_chains: int) -> list[float]:
        state, _ = after_iterations(exact, operations, seed=seed, n_chains=n_chains, **options)
        u = exact.uniforms(to_host(state.position).astype(float))
        v = scipy.special.ndtr(to_host(state.momentum).astype(float))
        columns = [*u.T, *v.T]
        n = len(u.T)
        pairs = [(i, n + i) for i in range(n)] + [
            (i, i + 1) for i in range(2 * n - 1) if n > 1 and i != n - 1
        ]
        values = [ks_p_value(column) for column in columns]
        return values + [square_p_value(columns[i], columns[j]) for i, j in pairs]

    return is_exact(p_values, name=f"invariance of {name}", n_chains=n_chains)
