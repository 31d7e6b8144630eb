"""Targets and states on which the tests tune stepsizes and lengths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.automatic import Measured, first_settings, settings_after
from rayfbnn.mcmc.operation import Operation, Settings, Tuning
from rayfbnn.mcmc.operations import Heatbath, Hybrid
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import streams_on_array

AUTOMATIC = Hybrid(steps="auto", stepsize="auto")
ONE = 1 << 40  # in the numbers of Measured


@dataclass(frozen=True)
class Scaled:
    """Independent normals with these standard deviations, and stepsizes that do not depend on them."""

    sigmas: tuple[float, ...]

    @property
    def n_parameters(self) -> int:
        return len(self.sigmas)

    def potential_and_gradient(
        self, position: Array, precisions: Array, *, partition: Array | None = None, n_partitions: int = 1
    ) -> tuple[Array, Array]:
        scaled = position / np.array(self.sigmas) ** 2
        return (scaled * position).sum(axis=1) / 2, scaled

    def potential(self, position: Array, precisions: Array) -> Array:
        return self.potential_and_gradient(position, precisions)[0]

    def stepsizes(self, precisions: Array) -> Array:
        return np.ones((len(precisions), self.n_parameters))


def streams(n_chains: int, *, seed: int = 1, first: int = 0) -> Streams:
    return streams_on_array(seed, np.arange(first, first + n_chains, dtype=np.uint64), iteration=1)


def start(n_chains: int, n_parameters: int, *, seed: int = 1, first: int = 0) -> ChainState:
    s = streams(n_chains, seed=seed, first=first)
    position = s.normal(Purpose.INITIAL_PARAMETER, (n_parameters,))
    return ChainState(position, s.normal(Purpose.MOMENTUM, (n_parameters,)), np.ones((n_chains, 1)))


def tuned(
    target: Any, operation: Hybrid = AUTOMATIC, *, n_rounds: int = 40, n_chains: int = 16, per_round: int = 5
) -> tuple[list[Measured], Settings, ChainState, int]:
    """Run a whole tuning; return its measurements by round, the settings, the state and its iteration."""
    operations: tuple[Operation, ...] = (Heatbath(), operation)
    state, s, number = start(n_chains, target.n_parameters), streams(n_chains), 0
    rounds: list[Measured] = []
    settings = first_settings(operation)
    for _ in range(n_rounds):
        iteration = schedule.build_iteration(
            operations, target=target, updates={}, tuning=Tuning({operation: settings}, is_measured=True)
        )
        measured = []
        for _ in range(per_round):
            number += 1
            state, info = iteration(state, s.at(iteration=number))
            measured.append(info.measured[operation])
        rounds.append(reduce(Measured.__add__, measured))
        settings = settings_after(rounds, operation, n_rounds=n_rounds)
    return rounds, settings, state, number


def frozen(target: Any, operation: Hybrid, settings: Settings, state: ChainState, number: int) -> float:
    """Acceptance of 200 further updates of every chain."""
    iteration = schedule.build_iteration(
        (Heatbath(), operation), target=target, updates={}, tuning=Tuning({operation: settings})
    )
    accepted = []
    for step in range(200):
        state, info = iteration(state, streams(len(state.position)).at(iteration=number + step + 1))
        assert not info.measured
        accepted.append(info.accepted)
    return float(np.mean(accepted))
