"""Kept draws are those of one iteration with constant settings: the last ones that the adaptation found.

Settings that follow the states would make the exchanges and trajectories inexact, and a test of means could
miss it. The kept draws of a run are therefore computed again, from the state after the adaptation and with
the settings that its last round recorded, and compared bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.mcmc.ladder.adaptation import moved
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import LadderState, started
from rayfbnn.model.ladder_path import path_of
from rayfbnn.run import executor, ladder_sampler
from rayfbnn.run import job as blocks
from rayfbnn.run.executor import InProcess
from rayfbnn.run.ladder_sampler import ladders_from, of_levels, tops
from rayfbnn.run.running import run_rounds
from rayfbnn.run.sampler import posterior_of_run
from rayfbnn.store import payload, rounds, tuning_log
from rayfbnn.store.catalogue import LADDER
from rayfbnn.store.store import Store
from tests.support.mutants import mutant
from tests.support.small import make_store
from tests.support.store.ladder_runs import ladder_spec

# Three rounds, after each of which stepsizes and levels change.
_SETTINGS = {"levels": "auto", "adaptation": 100}
_KEPT = ("position", "log_rss", "forward", "reverse", "replica", "round_trips")


def _run(folder: Path) -> tuple[Store, LadderState]:
    """Run four ladders in one batch; return their store, and their state after the last adaptation."""
    store = make_store(folder / "run.zarr", ladder_spec(folder, settings=_SETTINGS, chains_per_batch=4))
    spec = store.spec
    n_adapted = spec.total_iterations - spec.phase[-1].iterations
    state = None
    for last in (n_adapted, spec.total_iterations):
        with store.lock(), InProcess() as in_process:
            for _ in run_rounds(store, in_process, last=last):
                pass
        if state is None:
            record = store.commits.last(0)
            assert record is not None and record.progress.iteration == n_adapted
            before = store.tuning.ladder_rounds(n_adapted)[-1].settings
            arrays = store.commits.named_state_after(record)
            state = ladders_from(arrays, before.n_levels, dtype=spec.dtype, xp=np)
    assert state is not None
    return Store.open(store.path), state


def _differing(folder: Path) -> list[str]:
    """Return what differs from the iterations with the last settings: names of arrays of the kept draws."""
    store, state = _run(folder)
    spec, posterior = store.spec, posterior_of_run(store)
    path, kept = path_of(posterior), spec.phase[-1]
    n_adapted = spec.total_iterations - kept.iterations
    rounds = [one for one in store.tuning.rounds if one.last <= n_adapted]
    before, after = (store.tuning.read_ladder(one.number).settings for one in rounds[-2:])
    assert before != after and state.n_levels == before.n_levels
    state = started(moved(state, before, after, path).chain, after.n_levels)
    advance, _ = choose.advance_for(posterior, recorded=store.root.kernel)
    iteration = build(path, kept.operations, after, n_ladders=state.n_ladders, advance=advance)
    streams = choose.streams_class(spec.device)(spec.seed, np.arange(4, dtype=np.uint64))
    assert spec.ladder is not None
    streams = of_levels(streams, range(after.n_levels), spec.ladder.most_levels)
    again: list[tuple[Array, ...]] = []
    for number in range(n_adapted + 1, spec.total_iterations + 1):
        state, info = iteration(state, streams.at(iteration=number))
        values = tops(state).position, info.measure, info.forward, info.reverse
        again.append((*values, state.replica[:, -1], state.trips))
    stored = [store.read_positions(), *(store.hierarchy.read(f"{LADDER}/{name}") for name in _KEPT[1:])]
    computed = [np.stack(values, axis=1) for values in zip(*again, strict=True)]
    return [
        name
        for name, ours, theirs in zip(_KEPT, stored, computed, strict=True)
        if not np.array_equal(_of_levels(ours, theirs), theirs.astype(ours.dtype))
    ]


def _of_levels(stored: Array, computed: Array) -> Array:
    """Return the stored values of the levels that the ladders have."""
    return stored[..., : computed.shape[2]] if computed.ndim > 2 else stored


def test_kept_draws_are_of_the_last_settings_alone(tmp_path: Path) -> None:
    assert _differing(tmp_path) == []


FROZEN_MUTANTS: dict[str, tuple[ModuleType, str, str]] = {
    "levels and stepsizes adapt among kept draws": (
        rounds,
        "for length in spec.ladder.rounds:",
        "for length in (*spec.ladder.rounds, 4):",
    ),
    "kept draws with the settings of a round before": (
        ladder_sampler,
        "return rounds[-1].settings if rounds else None",
        "return rounds[-1 - (len(rounds) > 2)].settings if rounds else None",
    ),
    "journeys of the adaptation are counted": (
        ladder_sampler,
        "started(ladders.chain, after.n_levels) if is_first_kept else ladders",
        "ladders",
    ),
}


@pytest.mark.parametrize("name", FROZEN_MUTANTS)
def test_mutant_of_frozen_settings_is_killed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, old, new = FROZEN_MUTANTS[name]
    changed = mutant(module, (old, new))
    if module is rounds:
        for user in (tuning_log, blocks, payload):
            monkeypatch.setattr(user, "rounds", changed.rounds)
    else:
        monkeypatch.setattr(executor, "LadderSampler", changed.LadderSampler)
    assert _differing(tmp_path)
