"""The iterations of a batch of ladders, in the warm-up and once they exchange states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.ladder import iteration as exchanges
from rayfbnn.mcmc.ladder.iteration import LadderIteration
from rayfbnn.mcmc.ladder.measured import Measured, top_sums
from rayfbnn.mcmc.ladder.path import Path
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState
from rayfbnn.mcmc.ladder.starts import annealing
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.schedule import Iteration, IterationInfo
from rayfbnn.run.ladders.states import WarmUp
from rayfbnn.state import Advance, ChainState
from rayfbnn.store.measurements import LadderMeasured, LadderStarts
from rayfbnn.streams import Streams


@dataclass(frozen=True)
class Warmed:
    """Information on an iteration of the warm-up: on the chains, and on their noise if it is measured."""

    of_chains: IterationInfo
    starts: LadderStarts | None


@dataclass(frozen=True)
class Exchanged:
    """Information on an iteration of ladders: on all levels, on the tops, and its measurements."""

    of_ladders: LadderInfo
    of_tops: IterationInfo
    measured: LadderMeasured | None


@dataclass(frozen=True)
class Annealing:
    """Annealing of the levels of ladders from the prior, in the iterations `first` to `last`."""

    path: Path
    operations: tuple[Operation, ...]
    settings: LadderSettings
    first: int
    last: int
    advance: Advance
    _built: dict[int, Callable[[ChainState, Streams], ChainState]] = field(default_factory=dict)

    def __call__(self, rows: ChainState, streams: Streams) -> ChainState:
        """Run one iteration of all levels of some ladders."""
        n_ladders = len(rows.position) // self.settings.n_levels
        if n_ladders not in self._built:
            self._built[n_ladders] = annealing(
                self.path,
                self.operations,
                self.settings,
                n_ladders=n_ladders,
                n_iterations=self.last - self.first + 1,
                first=self.first,
                advance=self.advance,
            )
        return self._built[n_ladders](rows, streams)


@dataclass(frozen=True)
class WarmingUp:
    """An iteration of the default schedule for ladders of even number, and one of annealing for the others.

    annealing  None before it begins
    measured   the path whose noise is measured in the chains, or None
    """

    chains: Iteration
    annealing: Annealing | None
    measured: Path | None
    most_levels: int

    def __call__(self, state: WarmUp, streams: Streams) -> tuple[WarmUp, Warmed]:
        """Run one iteration; the chains of `streams` are ladders."""
        chains, info = self.chains(state.chains, of_starts(streams, self.most_levels))
        annealed = state.annealed
        if self.annealing is not None:
            assert annealed is not None
            levels = range(self.annealing.settings.n_levels)
            annealed = self.annealing(annealed, of_levels(streams, levels, self.most_levels, parity=1))
        starts = None
        if self.measured is not None:
            starts = LadderStarts(
                len(chains.position), top_sums(self.measured.log_precisions(chains.precisions))
            )
        return WarmUp(chains, annealed), Warmed(info, starts)


@dataclass(frozen=True)
class Exchanging:
    """The iteration of a round, or of the kept iterations, for batches of any number of ladders."""

    path: Path
    operations: tuple[Operation, ...]
    settings: LadderSettings
    most_levels: int
    advance: Advance
    is_measured: bool
    _built: dict[int, LadderIteration] = field(default_factory=dict)

    def __call__(self, state: LadderState, streams: Streams) -> tuple[LadderState, Exchanged]:
        """Run one iteration; the chains of `streams` are ladders."""
        if state.n_ladders not in self._built:
            self._built[state.n_ladders] = exchanges.build(
                self.path, self.operations, self.settings, n_ladders=state.n_ladders, advance=self.advance
            )
        rows = of_levels(streams, range(state.n_levels), self.most_levels)
        state, info = self._built[state.n_ladders](state, rows)
        of_tops = IterationInfo(info.accepted[:, -1] + 0.0, info.energy_change[:, -1], _diverged(info))
        measured = LadderMeasured(self.settings, Measured.of(info)) if self.is_measured else None
        return state, Exchanged(info, of_tops, measured)


def _diverged(info: LadderInfo) -> Array:
    """Return whether the trajectory at each top diverged, (n_ladders,) float64.

    On a device it is NaN if the trajectory of any level of the ladder started at an energy that is not
    finite. On the host that has raised an error.
    """
    xp = array_namespace(info.energy_change)
    is_lost = xp.isnan(info.energy_change).any(axis=1)
    return xp.where(is_lost, xp.nan, info.diverged[:, -1] + 0.0)


def of_starts(streams: Streams, most_levels: int) -> Streams:
    """Return the streams of the chains that ladders of even number start with."""
    return of_levels(streams, range(1), most_levels, parity=0)


def of_levels(streams: Streams, levels: range, most_levels: int, *, parity: int | None = None) -> Streams:
    """Return the streams of some levels of each ladder, or of each second ladder.

    Row k of ladder r has the number r * most_levels + k, however many levels there are. Batches begin with a
    ladder of even number.
    """
    xp = array_namespace(streams.chains)
    ladders = streams.chains if parity is None else streams.chains[parity::2]
    places = xp.arange(levels.start, levels.stop, dtype=xp.uint64)
    numbers = ladders[:, None] * xp.uint64(most_levels) + places
    return replace(streams, chains=xp.ascontiguousarray(numbers.reshape(-1)))
