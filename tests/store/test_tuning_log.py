"""Automatic settings of a run: rounds that wait for every batch, and records that determine what follows."""

from __future__ import annotations

import gc
import json
import math
import shutil
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.data import read_dataset
from rayfbnn.describe.schedule import describe_schedule, describe_tuning
from rayfbnn.errors import ConfigError, StoreCorruptError
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.automatic import first_settings
from rayfbnn.mcmc.operation import automatic
from rayfbnn.mcmc.operations import Hybrid, HybridMarginal
from rayfbnn.run.executor import InProcess
from rayfbnn.run.job import Progress
from rayfbnn.run.running import run_rounds, unfinished_batches
from rayfbnn.run.sampler import Sampler
from rayfbnn.run.status import status_of
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.rounds import MOST_ROUNDS, n_finished, round_of, rounds
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, make_store, small, small_spec
from tests.support.store.buckets import PLACE, MemoryBucket, storage
from tests.support.store.disks import MemoryDisk
from tests.support.store.fits import run

AUTO = {"op": "hybrid", "steps": "auto", "stepsize": "auto"}
MARGINAL = {**AUTO, "op": "hybrid-marginal", "over": ["outputs", "precisions"]}
_BOTH = [{"op": "sample-sigmas"}, {"op": "heatbath"}, AUTO, MARGINAL]
PHASES = [
    {"iterations": 2, "keep": False, "operations": [{"op": "heatbath"}, {**AUTO, "steps": 8}]},
    {"iterations": 5, "keep": "warmup", "operations": _BOTH},
    {"iterations": 6, "operations": [*_BOTH, {**AUTO, "steps": 8}]},
]
N_ROUNDS = 7


def tuned_spec(folder: Path, **replaced: Any) -> RunSpec:
    return small_spec(folder, **{"phase": PHASES, "chains": 3, "draws_per_block": 3, **replaced})


class Stopping(InProcess):
    """An executor that runs batches in its own order and is asked to stop again and again."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.asked = every, 0

    def run(
        self, store_path: Path, batches: Sequence[int], *, until: int | None = None
    ) -> Iterator[Progress]:
        for progress in super().run(store_path, batches[::-1], until=until):
            self.asked += 1
            if self.asked % self.every == 0:
                self.request_stop()
            yield progress


def in_memory(spec: RunSpec) -> Store:
    """A new store on a disk without delays."""
    disk = MemoryDisk()
    disk.mkdir(Path("/runs"))
    return make_store(Path("/runs/run.zarr"), spec, fs=FileSystem(disk))


def assert_same_bits(ours: Store, theirs: Store) -> None:
    for section in ("posterior", "warmup"):
        for read in ("read_positions", "read_precisions"):
            values = [getattr(store, read)(section=section).tobytes() for store in (ours, theirs)]
            assert values[0] == values[1], (section, read)
    assert settings_of(ours) == settings_of(theirs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(make_store(folder / "run.zarr", tuned_spec(folder))).path


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, for tests that damage it."""
    return shutil.copytree(undisturbed, tmp_path / "run.zarr")


def test_a_record_that_is_there_is_not_looked_for_again(undisturbed: Path) -> None:
    asked: list[Place] = []

    class Asking(FileSystem):
        def exists(self, place: Place) -> bool:
            asked.append(place)
            return super().exists(place)

    store = Store.open(undisturbed, fs=Asking())
    assert store.tuning.latest()[0] == N_ROUNDS and len(asked) >= N_ROUNDS
    asked.clear()
    assert store.tuning.latest()[0] == N_ROUNDS and not asked


def test_phases_before_the_kept_ones_are_cut_into_rounds() -> None:
    lengths = (3, 100, 81, 7)
    spec = RunSpec.from_dict(
        small(
            phase=[
                {"iterations": lengths[0], "keep": False, "operations": [{"op": "heatbath"}]},
                {"iterations": lengths[1], "keep": "warmup", "operations": [AUTO]},
                {"iterations": lengths[2], "keep": False, "operations": [MARGINAL]},
                {"iterations": 5, "operations": [AUTO]},
                {"iterations": lengths[3], "keep": False, "operations": [AUTO]},
                {"iterations": 5, "operations": [AUTO]},
            ]
        )
    )
    tuning_rounds = rounds(spec)
    assert [each.number for each in tuning_rounds] == list(range(len(tuning_rounds)))
    assert [each.first for each in tuning_rounds if each.phase == 1] == list(range(4, 104, 3))
    of_second = [each for each in tuning_rounds if each.phase == 2]
    assert len(of_second) == 27 <= MOST_ROUNDS
    assert of_second[0].first == 104 and of_second[-1].last == 184 == tuning_rounds[-1].last
    assert all(a.last + 1 == b.first for a, b in zip(tuning_rounds, tuning_rounds[1:], strict=False))
    assert round_of(tuning_rounds, 3) is None and round_of(tuning_rounds, 185) is None
    assert n_finished(tuning_rounds, 185) == len(tuning_rounds) and n_finished(tuning_rounds, 4) == 0


def test_a_run_finds_settings_and_keeps_them(undisturbed: Path) -> None:
    store = Store.open(undisturbed)
    assert [tuning_round.number for tuning_round in store.tuning.rounds] == list(range(N_ROUNDS))
    n_finished, settings = store.tuning.latest()
    assert n_finished == N_ROUNDS
    assert len(settings) == 3
    for operation, tuned in settings.items():
        assert tuned.stepsize != first_settings(operation).stepsize
        assert tuned.steps == operation.steps or operation.steps == "auto"
    assert store.tuning.at(8).settings == settings == store.tuning.at(13).settings
    assert not store.tuning.at(8).is_measured and store.tuning.at(7).is_measured
    measured = store.tuning.read(4)[Hybrid(steps="auto", stepsize="auto")].measured
    assert measured.trajectories == 3  # one trajectory of each chain


@pytest.mark.parametrize("operation", [AUTO, MARGINAL, {**AUTO, "steps": 8}], ids=lambda each: each["op"])
def test_scales_are_found_recorded_and_kept_wherever_a_run_stopped(
    tmp_path: Path, operation: dict[str, Any]
) -> None:
    scaled = [{"op": "sample-sigmas"}, {"op": "heatbath"}, {**operation, "scaling": "auto"}]
    phases = [
        {"iterations": 8, "keep": "warmup", "operations": scaled},
        {"iterations": 3, "operations": scaled},
    ]
    store = run(in_memory(tuned_spec(tmp_path, phase=phases)))
    scales = [next(iter(store.tuning.read(number).values())).settings.scales for number in range(8)]
    assert scales[0] == () != scales[1] != scales[3]  # after a quarter and half of the rounds
    assert scales[1:] == [scales[1]] * 2 + [scales[3]] * 5
    assert min(scales[3]) == 1 < max(scales[3]) <= 16
    assert "scaled by ih0" in describe_tuning(store) and "automatic scales of groups" in str(
        describe_schedule(store.spec, store)
    )
    again = run(in_memory(tuned_spec(tmp_path, phase=phases)), Stopping(3))
    while unfinished_batches(again, 11):
        run(again, Stopping(3))
    assert_same_bits(store, again)


def test_a_worker_holds_the_latest_iteration_of_each_phase_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each iteration has buffers for the features of all its chains, and there may be 80 rounds."""
    built: list[weakref.ref[schedule.Iteration]] = []
    build = schedule.build_iteration

    def remembered(*arguments: Any, **options: Any) -> schedule.Iteration:
        iteration = build(*arguments, **options)
        built.append(weakref.ref(iteration))
        return iteration

    monkeypatch.setattr(schedule, "build_iteration", remembered)
    store = in_memory(tuned_spec(tmp_path))
    sampler, executor = Sampler(store), InProcess()
    with store.lock(), executor:
        executor._sampler = sampler
        for _ in run_rounds(store, executor):
            pass
        gc.collect()
        assert len(built) > N_ROUNDS
        assert sum(made() is not None for made in built) == len(PHASES)


def test_kept_iterations_run_with_the_frozen_settings(
    undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last draws are made again, from the state before, with the recorded settings as numbers."""
    store = Store.open(undisturbed)
    settings = store.tuning.latest()[1]
    sampler = Sampler(store)
    operations = tuple(
        type(operation)(
            **{
                **vars(operation),
                "steps": settings[operation].steps,
                "stepsize": settings[operation].stepsize,
            }
        )
        if isinstance(operation, Hybrid | HybridMarginal)
        else operation
        for operation in store.spec.phase[2].operations
    )
    assert not automatic(operations)
    iteration = schedule.build_iteration(
        operations,
        target=sampler.posterior,
        updates=sampler.posterior.updates,
        advance=sampler.advance,
    )
    before, block = store.commits.records(0)[-2:]
    streams = sampler._streams(0)
    now = store.commits.state_after(before)
    assert now is not None
    for number in range(block.first_iteration, block.first_iteration + block.n_iterations):
        now, _ = iteration(now, streams.at(iteration=number))
        draw = block.first_draw + number - block.first_iteration
        stored = store.read_positions(draws=slice(draw, draw + 1), chains=slice(0, 2))[:, 0]
        assert stored.tobytes() == now.position.tobytes()


@pytest.mark.parametrize("every", [1, 2, 5])
def test_draws_and_settings_do_not_depend_on_where_a_run_stopped(
    tmp_path: Path, undisturbed: Path, every: int
) -> None:
    store = in_memory(tuned_spec(tmp_path))
    n_runs = 0
    while unfinished_batches(store, store.spec.total_iterations):
        run(store, Stopping(every))
        n_runs += 1
    assert n_runs > 1
    assert_same_bits(store, Store.open(undisturbed))
    assert store.verify().ok


def settings_of(store: Store) -> list[Any]:
    return [store.tuning.read(number) for number in range(N_ROUNDS)]


@pytest.mark.parametrize(
    "changes", [{"chains_per_batch": 3}, {"chains_per_batch": 1}, {"draws_per_block": 1}]
)
def test_settings_do_not_depend_on_batches_and_blocks(
    tmp_path: Path, undisturbed: Path, changes: dict[str, int]
) -> None:
    assert_same_bits(run(in_memory(tuned_spec(tmp_path, **changes))), Store.open(undisturbed))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_settings_do_not_depend_on_workers(tmp_path: Path, undisturbed: Path) -> None:
    pytest.importorskip("ray")
    from rayfbnn.run.on_ray.executor import RayExecutor

    store = make_store(tmp_path / "run.zarr", tuned_spec(tmp_path))
    with store.lock(), RayExecutor(workers=2) as executor:
        for _ in run_rounds(store, executor):
            pass
        assert len(executor._actors) == 2  # the same in every round
    assert_same_draws(store.path, undisturbed)


def test_no_batch_goes_on_before_every_batch_has_done_the_round(tmp_path: Path) -> None:
    store = in_memory(tuned_spec(tmp_path))
    sampler = Sampler(store)
    for _ in sampler.run_block(0):
        pass
    assert store.progress(0).iteration == 1
    with pytest.raises(StoreCorruptError, match="000000.json: missing: the settings found in round 0"):
        next(sampler.run_block(0))
    with pytest.raises(Exception, match="batch 1 has not finished round 0"):
        store.tuning.publish(0)
    run(store)
    assert store.verify().ok


def test_a_longer_run_keeps_its_settings(tmp_path: Path, undisturbed: Path) -> None:
    shorter = [*PHASES[:2], {**PHASES[2], "iterations": 2}]
    api.sample(tuned_spec(tmp_path, phase=shorter), tmp_path / "run.zarr", workers=0, progress=False)
    api.resume(tmp_path / "run.zarr", iterations=6, workers=0, progress=False)
    ours, theirs = Store.open(tmp_path / "run.zarr"), Store.open(undisturbed)
    assert ours.read_positions().tobytes() == theirs.read_positions().tobytes()
    assert settings_of(ours) == settings_of(theirs)
    assert ours.verify().ok


def test_show_says_what_is_automatic_and_what_was_found(tmp_path: Path, undisturbed: Path) -> None:
    text = api.show(tuned_spec(tmp_path))
    assert "hybrid: trajectories of an automatic number of leapfrog steps, automatic stepsize" in text
    assert "hybrid: trajectories of 8 leapfrog steps, automatic stepsize" in text
    assert "hybrid-marginal over outputs and precisions: trajectories of an automatic number of" in text
    assert "automatic settings are found here, in 5 rounds of 1 iteration of all chains" in text
    assert "automatic settings are those found in an earlier phase" in text
    text = api.show(undisturbed)
    assert f"tuning: {N_ROUNDS} of {N_ROUNDS} rounds finished" in text
    for tuned in Store.open(undisturbed).tuning.latest()[1].values():
        assert f": {tuned.steps} steps, stepsize {tuned.stepsize:.4g}, acceptance rate 0." in text


def test_status_shows_the_round(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", tuned_spec(tmp_path))
    with store.lock(), InProcess() as executor:
        stages = {}
        for latest in run_rounds(store, executor):
            if latest.committed:
                (batch, *_) = status_of(store).batches
                stages[batch.iteration] = batch.stage
    assert stages[1] == "tuning 2/7" and stages[6] == "tuning 7/7" and stages[13] is None


@pytest.mark.parametrize("change", ["flip", "delete"])
def test_a_damaged_record_is_named_and_made_again(copied: Path, undisturbed: Path, change: str) -> None:
    store = Store.open(copied)
    path = store.tuning.file(3)
    raw = path.read_bytes()
    path.unlink()
    if change == "flip":
        path.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    problems = api.verify(store.path).problems
    assert [problem.file for problem in problems] == ["commits/tuning/000003.json"]
    assert api.verify(store.path, repair=True).problems == problems
    assert Store.open(store.path).committed_draws == 6  # nothing else is lost
    api.resume(store.path, workers=0, progress=False)
    assert path.read_bytes() == raw
    assert api.verify(store.path).ok
    assert_same_draws(store.path, undisturbed)


def test_a_record_that_does_not_follow_from_the_commits_is_named_and_what_followed_drawn_again(
    tmp_path: Path, undisturbed: Path
) -> None:
    store = make_store(tmp_path / "run.zarr", tuned_spec(tmp_path))
    with store.lock(), InProcess() as executor:
        for tuning_round in store.tuning.rounds[:4]:
            for _ in executor.run(
                store.path, unfinished_batches(store, tuning_round.last), until=tuning_round.last
            ):
                pass
            store.tuning.publish(tuning_round.number)
    path = store.tuning.file(3)
    right = path.read_bytes()
    document = json.loads(right)
    document["operations"][0]["settings"]["stepsize"] *= 1.5
    path.write_bytes(seal({**document, SEAL: NO_SEAL}))
    store = run(Store.open(store.path))
    assert [problem.file for problem in store.verify().problems][0] == "commits/tuning/000003.json"
    with pytest.raises(AssertionError):
        assert_same_draws(store.path, undisturbed)
    api.verify(store.path, repair=True)
    assert [store.progress(batch).iteration for batch in range(2)] == [4, 4]
    api.resume(store.path, workers=0, progress=False)
    assert path.read_bytes() == right
    assert api.verify(store.path).ok
    assert_same_draws(store.path, undisturbed)


@pytest.mark.parametrize("block", [0, 2])
def test_a_wrong_record_is_repaired_beside_a_damaged_commit(
    copied: Path, undisturbed: Path, block: int
) -> None:
    store = Store.open(copied)
    path = store.tuning.file(3)
    right = path.read_bytes()
    document = json.loads(right)
    document["operations"][0]["settings"]["stepsize"] *= 1.5
    path.write_bytes(seal({**document, SEAL: NO_SEAL}))
    commit = store.path / f"commits/batch0001/{block:06d}.block"
    raw = commit.read_bytes()
    commit.write_bytes(raw[:50] + b"!" + raw[51:])
    api.verify(store.path, repair=True)
    assert [store.progress(batch).iteration for batch in range(2)] == [4, block]
    api.resume(store.path, workers=0, progress=False)
    assert path.read_bytes() == right
    assert api.verify(store.path).ok
    assert_same_draws(store.path, undisturbed)


def test_damaged_draws_of_a_round_are_drawn_again_to_the_same_bits(copied: Path, undisturbed: Path) -> None:
    store = Store.open(copied)
    block = store.path / "commits/batch0001/000003.block"
    raw = block.read_bytes()
    block.write_bytes(raw[:50] + b"!" + raw[51:])
    api.verify(store.path, repair=True)
    assert api.verify(store.path).ok
    api.resume(store.path, workers=0, progress=False)
    assert api.verify(store.path).ok
    assert_same_draws(store.path, undisturbed)


def test_a_record_of_another_store_is_found(tmp_path: Path, undisturbed: Path) -> None:
    store = run(in_memory(tuned_spec(tmp_path, seed=8)))
    store.fs.write_atomic(store.tuning.file(2), Store.open(undisturbed).tuning.file(2).read_bytes())
    problems = store.verify().problems
    assert problems[0].file == "commits/tuning/000002.json"
    assert "another store" in problems[0].what


def kept(operation: dict[str, Any], *, keep: bool = True) -> list[dict[str, Any]]:
    return [{"iterations": 5, "keep": keep, "operations": [operation]}]


@pytest.mark.parametrize(
    ("phases", "key"),
    [
        (kept(AUTO), r"phase\[0\].operations\[0\].steps"),
        (
            kept({**AUTO, "partitions": 2}, keep=False) + kept(AUTO),
            r'phase\[1\].operations\[0\].steps: got "auto", which is tuned only before the first phase',
        ),
        (
            kept({"op": "heatbath"}) + kept({**AUTO, "steps": 4}, keep=False) + kept({"op": "heatbath"}),
            r"phase\[1\].operations\[0\].stepsize",
        ),
        (kept({**AUTO, "window": 2}), r"operations\[0\].window: must be 1 with"),
        (kept({**AUTO, "jump": 2}), r"operations\[0\].jump: must be 1 with"),
        (
            kept({**AUTO, "stepsize": 0.3, "scaling": "auto"}),
            r'operations\[0\].scaling: "auto" needs stepsize = "auto", got stepsize 0.3',
        ),
        (kept({**AUTO, "scaling": "yes"}), 'scaling: must be "auto", with'),
        (kept({**AUTO, "steps": "autos"}), r'or "auto" in hybrid'),
        (kept({**AUTO, "stepsize": "a"}), r'or "auto" in hybrid'),
        (kept({**AUTO, "op": "dynamic"}), "steps: must be a whole number"),
        (
            kept(
                {
                    "op": "tempered-transition",
                    "inverse_temperatures": [1, 0.5],
                    "operations": [{"op": "heatbath"}, AUTO],
                }
            ),
            'must have steps and stepsizes as numbers, got "auto" in hybrid',
        ),
    ],
)
def test_automatic_settings_that_nothing_would_find_are_refused(phases: list[Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        RunSpec.from_dict(small(phase=phases))


def test_evidence_refuses_automatic_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='annealed importance sampling does not tune, got "auto"'):
        api.evidence(tuned_spec(tmp_path), temperatures=2, progress=False)


def test_a_configuration_with_automatic_settings_round_trips(tmp_path: Path) -> None:
    spec = tuned_spec(tmp_path)
    assert RunSpec.from_json(spec.to_json()) == spec
    (tmp_path / "again.toml").write_text(spec.to_toml())
    assert RunSpec.from_toml(tmp_path / "again.toml") == spec


def test_stores_without_automatic_settings_have_no_records_of_them(tmp_path: Path) -> None:
    store = run(make_store(tmp_path / "run.zarr", small_spec(tmp_path, chains=2)))
    assert not (store.path / "commits/tuning").exists()
    assert b"tuning" not in (store.path / "commits/batch0000/000000.block").read_bytes()
    assert math.isfinite(store.read_stat("accepted").sum())


def test_a_round_of_many_batches_takes_one_listing(tmp_path: Path) -> None:
    spec = tuned_spec(tmp_path, chains=6, chains_per_batch=1)
    bucket = MemoryBucket()
    store = Store.create(PLACE, spec, read_dataset(spec), kernel="plain NumPy", fs=storage(bucket))
    run(store)
    expected = [store.fs.read(store.tuning.file(number)) for number in range(2)]
    listings: list[str] = []
    names, keys = bucket.names, bucket.keys
    bucket.keys = lambda key: listings.append(key) or keys(key)  # type: ignore[method-assign, func-returns-value]
    bucket.names = lambda key: listings.append(key) or names(key)  # type: ignore[method-assign, func-returns-value]
    again = Store.open(PLACE, fs=storage(bucket), check_records=False)
    for number in range(2):
        listings.clear()
        assert again.tuning.content(number) == expected[number]
        assert len(listings) == 1
