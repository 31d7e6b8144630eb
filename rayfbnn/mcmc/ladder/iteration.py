"""One iteration of whole ladders: the operations of a schedule at every level, then an exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.ladder.exchange import exchange
from rayfbnn.mcmc.ladder.path import Path
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState
from rayfbnn.mcmc.operation import (
    BuildContext,
    Operation,
    Settings,
    Tunable,
    Tuning,
    unrolled,
)
from rayfbnn.mcmc.tempering.inner import put_back, taken
from rayfbnn.state import Advance, ChainState, HMCInfo
from rayfbnn.streams import Streams


@dataclass(frozen=True)
class Group:
    """The rows whose trajectories have the same number of steps.

    rows    (n,) their numbers, or None for all rows
    update  the trajectories of these rows
    """

    rows: Array | None
    update: Callable[..., tuple[ChainState, HMCInfo]]


@dataclass(frozen=True)
class Levels:
    """The operations of one iteration at every level, without an exchange.

    x           (n_rows,) coordinates of the rows
    updates     for each operation an update of all rows, or the groups of its trajectories
    """

    path: Path
    x: Array
    updates: tuple[Callable[..., Any] | tuple[Group, ...], ...]

    def __call__(self, chain: ChainState, streams: Streams) -> tuple[ChainState, HMCInfo]:
        """Return the chains after every operation, and the info of the last trajectories."""
        chain = self.path.placed(chain, self.x)
        info: HMCInfo | None = None
        for number, update in enumerate(self.updates):
            numbered = streams.at(iteration=streams.iteration, operation=streams.operation + number)
            if isinstance(update, tuple):
                chain, info = _in_groups(chain, numbered, update)
            else:
                chain, _ = update(chain, numbered)
                chain = self.path.placed(chain, self.x)
        assert info is not None
        return chain, info


@dataclass(frozen=True)
class LadderIteration:
    """One iteration of whole ladders.

    levels  the operations at every level
    x       (n_ladders, K) coordinates of the levels
    """

    levels: Levels
    x: Array

    def __call__(self, state: LadderState, streams: Streams) -> tuple[LadderState, LadderInfo]:
        """Run every operation at every level, then exchange states between levels.

        A row of a ladder depends on its own ladder alone. The exchange has its own number among operations.
        """
        xp, shape, path = array_namespace(self.x), self.x.shape, self.levels.path
        chain, moved = self.levels(state.chain, streams)
        last = streams.at(iteration=streams.iteration, operation=streams.operation + len(self.levels.updates))
        is_below = xp.ones(shape, dtype=bool)
        is_below[:, -1] = False
        chain, energies = path.offered(chain, last, is_below=is_below.reshape(-1))
        after, differences, exchanged = exchange(state.with_chain(chain), energies, self.x, last)
        after = after.with_chain(path.placed(after.chain, self.levels.x))
        info = LadderInfo(
            accepted=moved.accepted.reshape(shape),
            diverged=moved.diverged.reshape(shape),
            energy_change=moved.energy_change.reshape(shape),
            measure=energies.measure.reshape(shape),
            forward=differences.forward,
            reverse=differences.reverse,
            rejection=differences.rejection,
            exchanged=exchanged,
            top=path.log_precisions(after.chain.precisions[shape[1] - 1 :: shape[1]]),
        )
        return after, info


def build(
    path: Path,
    operations: tuple[Operation, ...],
    settings: LadderSettings,
    *,
    n_ladders: int,
    advance: Advance,
) -> LadderIteration:
    """Build the iteration of `n_ladders` ladders from the operations of a schedule.

    The settings give the stepsizes and lengths of the one operation that follows trajectories.
    """
    path = path.with_multipliers(settings.multipliers)
    x = np.tile(np.array([*settings.levels, path.ends.top]), (n_ladders, 1))
    levels = at_levels(path, operations, settings, x.reshape(-1), advance=advance)
    return LadderIteration(levels, path.on_device(x))


def at_levels(
    path: Path,
    operations: tuple[Operation, ...],
    settings: LadderSettings,
    x: Sequence[float] | Array,
    *,
    advance: Advance,
) -> Levels:
    """Build the operations at every level, for rows at coordinates x (n_rows,); the levels alternate."""
    flat = unrolled(operations)
    check_operations(flat)
    host = np.asarray(x, dtype=np.float64)
    coordinates = path.on_device(host)
    level = np.arange(len(host)) % settings.n_levels
    updates: list[Callable[..., Any] | tuple[Group, ...]] = []
    for number, operation in enumerate(flat):
        context = partial(BuildContext, advance=advance, first_inner=len(flat) + number)
        if isinstance(operation, Tunable):
            updates.append(_groups(path, operation, settings, host, level, context))
        else:
            target = path.target(coordinates)
            built = context(target=target, updates=target.updates, tuning=None)
            updates.append(operation.build(built))
    return Levels(path, coordinates, tuple(updates))


def check_operations(operations: tuple[Operation, ...]) -> None:
    """Raise ConfigError unless exactly one operation follows trajectories, and none tempers or has bias."""
    if sum(isinstance(operation, Tunable) for operation in operations) != 1:
        names = ", ".join(operation.op for operation in operations)
        raise ConfigError(
            f"ladder: needs exactly one hybrid or hybrid-marginal among its operations, got {names}"
        )
    for operation in operations:
        if operation.inner or operation.is_tempering or not operation.is_exact:
            raise ConfigError(f"ladder: operations must be exact and must not temper, got {operation.op}")


def _groups(
    path: Path,
    operation: Tunable,
    settings: LadderSettings,
    x: Array,
    level: Array,
    context: Callable[..., BuildContext],
) -> tuple[Group, ...]:
    """Build the trajectories of the rows with each number of steps."""
    steps, stepsizes = np.array(settings.steps)[level], np.array(settings.stepsizes)[level]
    groups = []
    for length in sorted(set(settings.steps)):
        rows = np.flatnonzero(steps == length)
        if len(rows) == 0:
            continue
        target = path.target(path.on_device(x[rows]))
        numbers = Settings(1.0, length, length, settings.scales)
        built = operation.build(
            context(target=target, updates=target.updates, tuning=Tuning({operation: numbers}))
        )
        update = partial(cast(Callable[..., Any], built), stepsize=path.on_device(stepsizes[rows]))
        groups.append(Group(None if len(rows) == len(x) else path.on_device(rows), update))
    return tuple(groups)


def _in_groups(chain: ChainState, streams: Streams, groups: tuple[Group, ...]) -> tuple[ChainState, HMCInfo]:
    """Run the trajectories of every group, and gather their infos."""
    n = streams.n_chains
    xp = array_namespace(chain.position)
    whole = HMCInfo(xp.zeros(n, dtype=bool), xp.zeros(n), xp.zeros(n, dtype=bool))
    for group in groups:
        if group.rows is None:
            return group.update(chain, streams)
        part, of_part = taken(chain, streams, group.rows)
        part, info = group.update(part, of_part)
        chain = put_back(chain, part, group.rows)
        whole.accepted[group.rows] = info.accepted
        whole.energy_change[group.rows] = info.energy_change
        whole.diverged[group.rows] = info.diverged
    return chain, whole
