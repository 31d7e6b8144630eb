"""Ladders in memory: the warm-up of their chains, both families of starts, and all iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.ladder.adaptation import Plan, adapted, moved
from rayfbnn.mcmc.ladder.bennett import LogRatios, bennett
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.measured import Measured
from rayfbnn.mcmc.ladder.path import Path
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, rows_of, started
from rayfbnn.mcmc.ladder.starts import annealing, filled
from rayfbnn.mcmc.operation import Operation, Settings, Tunable, Tuning, automatic
from rayfbnn.mcmc.tuning.choosing import settings_after
from rayfbnn.mcmc.tuning.settings import first_settings as first_of_operation
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Streams

OnRound = Callable[[int, LadderSettings, Measured, LadderState], None]


@dataclass(frozen=True)
class Frozen:
    """The frozen iterations of ladders: arrays with the axes draw, ladder, level."""

    settings: LadderSettings
    state: LadderState
    measure: Array
    forward: Array
    reverse: Array
    rejection: Array
    accepted: Array
    top: Array
    position: Array  # of the top
    precisions: Array  # of the top

    @property
    def log_ratios(self) -> list[LogRatios]:
        """Bennett's estimates for each ladder."""
        return [bennett(self.forward[:, r], self.reverse[:, r]) for r in range(self.forward.shape[1])]


def warmed(
    phases: Sequence[Any],
    posterior: Any,
    streams: Streams,
    *,
    sigmas: float | None,
    advance: Advance,
    most_rounds: int = 40,
) -> tuple[ChainState, Tuning]:
    """Run the tuning phases of a schedule; return the chains, and the settings found in the last one."""
    state = posterior.initial_state(streams, sigmas=sigmas)
    number = 0
    tuned: dict[Tunable, Settings] = {}
    for phase in phases:
        tuned = {op: first_of_operation(op) for op in automatic(phase.operations)}
        measured: dict[Tunable, list[Measured]] = {op: [] for op in tuned}
        length = -(-phase.iterations // most_rounds)
        n_rounds = -(-phase.iterations // length)
        for start in range(0, phase.iterations, length):
            iteration = schedule.build_iteration(
                phase.operations,
                target=posterior,
                updates=posterior.updates,
                advance=advance,
                tuning=Tuning(tuned, is_measured=True),
            )
            sums: list[Any] = []
            for _ in range(min(length, phase.iterations - start)):
                number += 1
                state, info = iteration(state, streams.at(iteration=number))
                sums.append(info.measured)
            for op in tuned:
                measured[op].append(reduce(lambda a, b: a + b, [one[op] for one in sums]))
                tuned[op] = settings_after(measured[op], op, n_rounds=n_rounds)
    return state, Tuning(tuned)


def settings_of(tuning: Tuning) -> Settings | None:
    """Return the settings that a warm-up found, or None."""
    return next(iter(tuning.settings.values()), None)


def both_families(
    path: Path,
    operations: tuple[Operation, ...],
    chains: ChainState,
    settings: LadderSettings,
    streams: Callable[[Array], Streams],
    *,
    n_annealing: int,
    advance: Advance,
) -> LadderState:
    """Return ladders 0, 2, .. from their own chains, and ladders 1, 3, .. annealed from prior draws."""
    n_a, n_levels = len(chains.position), settings.n_levels
    n_ladders = 2 * n_a
    state_a = filled(chains, settings, path)
    rows = rows_of(range(n_ladders), n_levels).reshape(n_ladders, n_levels)
    of_b = streams(rows[1::2].reshape(-1))
    anneal = annealing(path, operations, settings, n_ladders=n_a, n_iterations=n_annealing, advance=advance)
    chain = path.prior_draw(of_b.at(iteration=0))
    for n in range(1, n_annealing + 1):
        chain = anneal(chain, of_b.at(iteration=n))
    both = []
    for a, b in zip(
        (state_a.chain.position, state_a.chain.momentum, state_a.chain.precisions),
        (chain.position, chain.momentum, chain.precisions),
        strict=True,
    ):
        whole = np.empty((n_ladders, n_levels, a.shape[1]), dtype=a.dtype)
        whole[0::2], whole[1::2] = a.reshape(n_a, n_levels, -1), b.reshape(n_a, n_levels, -1)
        both.append(whole.reshape(n_ladders * n_levels, -1))
    return started(ChainState(*both), n_levels)


def adapt(
    path: Path,
    operations: tuple[Operation, ...],
    state: LadderState,
    settings: LadderSettings,
    plan: Plan,
    streams: Callable[[Array], Streams],
    *,
    first: int,
    advance: Advance,
    on_round: OnRound = lambda *_: None,
) -> tuple[LadderState, LadderSettings, int]:
    """Run all rounds of the adaptation; return the ladders, the frozen settings, and the next iteration."""
    for number, length in enumerate(plan.rounds):
        state, infos = run(path, operations, state, settings, streams, first, length, advance=advance)
        first += length
        measured = reduce(lambda a, b: a + b, [Measured.of(info) for info in infos])
        on_round(number, settings, measured, state)
        after = adapted(settings, measured, ends=path.ends, plan=plan, number=number)
        state, settings = moved(state, settings, after, path), after
    return replace(state, trips=0 * state.trips), settings, first


def run(
    path: Path,
    operations: tuple[Operation, ...],
    state: LadderState,
    settings: LadderSettings,
    streams: Callable[[Array], Streams],
    first: int,
    count: int,
    *,
    advance: Advance,
    on_iteration: Callable[[LadderState], None] = lambda _: None,
) -> tuple[LadderState, list[LadderInfo]]:
    """Run `count` iterations of all ladders with constant settings."""
    iteration = build(path, operations, settings, n_ladders=state.n_ladders, advance=advance)
    random = streams(rows_of(range(state.n_ladders), settings.n_levels))
    infos = []
    for number in range(first, first + count):
        state, info = iteration(state, random.at(iteration=number))
        infos.append(info)
        on_iteration(state)
    return state, infos


def frozen(
    path: Path,
    operations: tuple[Operation, ...],
    state: LadderState,
    settings: LadderSettings,
    streams: Callable[[Array], Streams],
    first: int,
    count: int,
    *,
    advance: Advance,
) -> Frozen:
    """Run iterations with frozen settings, and keep what they measure."""
    positions, precisions = [], []
    top = slice(settings.n_levels - 1, None, settings.n_levels)

    def keep(ladders: LadderState) -> None:
        positions.append(ladders.chain.position[top])
        precisions.append(ladders.chain.precisions[top])

    state, infos = run(
        path, operations, state, settings, streams, first, count, advance=advance, on_iteration=keep
    )

    def stacked(name: str) -> Array:
        return np.array([getattr(info, name) for info in infos])

    names = ("measure", "forward", "reverse", "rejection", "accepted", "top")
    arrays = {name: stacked(name) for name in names}
    return Frozen(
        settings=settings,
        state=state,
        position=np.array(positions),
        precisions=np.array(precisions),
        **arrays,
    )
