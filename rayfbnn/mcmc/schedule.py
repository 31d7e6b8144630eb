"""Iterations built from operations, and a generator that runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.automatic import Measured, MeasuredInfo
from rayfbnn.mcmc.operation import BuildContext, ModelUpdate, Operation, Tunable, Tuning, unrolled
from rayfbnn.state import (
    Advance,
    ChainState,
    HMCInfo,
    ProposalsInfo,
    Target,
    UncorrectedInfo,
    Update,
)
from rayfbnn.streams import Streams


@dataclass(frozen=True)
class ExcursionInfo:
    """Information on one excursion to other temperatures, one value for each chain.

    diverged  (n_chains,) number of inner updates that met an energy that was not finite
    """

    diverged: Array


@dataclass(frozen=True)
class IterationInfo:
    """Information on one iteration, with one value for each chain, (n_chains,) each.

    accepted       share of the hybrid and Metropolis updates that were accepted; NaN if there were none
    energy_change  energy change of the last such update or uncorrected trajectory; NaN if there were none
    diverged       number of these updates that met an energy that was not finite. On a device it is NaN if an
                   update started at such an energy; on the host that raises an error at once
    accepted_by    for each operation that makes proposals, the share of its updates that were accepted
    measured       for each operation that is being tuned, its measurements summed over the chains
    """

    accepted: Array
    energy_change: Array
    diverged: Array
    accepted_by: Mapping[Operation, Array] = field(default_factory=dict)
    measured: Mapping[Tunable, Measured] = field(default_factory=dict)


Step: TypeAlias = tuple[int, ChainState, IterationInfo]  # the number of an iteration, and its result


@dataclass(frozen=True)
class Iteration:
    """One iteration: the updates of its operations in order, each with its own random numbers.

    Equal operations must be one object.
    """

    updates: tuple[Update, ...]
    operations: tuple[Operation, ...]

    def __call__(self, state: ChainState, streams: Streams) -> tuple[ChainState, IterationInfo]:
        """Run every update; `streams` gives seed, chains, iteration and the first operation's number."""
        tally = _Tally(streams.n_chains, array_namespace(state.position))
        for number, (operation, update) in enumerate(zip(self.operations, self.updates, strict=True)):
            numbered = streams.at(iteration=streams.iteration, operation=streams.operation + number)
            state, info = update(state, numbered)
            tally.add(operation, info)
        return state, tally.info()


_PROPOSING = HMCInfo, ProposalsInfo
_MOVING = HMCInfo, UncorrectedInfo, ExcursionInfo
_WITH_ENERGY = HMCInfo, UncorrectedInfo


class _Tally:
    """Running totals of the infos of the updates of one iteration."""

    def __init__(self, n_chains: int, xp: Any) -> None:
        self._xp = xp
        self._n_updates = 0
        self._n_accepted, self._diverged = xp.zeros(n_chains), xp.zeros(n_chains)
        self._energy_change = xp.full(n_chains, xp.nan)
        self._shares: dict[int, tuple[Operation, list[Array]]] = {}
        self._measured: dict[Tunable, Measured] = {}

    def add(self, operation: Operation, info: object) -> None:
        """Add the info of one update."""
        if info is None:
            return
        if isinstance(info, _PROPOSING):
            # By identity, because the hash of an operation is that of all its settings.
            self._shares.setdefault(id(operation), (operation, []))[1].append(info.accepted)
        if isinstance(info, _MOVING):
            self._diverged += info.diverged
        if isinstance(info, _WITH_ENERGY):
            self._energy_change = info.energy_change
        if isinstance(info, HMCInfo):
            self._n_updates += 1
            self._n_accepted += info.accepted
            if self._xp is not np:
                started_at_infinity = self._xp.isnan(info.energy_change)
                self._diverged += self._xp.where(started_at_infinity, self._xp.nan, 0.0)
        if isinstance(info, MeasuredInfo):
            before = self._measured.get(info.operation)
            self._measured[info.operation] = info.measured if before is None else before + info.measured

    def info(self) -> IterationInfo:
        """Return the totals and shares."""
        xp, n_chains = self._xp, len(self._diverged)
        is_any = self._n_updates > 0
        return IterationInfo(
            accepted=self._n_accepted / self._n_updates if is_any else xp.full(n_chains, xp.nan),
            energy_change=self._energy_change,
            diverged=self._diverged,
            accepted_by={
                operation: sum(accepted, xp.zeros(n_chains)) / len(accepted)
                for operation, accepted in self._shares.values()
            },
            measured=self._measured,
        )


def build_iteration(
    operations: tuple[Operation, ...],
    *,
    target: Target,
    updates: Mapping[str, ModelUpdate],
    advance: Advance = leapfrog.advance,
    tuning: Tuning | None = None,
) -> Iteration:
    """Build the iteration that `operations` describe, with every `repeat` written out.

    updates  the updates that belong to the model, by name of operation: "sample-sigmas" and "sample-noise"
             are complete, "random-grid" and "rescale" still need their settings
    tuning   the settings of operations that have "auto" settings
    """
    one_of_equal: dict[Operation, Operation] = {}
    flat = tuple(one_of_equal.setdefault(operation, operation) for operation in unrolled(operations))
    built = []
    number = len(flat)  # nested operations are numbered after all of these
    for operation in flat:
        context = BuildContext(target, updates, advance, tuning, first_inner=number)
        built.append(operation.build(context))
        if operation.inner:
            number += 1 + len(unrolled(operation.inner))
    return Iteration(tuple(built), flat)


def run(
    state: ChainState, streams: Streams, *, iteration: Iteration, first: int, count: int
) -> Iterator[Step]:
    """Run iterations first .. first + count - 1, and yield (number, state, info) after each.

    The random numbers depend only on the number of the iteration. A run may therefore stop after any
    iteration and continue from its state.
    """
    for number in range(first, first + count):
        state, info = iteration(state, streams.at(iteration=number))
        yield number, state, info
