"""Ladders in memory, with constant settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc.ladder.bennett import LogRatios, bennett
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.path import Path
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, rows_of
from rayfbnn.mcmc.operation import Operation
from rayfbnn.state import Advance
from rayfbnn.streams import Streams


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
