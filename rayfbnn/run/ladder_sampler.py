"""The job of a worker that runs ladders: their iterations, their states in the store, and their blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.errors import StoreCorruptError
from rayfbnn.mcmc.automatic import fixed_point_sums
from rayfbnn.mcmc.ladder import iteration as exchanges
from rayfbnn.mcmc.ladder.adaptation import MeasuredLadders, moved
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, started
from rayfbnn.mcmc.ladder.starts import annealing, filled
from rayfbnn.mcmc.schedule import IterationInfo
from rayfbnn.model.ladder_path import path_of
from rayfbnn.run.job import BlockPlan, Collected
from rayfbnn.run.sampler import Sampler, densities_of
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import FORWARD, REPLICA, REVERSE, ROUND_TRIPS, ladder_shapes, measure_name
from rayfbnn.store.records import Record
from rayfbnn.store.rounds import LadderMeasured, LadderStarts, round_of
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams


class LadderSampler(Sampler):
    """An open store of ladders, for a worker. The chains of the store are ladders.

    Ladders of even number begin with one chain, which runs the default schedule; the noise of these chains
    gives the first levels. The levels of odd ladders are then annealed from the prior. After that all ladders
    exchange states, in rounds with the settings that follow from the round before, and at last with settings
    that no longer change.
    """

    def __init__(self, store: Store, *, worker: str = "") -> None:
        super().__init__(store, worker=worker)
        assert store.spec.ladder is not None
        self.most_levels = store.spec.ladder.most_levels
        self.path = path_of(self.posterior)
        self.of_ladder = tuple(ladder_shapes(store.spec, self.most_levels))
        # The latest iteration, which holds buffers: its phase and settings, and by the size of a batch.
        self._key: object = None
        self._built: dict[int, Callable[[Any, Streams], tuple[Any, Any]]] = {}

    def _settings_at(self, iteration: int) -> LadderSettings | None:
        rounds = self.store.tuning.ladder_rounds(iteration)
        return rounds[-1].settings if rounds else None

    def _last_of(self, phase: int) -> int:
        return sum(one.iterations for one in self.store.spec.phase[: phase + 1])

    def _iteration(self, plan: BlockPlan, n_chains: int) -> Callable[[Any, Streams], tuple[Any, Any]]:
        settings = self._settings_at(plan.first)
        is_warmup = plan.phase <= self.store.spec.annealing_phase
        key = self._iteration_of_chains(plan) if is_warmup else plan.phase, settings
        if self._key != key:
            self._key, self._built = key, {}
        if n_chains not in self._built:
            build = self._warming_up if is_warmup else self._exchanging
            self._built[n_chains] = build(plan, settings, n_chains)
        return self._built[n_chains]

    def _warming_up(
        self, plan: BlockPlan, settings: LadderSettings | None, n_ladders: int
    ) -> Callable[[WarmUp, Streams], tuple[WarmUp, Warmed]]:
        """Return an iteration of the default schedule for even ladders, and of annealing for the others."""
        spec, path, most_levels = self.store.spec, self.path, self.most_levels
        chains, annealed, n_levels = self._iteration_of_chains(plan), None, 0
        if settings is not None:
            first, n_levels = self.store.tuning.first_of_annealing, settings.n_levels
            annealed = annealing(
                path,
                spec.phase[-1].operations,
                settings,
                n_ladders=n_ladders // 2,
                n_iterations=self._last_of(spec.annealing_phase) - first + 1,
                first=first,
                advance=self.advance,
            )
        is_measured = annealed is None and plan.phase == spec.annealing_phase

        def iteration(state: WarmUp, streams: Streams) -> tuple[WarmUp, Warmed]:
            moved_chains, info = chains(state.chains, of_starts(streams, most_levels))
            rows = state.annealed
            if annealed is not None:
                assert rows is not None
                rows = annealed(rows, of_levels(streams, range(n_levels), most_levels, parity=1))
            starts = None
            if is_measured:
                precisions = moved_chains.precisions
                starts = LadderStarts(len(precisions), fixed_point_sums(path.log_precisions(precisions)))
            return WarmUp(moved_chains, rows), Warmed(info, starts)

        return iteration

    def _exchanging(
        self, plan: BlockPlan, settings: LadderSettings | None, n_ladders: int
    ) -> Callable[[LadderState, Streams], tuple[LadderState, Exchanged]]:
        """Return an iteration of exchanges, with measurements in the rounds of tuning."""
        assert settings is not None
        operations, most_levels = self.store.spec.phase[plan.phase].operations, self.most_levels
        exchange = exchanges.build(self.path, operations, settings, n_ladders=n_ladders, advance=self.advance)
        is_measured = round_of(self.store.tuning.rounds, plan.first) is not None

        def iteration(state: LadderState, streams: Streams) -> tuple[LadderState, Exchanged]:
            state, info = exchange(state, of_levels(streams, range(state.n_levels), most_levels))
            of_tops = IterationInfo(info.accepted[:, -1] + 0.0, info.energy_change[:, -1], _diverged(info))
            measured = LadderMeasured(settings, MeasuredLadders.of(info)) if is_measured else None
            return state, Exchanged(info, of_tops, measured)

        return iteration

    def _launch_next(self, done: int, state: Any, streams: Streams) -> None:
        """Launch nothing ahead: the number of levels may change where a block ends."""

    def _load(self, last: Record | None, streams: Streams) -> WarmUp | LadderState:
        """Return the ladders as they are before the iteration that follows a batch's last block."""
        if last is None:
            initial, starts = self.store.spec.initial, of_starts(streams.at(iteration=0), self.most_levels)
            is_shared = initial.shared
            chains = self.posterior.initial_state(starts, sigmas=initial.sigmas, is_shared=is_shared)
            return WarmUp(chains, None)
        done, spec = last.progress.iteration, self.store.spec
        before, after = self._settings_at(done), self._settings_at(done + 1)
        arrays = self.store.commits.named_state_after(last)
        xp = device_namespace(spec.device)
        if done <= self._last_of(spec.annealing_phase):
            rows = partial(_rows, arrays, dtype=spec.dtype, xp=xp)
            annealed = None if before is None else rows(_ODD, before.n_levels)
            return self._warmer(WarmUp(rows(_EVEN, 1), annealed), before, after, streams, done=done)
        assert before is not None and after is not None
        if not are_journeys(arrays, before.n_levels):
            raise StoreCorruptError(
                f"{self.store.path}: damaged: the state after block {last.block} of batch {last.batch} is not"
                f" that of ladders with {before.n_levels} levels"
            )
        ladders = ladders_from(arrays, before.n_levels, dtype=spec.dtype, xp=xp)
        if before != after:
            ladders = moved(ladders, before, after, self.path)
        is_first_kept = done == self._last_of(spec.annealing_phase + 1)
        return started(ladders.chain, after.n_levels) if is_first_kept else ladders

    def _warmer(
        self,
        warm: WarmUp,
        before: LadderSettings | None,
        after: LadderSettings | None,
        streams: Streams,
        *,
        done: int,
    ) -> WarmUp | LadderState:
        """Return the ladders with what begins after `done` iterations: annealing, or exchanges."""
        if after is None:
            return warm
        if before is None:
            rows = of_levels(streams, range(after.n_levels), self.most_levels, parity=1)
            return WarmUp(warm.chains, self.path.prior_draw(rows))
        if done < self._last_of(self.store.spec.annealing_phase):
            return warm
        assert warm.annealed is not None
        even = filled(warm.chains, after, self.path)
        return alternating(even, started(warm.annealed, after.n_levels))

    def _stored(self, state: WarmUp | LadderState) -> Mapping[str, Array]:
        return arrays_of(state, self.most_levels)

    def _collect(self, collected: Collected, state: Any, info: Any, streams: Streams) -> None:
        if isinstance(state, WarmUp):
            collected.add(state.chains, info.of_chains, {}, streams)
            if info.starts is not None:
                collected.add_measured(LadderStarts, info.starts)
            return
        top, draw = tops(state), {}
        if collected.keep:
            draw = densities_of(top, self.posterior, self.advance) | self._of_draw(state, info.of_ladders)
        collected.add(top, info.of_tops, draw, streams)
        if info.measured is not None:
            collected.add_measured(LadderMeasured, info.measured)

    def _of_draw(self, state: LadderState, info: LadderInfo) -> dict[str, Array]:
        """Return the arrays of a draw of each ladder, with NaN for the levels that no ladder has."""
        values = {
            measure_name(self.store.spec): info.measure,
            FORWARD: info.forward,
            REVERSE: info.reverse,
            REPLICA: state.replica[:, -1],
            ROUND_TRIPS: state.trips,
        }
        shapes = ladder_shapes(self.store.spec, self.most_levels)
        return {name: _padded(values[name], shape) for name, shape in shapes.items()}


def _padded(values: Array, shape: tuple[int, ...]) -> Array:
    """Return values (n_ladders, n) with NaN at the end, (n_ladders, *shape) in float32."""
    xp = array_namespace(values)
    whole = xp.full((len(values), *shape), xp.nan, dtype=xp.float32)
    whole[(slice(None), *(slice(0, n) for n in values.shape[1:]))] = values
    return whole


_EVEN, _ODD = slice(0, None, 2), slice(1, None, 2)  # a batch begins with a ladder of even number


@dataclass(frozen=True)
class WarmUp:
    """The ladders of a batch before their levels exchange anything.

    chains    a row for each ladder of an even number: its chain, which moves towards the posterior
    annealed  a row for each level of each ladder of an odd number, on its way from the prior; None before
              they have levels
    """

    chains: ChainState
    annealed: ChainState | None


def arrays_of(state: WarmUp | LadderState, most_levels: int) -> dict[str, Array]:
    """Return the arrays that the store keeps, (n_ladders, ...) each, with NaN for absent levels."""
    if isinstance(state, WarmUp):
        n_pairs = len(state.chains.position)
        arrays = _empty(state.chains, 2 * n_pairs, most_levels)
        _put(arrays, _EVEN, _by_ladder(state.chains, n_pairs))
        if state.annealed is not None:
            _put(arrays, _ODD, _by_ladder(state.annealed, n_pairs))
        return arrays
    arrays = _empty(state.chain, state.n_ladders, most_levels)
    travels = {name: to_host(getattr(state, name)) for name in ("replica", "end", "trips")}
    _put(arrays, slice(None), _by_ladder(state.chain, state.n_ladders) | travels)
    return arrays


def _empty(like: ChainState, n_ladders: int, most_levels: int) -> dict[str, Array]:
    shapes = {
        "position": (most_levels, like.position.shape[1]),
        "precisions": (most_levels, like.precisions.shape[1]),
        "replica": (most_levels,),
        "end": (most_levels,),
        "trips": (),
    }
    return {name: np.full((n_ladders, *shape), np.nan) for name, shape in shapes.items()}


def _put(arrays: dict[str, Array], ladders: slice, values: Mapping[str, Array]) -> None:
    for name, of_levels in values.items():
        if of_levels.ndim == 1:
            arrays[name][ladders] = of_levels
        else:
            arrays[name][ladders, : of_levels.shape[1]] = of_levels


def _by_ladder(chain: ChainState, n_ladders: int) -> dict[str, Array]:
    """Return positions and precisions with an axis for the ladders, (n_ladders, n_levels, n) on the host."""
    arrays = {"position": to_host(chain.position), "precisions": to_host(chain.precisions)}
    return {name: values.reshape(n_ladders, -1, values.shape[1]) for name, values in arrays.items()}


def are_journeys(arrays: Mapping[str, Array], n_levels: int) -> bool:
    """Return True if arrays of the store say where the replicas of ladders with `n_levels` levels have been.

    Every level has one of the replicas, and only the levels that there are have any.
    """
    replica, end, trips = (arrays[name] for name in ("replica", "end", "trips"))
    are_replicas = (np.sort(replica[:, :n_levels], axis=1) == np.arange(n_levels)).all()
    are_ends = np.isin(end[:, :n_levels], (-1, 0, 1)).all()
    are_whole = (trips == np.floor(trips)).all() and ((trips >= 0) & (trips < 2**53)).all()
    return bool(are_replicas and are_ends and are_whole and np.isnan(replica[:, n_levels:]).all())


def ladders_from(arrays: Mapping[str, Array], n_levels: int, *, dtype: str, xp: Any) -> LadderState:
    """Return ladders with `n_levels` levels from arrays of the store."""
    whole = {
        name: xp.asarray(
            arrays[name][:, :n_levels] if arrays[name].ndim > 1 else arrays[name], dtype=xp.int64
        )
        for name in ("replica", "end", "trips")
    }
    return LadderState(_rows(arrays, slice(None), n_levels, dtype=dtype, xp=xp), **whole)


def _rows(arrays: Mapping[str, Array], ladders: slice, n_levels: int, *, dtype: str, xp: Any) -> ChainState:
    """Return the rows of some ladders; their momentum is 0, because each iteration draws another."""
    position, precisions = (arrays[name][ladders, :n_levels] for name in ("position", "precisions"))
    position = xp.ascontiguousarray(xp.asarray(position.reshape(-1, position.shape[2]), dtype=dtype))
    precisions = xp.asarray(precisions.reshape(-1, precisions.shape[2]), dtype=np.float64)
    return ChainState(position, xp.zeros_like(position), xp.ascontiguousarray(precisions))


def alternating(even: LadderState, odd: LadderState) -> LadderState:
    """Return the ladders of even and of odd numbers together, in the order of their numbers."""
    n_ladders = even.n_ladders + odd.n_ladders

    def mixed(ours: Array, theirs: Array) -> Array:
        xp = array_namespace(ours)
        both = xp.empty((n_ladders, *ours.shape[1:]), dtype=ours.dtype)
        both[0::2], both[1::2] = ours, theirs
        return both

    def mixed_rows(name: str) -> Array:
        ours, theirs = (getattr(one.chain, name) for one in (even, odd))
        shape = (-1, even.n_levels, ours.shape[1])
        return mixed(ours.reshape(shape), theirs.reshape(shape)).reshape(-1, ours.shape[1])

    chain = ChainState(*(mixed_rows(name) for name in ("position", "momentum", "precisions")))
    return LadderState(
        chain,
        mixed(even.replica, odd.replica),
        mixed(even.end, odd.end),
        mixed(even.trips, odd.trips),
    )


def tops(state: LadderState) -> ChainState:
    """Return a copy of the rows at the top, one for each ladder."""
    top, chain = slice(state.n_levels - 1, None, state.n_levels), state.chain
    return ChainState(chain.position[top].copy(), chain.momentum[top].copy(), chain.precisions[top].copy())


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
