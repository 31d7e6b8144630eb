"""One iteration of whole ladders: the operations of a schedule at every level, then an exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.mcmc.ladder.records import Energies, LadderInfo, LadderSettings, LadderState, Path
from rayfbnn.mcmc.operation import BuildContext, Operation, Settings, Tunable, Tuning, unrolled
from rayfbnn.mcmc.tempering.inner import taken
from rayfbnn.state import Advance, ChainState, HMCInfo
from rayfbnn.streams import Purpose, Streams


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
        after, differences, exchanged = exchange(replace(state, chain=chain), energies, self.x, last)
        after = replace(after, chain=path.placed(after.chain, self.levels.x))
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
        numbers = Settings(path.on_device(stepsizes[rows]), length, length, settings.scales)
        update = operation.build(
            context(target=target, updates=target.updates, tuning=Tuning({operation: numbers}))
        )
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
        chain = chain.with_chains(part, group.rows)
        whole.accepted[group.rows] = info.accepted
        whole.energy_change[group.rows] = info.energy_change
        whole.diverged[group.rows] = info.diverged
    return chain, whole


@dataclass(frozen=True, eq=False)
class Differences:
    """Differences of energies between neighbouring levels, (n_ladders, K-1) float64 each.

    forward  E_{k+1} - E_k at the state of level k
    reverse  E_k - E_{k+1} at the state of level k+1
    """

    forward: Array
    reverse: Array

    @staticmethod
    def of(energies: Energies, x: Array) -> Differences:
        """Return the differences for states at coordinates x (n_ladders, K)."""
        n_ladders, n_levels = x.shape
        colder = array_namespace(x).concatenate([x[:, 1:], x[:, -1:]], axis=1)
        hotter = array_namespace(x).concatenate([x[:, :1], x[:, :-1]], axis=1)

        def at(coordinates: Array) -> Array:
            return finite_or_infinite(energies.at(coordinates.reshape(-1))).reshape(n_ladders, n_levels)

        own, above, below = at(x), at(colder), at(hotter)
        with np.errstate(invalid="ignore"):
            return Differences((above - own)[:, :-1], (below - own)[:, 1:])

    @property
    def log_ratio(self) -> Array:
        """The log of the ratio that an exchange is accepted with; -inf if an energy is not finite.

        log r = E_k(x_k) + E_{k+1}(x_{k+1}) - E_k(x_{k+1}) - E_{k+1}(x_k)
        """
        xp = array_namespace(self.forward)
        with np.errstate(invalid="ignore"):
            ratio = -(self.forward + self.reverse)
        return xp.where(xp.isnan(ratio), -xp.inf, ratio)

    @property
    def rejection(self) -> Array:
        """1 - min(1, r) of every pair, tried or not."""
        xp = array_namespace(self.forward)
        return -xp.expm1(xp.minimum(self.log_ratio, 0.0))


def tried(n_levels: int, iteration: int) -> Array:
    """Return which pairs (k, k+1) are tried in an iteration, (K-1,) bool: the even and the odd ones in turn.

    A state that is accepted goes on in its direction. Syed, Bouchard-Cote, Deligiannidis and Doucet (2022),
    "Non-reversible parallel tempering", section 3.
    """
    is_tried: Array = np.arange(n_levels - 1) % 2 == iteration % 2
    return is_tried


def exchange(
    state: LadderState, energies: Energies, x: Array, streams: Streams
) -> tuple[LadderState, Differences, Array]:
    """Exchange neighbours, each pair with probability min(1, r); return also differences and exchanges.

    In iterations that do not try the pair at the top, the top then tries to exchange with another level. A
    state whose noise is not that of the last held level would otherwise stay at the top.

    energies  of the states
    x         (n_ladders, K) coordinates of the levels
    """
    xp = array_namespace(x)
    differences = Differences.of(energies, x)
    log_uniforms = xp.log(streams.uniform(Purpose.ACCEPT).reshape(x.shape))
    on_host = tried(x.shape[1], streams.iteration)
    # The uniform number of a pair is that of its hotter row.
    exchanged = xp.asarray(on_host) & (log_uniforms[:, :-1] < differences.log_ratio)
    source = xp.tile(xp.arange(x.shape[1]), (len(x), 1))  # the level that each level's state comes from
    source[:, :-1] += exchanged
    source[:, 1:] -= exchanged
    if not on_host[-1]:
        source = _with_top(source, energies, x, log_uniforms[:, -1], streams)
    return _moved(state, source), differences, exchanged


def _with_top(source: Array, energies: Energies, x: Array, log_uniform: Array, streams: Streams) -> Array:
    """Exchange the top with a level from the colder half, drawn independently of the states.

    source, and the result  (n_ladders, K) the level that each level's state comes from
    """
    n_ladders, n_levels = x.shape
    xp, ladders = array_namespace(x), array_namespace(x).arange(n_ladders)
    first = (n_levels - 1) // 2
    uniform = streams.uniform(Purpose.COORDINATE)[::n_levels]
    level = first + xp.floor(uniform * (n_levels - 1 - first)).astype(xp.int64)
    other = x.copy()
    other[ladders, level], other[:, -1] = x[:, -1], x[ladders, level]
    rows = _rows(source)

    def at(coordinates: Array) -> Array:
        """Return the energies at these coordinates of the states that come from `source`."""
        placed = xp.empty(x.size)
        placed[rows] = coordinates.reshape(-1)
        return finite_or_infinite(energies.at(placed)[rows]).reshape(x.shape)

    own, there = at(x), at(other)
    with np.errstate(invalid="ignore"):
        log_ratio = (own - there)[ladders, level] + (own - there)[:, -1]
    is_exchanged = log_uniform < xp.where(xp.isnan(log_ratio), -xp.inf, log_ratio)
    swapped = source.copy()
    swapped[:, -1] = xp.where(is_exchanged, source[ladders, level], source[:, -1])
    swapped[ladders, level] = xp.where(is_exchanged, source[:, -1], source[ladders, level])
    return swapped


def _rows(source: Array) -> Array:
    """Return the rows of the states that come from these levels (n_ladders, K)."""
    xp = array_namespace(source)
    return (source + source.shape[1] * xp.arange(len(source))[:, None]).reshape(-1)


def _moved(state: LadderState, source: Array) -> LadderState:
    """Return the ladders with the state of level source[r, k] at level k of ladder r.

    Each replica keeps the end that it visited last, and journeys to the top are counted.
    """
    xp = array_namespace(source)
    replica, end = (xp.take_along_axis(values, source, axis=1) for values in (state.replica, state.end))
    trips = state.trips + (end[:, -1] == 0)
    end[:, 0], end[:, -1] = 0, 1
    return LadderState(state.chain.of_chains(_rows(source)), replica, end, trips)
