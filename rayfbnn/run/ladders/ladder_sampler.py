"""The job of a worker that runs ladders: one block of iterations of a batch of whole ladders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rayfbnn.arrays import Array, array_namespace, device_namespace
from rayfbnn.errors import StoreCorruptError
from rayfbnn.mcmc.ladder.adaptation import moved
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, LadderState, started
from rayfbnn.mcmc.ladder.starts import filled
from rayfbnn.model.ladder_path import path_of
from rayfbnn.run.blocks import BlockPlan
from rayfbnn.run.collecting import Collected
from rayfbnn.run.ladders.states import (
    WarmUp,
    alternating,
    are_journeys,
    arrays_of,
    ladders_from,
    tops,
    warm_up_from,
)
from rayfbnn.run.ladders.steps import Annealing, Exchanging, WarmingUp, of_levels, of_starts
from rayfbnn.run.sampler import Sampler, densities_of
from rayfbnn.store.catalogue import FORWARD, REPLICA, REVERSE, ROUND_TRIPS, ladder_shapes, measure_name
from rayfbnn.store.measurements import LadderMeasured, LadderStarts
from rayfbnn.store.records import Record
from rayfbnn.store.store import Store
from rayfbnn.store.tuning_rounds import round_of
from rayfbnn.streams import Streams


class LadderSampler(Sampler):
    """An open store of ladders, for a worker. The chains of the store are ladders.

    Ladders of even number begin with one chain, which runs the default schedule; the noise of these chains
    gives the first levels. The levels of odd ladders are then annealed from the prior. After that all ladders
    exchange states, in rounds with the settings that follow from the round before, and at last with settings
    that no longer change.
    """

    def __init__(self, store: Store, *, worker: str = "") -> None:
        """Put the data of the run on its device; `worker` is the name in progress reports."""
        super().__init__(store, worker=worker)
        assert store.spec.ladder is not None
        self.most_levels = store.spec.ladder.most_levels
        self.path = path_of(self.posterior)
        self.of_ladder = tuple(ladder_shapes(store.spec, self.most_levels))
        self._step: tuple[object, WarmingUp | Exchanging] | None = None  # the latest, which holds buffers

    def _settings_at(self, iteration: int) -> LadderSettings | None:
        """Return the settings of all ladders in an iteration; None before they have levels."""
        rounds = self.store.tuning.ladder_rounds(iteration)
        return rounds[-1].settings if rounds else None

    def _last_of(self, phase: int) -> int:
        """Return the last iteration of a phase."""
        return sum(one.iterations for one in self.store.spec.phase[: phase + 1])

    def _iteration(self, plan: BlockPlan) -> Callable[[Any, Streams], tuple[Any, Any]]:
        settings = self._settings_at(plan.first)
        is_warmup = plan.phase <= self.store.spec.annealing_phase
        key = self._iteration_of_chains(plan) if is_warmup else plan.phase, settings
        if self._step is None or self._step[0] != key:
            self._step = key, (self._warming_up if is_warmup else self._exchanging)(plan, settings)
        return self._step[1]

    def _warming_up(self, plan: BlockPlan, settings: LadderSettings | None) -> WarmingUp:
        spec, annealing, measured = self.store.spec, None, None
        if settings is not None:
            first = self.store.tuning.first_of_annealing
            last = self._last_of(spec.annealing_phase)
            operations = spec.phase[-1].operations
            annealing = Annealing(self.path, operations, settings, first, last, self.advance)
        elif plan.phase == spec.annealing_phase:
            measured = self.path
        return WarmingUp(self._iteration_of_chains(plan), annealing, measured, self.most_levels)

    def _exchanging(self, plan: BlockPlan, settings: LadderSettings | None) -> Exchanging:
        assert settings is not None
        operations = self.store.spec.phase[plan.phase].operations
        is_measured = round_of(self.store.tuning.rounds, plan.first) is not None
        return Exchanging(self.path, operations, settings, self.most_levels, self.advance, is_measured)

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
        arrays = self.store.named_state_after(last)
        xp = device_namespace(spec.device)
        if done <= self._last_of(spec.annealing_phase):
            warm = warm_up_from(arrays, None if before is None else before.n_levels, dtype=spec.dtype, xp=xp)
            return self._warmer(warm, before, after, streams, done=done)
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
