"""The statistical tests of `selftest`: exact draws must stay exact under the updates of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import scipy.special

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.kernels import choose
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.heatbath import Heatbath, Negate
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.operation import Operation
from rayfbnn.selftest.calculations import Judgement
from rayfbnn.selftest.pivots import LEVEL, is_exact, joint_p_values, ks_p_value, square_p_value
from rayfbnn.selftest.problems import PROBLEMS, Dtype, exact_start
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams

N_ITERATIONS = 4
TOY_OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "plain": (Heatbath(), Hybrid(steps=4, stepsize=0.9)),
    "windows, partial gradients": (
        Heatbath(decay=0.5),
        Hybrid(steps=6, stepsize=0.8, window=3, partitions=3),
        Negate(),
    ),
}


class _Anharmonic:
    """U(q) = q**4/4 + 0.8 cos(2 q + 0.5) + (q - 0.7)**2 / 2 in three terms.

    The density has no symmetry that could hide a wrong sign.
    """

    n_parameters = 1

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        """Return the potential and its gradient, of all terms or, with `partition`, of one of the three."""
        xp, q = array_namespace(position), position[:, 0]
        terms = [
            (q.astype(np.float64) ** 4 / 4, q**3),
            (0.8 * xp.cos(2 * q.astype(np.float64) + 0.5), -1.6 * xp.sin(2 * q + 0.5)),
            ((q.astype(np.float64) - 0.7) ** 2 / 2, q - 0.7),
        ]
        potential, slope = xp.zeros(len(q)), xp.zeros_like(q)
        for number, (value, derivative) in enumerate(terms):
            weight = 1.0 if partition is None else n_partitions * (partition == number)
            potential += weight * value
            slope += weight * derivative
        return potential, slope[:, None].astype(position.dtype)

    def potential(self, position: Array, precisions: Array) -> Array:
        """Return U, (n_chains,)."""
        return self.potential_and_gradient(position, precisions)[0]

    def stepsizes(self, precisions: Array) -> Array:
        """Return 1 for each chain, (n_chains, 1)."""
        return array_namespace(precisions).ones((len(precisions), 1))

    def distribution(self) -> tuple[Array, Array]:
        """Return a grid and the distribution function on it, by trapezoids, with an error below 1e-8."""
        grid = np.linspace(-5, 5, 40_001)
        density = np.exp(-self.potential(grid[:, None], grid[:, None]))
        area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        return grid, area / area[-1]


def _streams(xp: ModuleType, seed: int, n_chains: int) -> Streams:
    """Return random numbers for chains on the host or a device, of the same class as in a run."""
    streams_class = choose.streams_class("cpu" if xp is np else "gpu")
    return streams_class(seed, xp.arange(n_chains, dtype=xp.uint64))


def toy_target(name: str, xp: ModuleType, seed: int, chains: int, dtype: Dtype) -> Judgement:
    """Test that exact draws of a known density stay exact: position, momentum, and the two together."""
    target = _Anharmonic()
    grid, area = target.distribution()
    iteration = schedule.build_iteration(TOY_OPERATIONS[name], target=target, updates={})

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = _streams(xp, seed, n_chains)
        uniform = to_host(streams.uniform(Purpose.INITIAL_PARAMETER))
        state = ChainState(
            xp.asarray(np.interp(uniform, area, grid)[:, None]).astype(dtype),
            streams.normal(Purpose.MOMENTUM, (1,)).astype(dtype),
            xp.ones((n_chains, 1)),
        )
        state = _after_iterations(state, streams, iteration)
        u = np.interp(to_host(state.position)[:, 0].astype(float), grid, area)
        v = scipy.special.ndtr(to_host(state.momentum)[:, 0].astype(float))
        return [ks_p_value(u), ks_p_value(v), square_p_value(u, v)]

    return _exactness(p_values, name=f"selftest {seed}, toy target {name} {dtype}", chains=2 * chains)


def joint(name: str, xp: ModuleType, seed: int, chains: int, dtype: Dtype) -> Judgement:
    """Test that exact draws of parameters, precisions and data stay exact under the updates of a run."""
    plain = PROBLEMS[name].posterior(np, "float64")  # for the statistics, on the host

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = _streams(xp, seed, n_chains)
        target = PROBLEMS[name].posterior(xp, dtype)
        state, data = exact_start(target, streams)
        posterior = target.with_targets(data)
        advance, _ = choose.advance_for(posterior)
        iteration = schedule.build_iteration(
            PROBLEMS[name].updates, target=posterior, updates=posterior.updates, advance=advance
        )
        state = _after_iterations(state, streams, iteration)
        after = ChainState(*(to_host(array).astype(float) for array in vars(state).values()))
        host = _streams(np, seed, n_chains)
        other = replace(host, chains=host.chains + np.uint64(2**31))
        values = joint_p_values(plain, (after, to_host(data)), exact_start(plain, other), host)
        return list(values.values())

    return _exactness(p_values, name=f"selftest {seed}, joint {name} {dtype}", chains=chains)


def _after_iterations(state: ChainState, streams: Streams, iteration: Any) -> ChainState:
    *_, (_, state, _) = schedule.run(state, streams, iteration=iteration, first=1, count=N_ITERATIONS)
    return state


def _exactness(p_values: Callable[[int, int], list[float]], *, name: str, chains: int) -> Judgement:
    """Apply the sequential test at level 1e-5; the value shown is Bonferroni's p-value of its last look."""
    shown: list[float] = []

    def watched(seed: int, n_chains: int) -> list[float]:
        values = p_values(seed, n_chains)
        shown.append(min(1.0, len(values) * min(values)))
        return values

    ok = is_exact(watched, name=name, n_chains=chains)
    return f"p = {shown[-1]:.2g}", f"level {LEVEL:g}", ok
