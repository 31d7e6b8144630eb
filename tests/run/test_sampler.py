"""The job of a worker: the iterations of a block, and that only the run's configuration decides the draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfbnn.api import diagnose, sample, show
from rayfbnn.data import read_dataset
from rayfbnn.kernels import choose
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.run.job import next_block
from rayfbnn.run.sampler import Sampler, acceptance_by_operation, build_posterior
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState, Trajectory
from rayfbnn.store.records import Record
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams
from tests.support.kernels.networks import end_of
from tests.support.small import assert_same_draws, contents, make_store, small, small_spec
from tests.support.store.fits import run_all


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    keeps=st.lists(st.sampled_from([True, False, "warmup"]), min_size=4, max_size=4),
    draws_per_block=st.one_of(st.none(), st.integers(1, 7)),
    draws_per_chunk=st.integers(1, 9),
    stops=st.lists(st.integers(1, 7), min_size=60, max_size=60),
)
def test_blocks_cover_every_iteration_once_wherever_a_run_stops(
    lengths: list[int],
    keeps: list[Any],
    draws_per_block: int | None,
    draws_per_chunk: int,
    stops: list[int],
) -> None:
    operations = [{"op": "heatbath"}]
    phases = [
        {"iterations": length, "keep": keep, "operations": operations}
        for length, keep in zip(lengths, [*keeps[: len(lengths) - 1], True], strict=True)
    ]
    configured = {} if draws_per_block is None else {"draws_per_block": draws_per_block}
    base = {key: value for key, value in small(phase=phases).items() if key != "draws_per_block"}
    spec = RunSpec.from_dict({**base, **configured})
    iteration, drawn = 0, {"posterior": 0, "warmup": 0, None: 0}
    for stop in stops:
        plan = next_block(spec, iteration, draws_per_chunk=draws_per_chunk)
        if plan is None:
            break
        assert plan.first == iteration + 1
        assert 1 <= plan.count <= (draws_per_block or spec.total_iterations)
        if plan.section is not None:
            assert plan.first_draw == drawn[plan.section]
            first_chunk, last_chunk = plan.first_draw, plan.first_draw + plan.count - 1
            assert first_chunk // draws_per_chunk == last_chunk // draws_per_chunk
        done = min(stop, plan.count)  # the run may be stopped inside the block
        iteration, drawn[plan.section] = iteration + done, drawn[plan.section] + done
    else:
        raise AssertionError("the run does not end")
    assert iteration == spec.total_iterations
    assert (drawn["posterior"], drawn["warmup"]) == (spec.kept_draws, spec.warmup_draws)


@pytest.mark.parametrize("stop_every", [1, 2, 3, 7])
def test_draws_do_not_depend_on_where_a_run_stopped(
    tmp_path: Path, undisturbed: Path, stop_every: int
) -> None:
    run_all(make_store(tmp_path / "run.zarr", small_spec(tmp_path)), stop_every=stop_every)
    assert_same_draws(tmp_path / "run.zarr", undisturbed)


@pytest.mark.parametrize("draws_per_block", [1, 3, 10])
def test_draws_do_not_depend_on_the_length_of_blocks(
    tmp_path: Path, undisturbed: Path, draws_per_block: int
) -> None:
    spec = small_spec(tmp_path, draws_per_block=draws_per_block)
    run_all(make_store(tmp_path / "run.zarr", spec))
    assert_same_draws(tmp_path / "run.zarr", undisturbed)


@pytest.mark.parametrize("chains_per_batch", [1, 3, 5])
def test_draws_do_not_depend_on_which_chains_share_a_batch(
    tmp_path: Path, undisturbed: Path, chains_per_batch: int
) -> None:
    spec = small_spec(tmp_path, chains_per_batch=chains_per_batch)
    run_all(make_store(tmp_path / "run.zarr", spec))
    ours, theirs = contents(tmp_path / "run.zarr"), contents(undisturbed)
    for name in ("positions", "precisions", "energy", "log_likelihood", "warmup"):
        assert ours[name].tobytes() == theirs[name].tobytes(), name


def test_a_chain_is_the_same_among_fewer_chains(tmp_path: Path, undisturbed: Path) -> None:
    run_all(make_store(tmp_path / "run.zarr", small_spec(tmp_path, chains=2)))
    ours, theirs = contents(tmp_path / "run.zarr"), contents(undisturbed)
    assert ours["positions"].tobytes() == theirs["positions"][:2].tobytes()


def test_the_stored_draws_are_those_of_the_schedule(tmp_path: Path, undisturbed: Path) -> None:
    spec = small_spec(tmp_path)
    posterior = build_posterior(spec, read_dataset(spec), device="cpu")
    updates = {"sample-sigmas": posterior.sample_sigmas, "sample-noise": posterior.sample_noise}
    streams = Streams(spec.seed, np.arange(spec.chains, dtype=np.uint64))
    state, number, positions = posterior.initial_state(streams, sigmas=0.5), 0, []
    for phase in spec.phase:
        iteration = schedule.build_iteration(
            phase.operations, target=posterior, updates=updates, advance=choose.advance_for(posterior)[0]
        )
        for _ in range(phase.iterations):
            number += 1
            state, _ = iteration(state, streams.at(iteration=number))
            positions.append(state.position)
    drawn = np.stack(positions, axis=1)
    stored = contents(undisturbed)
    assert stored["warmup"].tobytes() == np.ascontiguousarray(drawn[:, 3:8]).tobytes()
    assert stored["positions"].tobytes() == np.ascontiguousarray(drawn[:, 8:]).tobytes()


def test_statistics_are_those_of_the_stored_draws(tmp_path: Path, undisturbed: Path) -> None:
    spec = small_spec(tmp_path)
    posterior = build_posterior(spec, read_dataset(spec), device="cpu")
    store, stored = Store.open(undisturbed), contents(undisturbed)
    sampler = Sampler(store)
    for batch in range(store.n_batches):
        loaded = store.load_state(batch)
        assert loaded is not None
        state, chains = loaded[0], np.array(store.header.batch_chains(batch))
        at = sampler._load(store.commits.last(batch), sampler._streams(batch))
        still = np.zeros_like(at.momentum)
        *_, potential = end_of(
            sampler.advance, posterior, Trajectory(at.position, at.momentum, at.precisions, still), n_steps=0
        )
        expected = {
            "energy": total_energy(potential, at.momentum),
            "log_prior": posterior.log_prior(state.position, state.precisions),
        }
        for name, values in expected.items():
            assert stored[name][chains, -1].tobytes() == values.tobytes(), name
        # The kernel's outputs are rounded to float32 differently.
        log_likelihood = posterior.log_likelihood(state.position, state.precisions)
        assert np.allclose(stored["log_likelihood"][chains, -1], log_likelihood, rtol=1e-5, atol=1e-5)
    assert ((stored["accepted"] >= 0) & (stored["accepted"] <= 1)).all()
    assert np.isfinite(stored["energy_change"]).all()


def test_what_each_operation_has_accepted_is_summed_over_blocks_and_batches(tmp_path: Path) -> None:
    hybrid = {"op": "hybrid", "steps": 5, "stepsize": 0.8}
    rescale = {"op": "rescale", "along": "incoming", "stepsize": 1.0}
    repeated = [{"op": "repeat", "times": 2, "operations": [{"op": "heatbath"}, hybrid, rescale]}]
    phases = [
        {"iterations": 3, "keep": False, "operations": repeated},
        {
            "iterations": 5,
            "operations": [{"op": "random-grid", "stepsize": 2.0}, rescale, {"op": "sample-sigmas"}],
        },
    ]
    spec = small_spec(tmp_path, phase=phases, network__priors__ih0="0.7:3:4")
    store = run_all(make_store(tmp_path / "run.zarr", spec), stop_every=2)
    posterior = build_posterior(spec, read_dataset(spec), device="cpu")
    streams = Streams(spec.seed, np.arange(spec.chains, dtype=np.uint64))
    state, first = posterior.initial_state(streams, sigmas=0.5), 1
    for number, phase in enumerate(spec.phase):
        iteration = schedule.build_iteration(
            phase.operations,
            target=posterior,
            updates=posterior.updates,
            advance=choose.advance_for(posterior)[0],
        )
        steps = list(schedule.run(state, streams, iteration=iteration, first=first, count=phase.iterations))
        state, first = steps[-1][1], first + phase.iterations
        expected = {
            operation: np.mean([info.accepted_by[operation] for _, _, info in steps])
            for operation in steps[0][2].accepted_by
        }
        acceptance = acceptance_by_operation(store, number)
        assert acceptance == pytest.approx(expected, rel=1e-12)
        assert len(acceptance) == 2 and all(0 < share < 1 for share in acceptance.values())
    share = next(acceptance[operation_] for operation_ in acceptance if operation_.op == "rescale")
    assert f"stepsize 1 (acceptance rate {share:.2f})\n" in show(store.path)


def test_a_low_acceptance_rate_of_rescale_is_explained(tmp_path: Path) -> None:
    """Of factors as wide as e**1000 almost none fits."""
    for stepsize, is_low in ((1000.0, True), (1e-3, False)):
        rescale = {"op": "rescale", "along": "incoming", "stepsize": stepsize}
        phases = [{"iterations": 5, "operations": [rescale, {"op": "sample-sigmas"}, {"op": "heatbath"}]}]
        store = run_all(make_store(tmp_path / f"{is_low}.zarr", small_spec(tmp_path, phase=phases)))
        text = show(store.path)
        assert ("acceptance rate 0: none accepted" in text) == is_low
        assert ("rescale is for scales that the data leave open" in text) == is_low


def test_a_run_may_start_from_the_prior(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, initial={"from_prior": True})
    posterior = build_posterior(spec, read_dataset(spec), device="cpu")
    store = run_all(make_store(tmp_path / "run.zarr", spec))
    start = posterior.initial_state(Streams(spec.seed, np.arange(5, dtype=np.uint64)), sigmas=None)
    assert np.abs(start.position).min() > 0
    assert store.committed_draws == 10


def test_chains_of_a_shared_start_begin_at_one_place_that_the_seed_alone_gives(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, initial={"from_prior": True, "shared": True})
    posterior = build_posterior(spec, read_dataset(spec), device="cpu")

    def start(seed: int, *chains: int) -> ChainState:
        streams = Streams(seed, np.array(chains, dtype=np.uint64))
        return posterior.initial_state(streams, sigmas=None, is_shared=True)

    first, other = start(7, 0, 1, 2), start(7, 3)
    assert (first.position == other.position[0]).all() and (first.precisions == other.precisions[0]).all()
    assert len({row.tobytes() for row in first.momentum}) == 3  # chains part at their first step
    assert (start(8, 0).position != other.position).all()
    store = run_all(make_store(tmp_path / "run.zarr", spec))
    assert store.committed_draws == 10 and "one draw from the prior, the same for all" in show(store.path)


def test_progress_counts_what_is_done(tmp_path: Path) -> None:
    sampler = Sampler(make_store(tmp_path / "run.zarr", small_spec(tmp_path)), worker="me")
    first = list(sampler.run_block(1))
    assert [progress.iteration for progress in first] == [1, 2, 3]
    assert [progress.committed for progress in first] == [False, False, True]
    assert {(p.batch, p.phase, p.draws, p.total_draws, p.worker) for p in first} == {(1, 0, 0, 10, "me")}
    for _ in range(2):
        list(sampler.run_block(1))  # the warm-up
    third_phase = list(sampler.run_block(1))
    assert [progress.draws for progress in third_phase] == [1, 2, 3, 4]
    assert all(0 <= progress.acceptance <= 1 for progress in third_phase)


def test_a_complete_batch_has_nothing_to_run(tmp_path: Path) -> None:
    store = run_all(make_store(tmp_path / "run.zarr", small_spec(tmp_path)))
    before = contents(store.path)
    (progress,) = Sampler(store).run_block(0)
    assert progress.is_complete
    assert before["positions"].tobytes() == contents(store.path)["positions"].tobytes()


def test_two_workers_on_one_block_agree(tmp_path: Path) -> None:
    """A worker thought dead commits after its replacement; the second commit is recognised as the same."""
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    slow, fast = Sampler(store), Sampler(Store.open(store.path))
    half_way = slow.run_block(0)
    next(half_way)
    list(fast.run_block(0))
    list(half_way)
    assert store.progress(0).iteration == 3
    assert store.progress(0).blocks == 1


def test_a_commit_between_the_readings_of_progress_and_state_is_no_damage(tmp_path: Path) -> None:
    """A worker thought dead commits after its successor has read how far the batch is."""
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    zombie, successor = Sampler(store), Sampler(Store.open(store.path))
    load = successor._load

    def load_late(last: Record | None, streams: Streams) -> ChainState:
        list(zombie.run_block(0))
        return load(last, streams)

    successor._load = load_late  # type: ignore[method-assign]
    list(successor.run_block(0))
    assert (store.progress(0).iteration, store.progress(0).blocks) == (3, 1)


def test_divergences_and_acceptance_of_kept_and_warmup_iterations_are_counted_apart(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    raw = spec.to_dict()
    raw["phase"][0]["operations"][2]["stepsize"] = 1e30  # every trajectory diverges
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    summary = sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    diagnosis = diagnose(tmp_path / "run.zarr", cases=2)
    assert (summary.divergences, summary.warmup_divergences) == (0, 3 * 5)
    assert summary.warmup_acceptance == 0
    assert summary.acceptance is not None and summary.acceptance > 0.5
    names = ("divergences", "warmup_divergences", "acceptance", "warmup_acceptance")
    for name in names:
        assert getattr(diagnosis, name) == pytest.approx(getattr(summary, name), rel=1e-12), name
    assert f"divergences 0 (warm-up {3 * 2})" in show(tmp_path / "run.zarr")  # chains 0-1 of three batches


def test_counts_of_updates_are_those_of_the_records_whoever_made_the_blocks(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    watching = Store.open(store.path)
    samplers = [Sampler(Store.open(store.path)) for _ in range(2)]
    seen = []
    for turn in (0, 0, 1, 0, 1, 1):
        *_, last = samplers[turn].run_block(0)
        fresh = Store.open(store.path).commits.updates_until(store.commits.last(0))
        assert watching.commits.updates_until(store.commits.last(0)) == fresh
        assert (last.divergences, last.warmup_divergences) == (
            fresh.kept.divergences,
            fresh.warmup.divergences,
        )
        seen.append((fresh.warmup.n_accepted, fresh.kept.n_accepted))
    assert seen == [(6, 0), (6, 0), (6, 0), (6, 8), (6, 16), (6, 20)]
