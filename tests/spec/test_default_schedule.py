"""A configuration without phases gets a schedule that has the same meaning as if it were written out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operations import Hybrid, HybridMarginal, Rescale, SampleNoise, Sghmc
from rayfbnn.spec import RunSpec
from rayfbnn.store.creation import planned_size
from rayfbnn.store.store import Store
from tests.support.small import small, write_train


def without_phases(**replaced: Any) -> RunSpec:
    return RunSpec.from_dict(small(phase=None, **replaced))


def two_inputs(n_cases: int) -> Encoding:
    """Return the encoding of a table of two inputs."""
    return Encoding(("x1", "x2"), (InputColumn("x1"), InputColumn("x2")), n_cases=n_cases)


def kinds(spec: RunSpec) -> list[list[str]]:
    return [[operation.op for operation in phase.operations] for phase in spec.phase]


@pytest.mark.parametrize(
    "changes",
    [{}, {"model__noise": "0.3:3::4"}],
    ids=["Gaussian noise", "t noise"],
)
def test_outputs_of_real_targets_are_integrated_out(changes: dict[str, Any]) -> None:
    spec = without_phases(**changes)
    later = ["sample-sigmas", "rescale", "heatbath", "hybrid-marginal"]
    assert kinds(spec) == [["sample-noise", "heatbath", "hybrid-marginal"], later, later]
    assert [phase.iterations for phase in spec.phase] == [40, 500, 10_000]
    assert [phase.keep for phase in spec.phase] == [False, False, True]
    assert spec.phase[1].operations == spec.phase[2].operations
    first, second = (spec.phase[number].operations[-1] for number in (0, 1))
    assert isinstance(first, HybridMarginal) and first.over == ("outputs",)
    assert isinstance(second, HybridMarginal) and second.over == ("outputs", "precisions")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"kind": "class", "classes": 3}},
        {"model": {"kind": "count"}},
        {"model": {"kind": "binary"}},
        {"model": {"kind": "binary"}, "temperature": 2.0},
        {"network": {"hidden": [], "priors": {"io": "1:0.5", "bo": "1"}}},
    ],
    ids=["classes", "counts", "binary targets", "binary targets at a temperature", "no hidden layer"],
)
def test_elsewhere_trajectories_are_those_of_hybrid(changes: dict[str, Any]) -> None:
    spec = without_phases(**changes)
    assert all(isinstance(phase.operations[-1], Hybrid) for phase in spec.phase)
    has_noise = spec.model.noise is not None
    assert any(isinstance(operation, SampleNoise) for operation in spec.phase[0].operations) == has_noise
    assert len(spec.phase) == (2 if spec.model.kind == "class" else 3)
    assert kinds(spec)[-1] == ["sample-sigmas", "rescale", "rescale", "heatbath", "hybrid"]
    assert spec.phase[-1].iterations == (15_000 if spec.model.kind == "count" else 12_000)


@pytest.mark.parametrize(("n_inputs", "along"), [(100, ["incoming", "sigmas"]), (101, ["incoming"])])
def test_single_sigmas_are_rescaled_where_they_are_few(n_inputs: int, along: list[str]) -> None:
    network = {"hidden": [{"units": 2, "activation": "tanh"}], "priors": {"ih0": "1::0.5", "ho0": "1:0.5"}}
    inputs = [f"x{number}" for number in range(n_inputs)]
    spec = without_phases(model={"kind": "count"}, network=network, data__inputs=inputs)
    assert [
        operation.along for operation in spec.phase[-1].operations if isinstance(operation, Rescale)
    ] == along


def test_iterations_are_those_that_are_kept() -> None:
    assert [phase.iterations for phase in without_phases(iterations=300).phase] == [40, 150, 300]
    assert [phase.iterations for phase in without_phases(iterations=4).phase] == [40, 40, 4]
    with pytest.raises(
        ConfigError,
        match=r"iterations: applies only to a configuration without phases.*got 5 with \[\[phase\]\]",
    ):
        RunSpec.from_dict(small(iterations=5))
    with pytest.raises(ConfigError, match="iterations: must be a whole number from 1"):
        without_phases(iterations=0)
    with pytest.raises(ConfigError, match="phase: must be at least one"):
        RunSpec.from_dict(small(phase=[]))


@pytest.mark.parametrize("changes", [{}, {"phase": None}, {"phase": None, "iterations": 300}])
def test_sghmc_has_a_schedule_of_its_own_whatever_the_phases_of_hmc(changes: dict[str, Any]) -> None:
    spec = RunSpec.from_dict(small(**changes)).for_method("sghmc")
    assert spec.method == "sghmc"
    later = ["sample-sigmas", "rescale", "rescale", "sghmc"]
    assert kinds(spec) == [["sample-noise", "sghmc"], later, later]
    assert spec.phase[-1].iterations == changes.get("iterations", 12_000)
    stochastic = spec.phase[-1].operations[-1]
    assert isinstance(stochastic, Sghmc) and stochastic.batch is None and stochastic.stepsize == "auto"
    assert stochastic.steps == 128
    assert RunSpec.from_json(spec.to_json()) == spec == spec.for_method("sghmc")


def test_sghmc_has_twice_the_steps_of_hybrid_where_hmc_has_hybrid() -> None:
    spec = RunSpec.from_dict(small(phase=None, model={"kind": "class", "classes": 3})).for_method("sghmc")
    (stochastic,) = {phase.operations[-1] for phase in spec.phase}
    assert isinstance(stochastic, Sghmc) and stochastic.steps == 64


def test_sghmc_refuses_an_automatic_stepsize_that_nothing_finds() -> None:
    operation = {"op": "sghmc", "steps": 3, "stepsize": "auto"}
    with pytest.raises(ConfigError, match=r'phase\[0\]\.operations\[0\]\.stepsize: got "auto"'):
        RunSpec.from_dict(small(phase=[{"iterations": 3, "operations": [operation]}]))
    with pytest.raises(ConfigError, match='scaling: "auto" needs stepsize = "auto", got stepsize 0.3'):
        wrong = {"op": "sghmc", "steps": 3, "stepsize": 0.3, "scaling": "auto"}
        RunSpec.from_dict(small(phase=[{"iterations": 3, "operations": [wrong]}]))


def test_the_schedule_is_as_if_it_had_been_written() -> None:
    spec = without_phases(iterations=30)
    written = small(phase=spec.to_dict()["phase"])
    assert RunSpec.from_dict(written) == spec == RunSpec.from_json(spec.to_json())
    assert "iterations" not in spec.to_dict()
    assert spec.with_iterations(50).phase[-1].iterations == 50


def test_a_run_without_phases_can_be_made_longer_and_says_what_it_found(tmp_path: Path) -> None:
    write_train(tmp_path)
    raw = small(phase=None, iterations=2, chains=2)
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    text = api.show(spec)
    assert "phases (the last with iterations = 2" in text
    assert "automatic settings are found here, in 40 rounds of 1 iteration of all chains" in text
    short = [f"phase[{number}].iterations=3" for number in (0, 1)]
    api.sample(spec, tmp_path / "run.zarr", set=short, workers=0, progress=False)
    api.resume(tmp_path / "run.zarr", iterations=4, workers=0, progress=False)
    assert Store.open(tmp_path / "run.zarr").committed_draws == 4
    assert "tuning: 6 of 6 rounds finished" in api.show(tmp_path / "run.zarr")


def test_what_automatic_trajectories_cost_is_a_range_until_they_are_found(tmp_path: Path) -> None:
    write_train(tmp_path)
    short = [f"phase[{number}].iterations=3" for number in (0, 1)]
    written = without_phases(iterations=2, chains=2).to_dict()
    spec = RunSpec.from_dict(written, short, base_dir=tmp_path)
    text = api.show(spec)
    # Lengths from 16 steps (32 where longer ones are tried) to 256.
    assert "phase 2: 3 iterations, no draws kept; 96 to 768 gradient evaluations (32 to 256 per" in text
    assert (
        "phase 3: 2 iterations, one draw per iteration kept; 32 to 512 gradient evaluations (16 to 256 per"
        in text
    )
    assert "per chain: 224 to 2,048 gradient evaluations, 2 draws kept" in text
    assert "in all:    448 to 4,096 gradient evaluations, 4 draws kept" in text
    assert "ranges go from the shortest to the longest" in text
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    store = Store.open(tmp_path / "run.zarr")
    counted = sum(
        (tuning_round.last - tuning_round.first + 1) * settings.longest
        for tuning_round in store.tuning.rounds
        for operation, settings in store.tuning.at(tuning_round.first).settings.items()
        if operation in tuning_round.operations
    )
    final = spec.phase[-1].operations[-1]
    assert isinstance(final, HybridMarginal)
    counted += 2 * store.tuning.latest()[1][final].steps
    text = api.show(store.path)
    assert f"per chain: {counted:,} gradient evaluations, 2 draws kept" in text
    assert "the shortest" not in text


@pytest.mark.parametrize(
    ("n_cases", "is_large"), [(29_999, False), (30_000, True)], ids=["small table", "large table"]
)
def test_a_large_table_has_hybrid_and_shorter_phases_in_smaller_batches(n_cases: int, is_large: bool) -> None:
    spec = without_phases(chains_per_batch=None)
    resolved = spec.resolved(two_inputs(n_cases))
    assert resolved.chains_per_batch == (2 if is_large else 8)
    tuned, kept = (200, 1000) if is_large else (100, 1000)
    assert [phase.iterations for phase in resolved.phase] == [40, tuned, kept]
    for phase in resolved.phase:
        trajectory = phase.operations[-1]
        if is_large:
            assert trajectory == Hybrid(
                steps=32, stepsize="auto", window=4, stepsize_jitter=-0.2, scaling="auto"
            )
        else:
            assert isinstance(trajectory, HybridMarginal)
    n_rescalings = sum(isinstance(operation, Rescale) for operation in resolved.phase[-1].operations)
    assert n_rescalings == 1
    assert RunSpec.from_json(resolved.to_json()) == resolved  # a store needs no number of cases


@pytest.mark.parametrize(
    ("n_cases", "iterations"),
    [
        (20, [40, 500, 12_000]),
        (6_000, [40, 500, 5_000]),
        (10_000, [40, 300, 3_000]),
        (29_999, [40, 200, 1_000]),
        (30_000, [40, 200, 1_000]),
    ],
)
def test_binary_targets_have_hybrid_for_tables_of_every_size(n_cases: int, iterations: list[int]) -> None:
    spec = without_phases(model={"kind": "binary"}, chains_per_batch=None)
    resolved = spec.resolved(two_inputs(n_cases))
    assert [phase.iterations for phase in resolved.phase] == iterations
    (trajectory,) = {phase.operations[-1] for phase in resolved.phase}
    assert isinstance(trajectory, Hybrid) and trajectory.steps == 32


@pytest.mark.parametrize(
    ("n_cases", "iterations", "chains_per_batch", "trajectories"),
    [
        (249, [40, 500, 10_000], 8, HybridMarginal),
        (250, [40, 500, 2000], 2, HybridMarginal),
        (750, [40, 400, 2000], 2, HybridMarginal),
        (2999, [40, 100, 1000], 2, HybridMarginal),
        (3000, [40, 200, 1000], 2, Hybrid),
    ],
)
def test_the_default_network_of_many_cases_has_a_schedule_of_its_own(
    n_cases: int, iterations: list[int], chains_per_batch: int, trajectories: type
) -> None:
    encoding = two_inputs(n_cases)
    spec = without_phases(chains_per_batch=None, network=None, model__noise="0.3:3").resolved(encoding)
    assert [phase.iterations for phase in spec.phase] == iterations
    assert spec.chains_per_batch == chains_per_batch
    trajectory = spec.phase[-1].operations[-1]
    assert isinstance(trajectory, trajectories)
    if isinstance(trajectory, Hybrid):
        assert (trajectory.steps, trajectory.window) == (100, 8)
    assert RunSpec.from_json(spec.to_json()).resolved(encoding) == spec


LATER: dict[str, Callable[[RunSpec], RunSpec]] = {
    "itself": lambda spec: spec,
    "cases read again": lambda spec: spec.resolved(spec.encoding),
    "tuning": lambda spec: spec.with_tuning_of(spec),
    "another file": lambda spec: spec.with_train(Path("other.csv")),
    "new cases": lambda spec: spec.for_new_cases(["data.unknown=ignore"]),
    "still longer": lambda spec: spec.with_iterations(60),
    "one GPU": lambda spec: spec.with_batches_for(1),
}


@pytest.mark.parametrize("name", LATER)
def test_the_batches_of_a_wide_table_stay_the_default_ones_when_its_run_gets_longer(name: str) -> None:
    keys = {"chains_per_batch": None, "network": None, "model__noise": "0.3:3", "iterations": 40}
    spec = without_phases(**keys).resolved(two_inputs(300))
    longer = LATER[name](spec.with_iterations(50))
    assert (spec.chains_per_batch, longer.chains_per_batch) == (2, 2)
    assert longer.has_default_batches
    assert longer.with_batches_for_cores(5, is_asked=True).chains_per_batch == 1
    assert RunSpec.from_json(longer.to_json()).chains_per_batch == 2


def test_what_is_written_is_kept_for_a_large_table() -> None:
    spec = without_phases(chains_per_batch=4, iterations=300).resolved(two_inputs(10**6))
    assert spec.chains_per_batch == 4
    assert [phase.iterations for phase in spec.phase] == [40, 150, 300]


def test_a_configuration_that_was_written_out_before_its_cases_were_read_can_still_be_large() -> None:
    keys = small(phase=None, chains_per_batch=None)
    del keys["data"]["inputs"]
    spec = RunSpec.from_dict(RunSpec.from_dict(keys).to_dict())
    assert spec.resolved(two_inputs(10**6)).chains_per_batch == 2


def test_a_large_table_of_classes_starts_with_its_sigmas_drawn_and_rescales_none_alone() -> None:
    spec = without_phases(model={"kind": "class", "classes": 3}).resolved(two_inputs(10**6))
    assert kinds(spec) == [["sample-sigmas", "rescale", "heatbath", "hybrid"]] * 2


def test_the_default_draws_of_a_network_with_many_parameters_take_200_megabytes() -> None:
    names = tuple(f"x{number}" for number in range(300))
    columns = Encoding(names, tuple(map(InputColumn, names)), n_cases=80)
    spec = without_phases(data__inputs=None, network=None, chains=8).resolved(columns)
    assert 1000 < spec.phase[-1].iterations < 2500
    assert 150e6 < planned_size(spec, 80)[1] < 260e6
    many = without_phases(data__inputs=None, network=None, chains=64).resolved(columns)
    assert many.phase[-1].iterations == 1000
    written = without_phases(data__inputs=None, network=None, chains=64, iterations=4000).resolved(columns)
    assert written.phase[-1].iterations == 4000


@pytest.mark.parametrize("kind", ["real", "class"])
def test_phases_get_shorter_as_a_table_grows_so_that_nothing_jumps_where_it_is_large(kind: str) -> None:
    model = {"kind": "class", "classes": 3} if kind == "class" else {"kind": "real", "noise": "0.3:3"}
    lengths = []
    for n_cases in range(1000, 31_000, 1000):
        columns = (InputColumn("x1"), InputColumn("x2"))
        spec = without_phases(model=model).resolved(Encoding(("x1", "x2"), columns, n_cases=n_cases))
        lengths.append([phase.iterations for phase in spec.phase[-2:]])
    tuned, kept = zip(*lengths, strict=True)
    assert list(kept) == sorted(kept, reverse=True) and kept[-1] == 1000
    assert max(before / after for before, after in zip(kept[4:], kept[5:], strict=False)) < 1.3
    assert min(tuned[:-1]) == (200 if kind == "class" else 103) and tuned[-1] == 200 and tuned[0] == 500
