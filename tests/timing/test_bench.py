"""The report of `bench`: the meaning of its rows and its estimate, JSON alone, and refusals of bad input."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import rayfbnn
from rayfbnn import cli
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.operation import Operation, unrolled
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Repeat, SampleSigmas
from rayfbnn.state import Trajectory
from rayfbnn.streams import Purpose, Streams
from rayfbnn.timing import forecast as run_times
from rayfbnn.timing import steps
from rayfbnn.timing import steps as step_times
from rayfbnn.verbs import benchmarking
from tests.support.problems import network, problem
from tests.support.small import small_spec

AUTOMATIC = ("--set", "chains=1", "--set", 'phase[0].operations[2].steps="auto"')
ROW = {"shape", "chains", "kernel", "us_per_step", "gflops"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is moved by hand, and by a microsecond whenever it is read, so that every wait ends."""
    clock = SimpleNamespace(now=0.0)

    def read() -> float:
        clock.now += 1e-6
        return clock.now

    for module in (step_times, run_times):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=read))
    return clock


def counted(clock: SimpleNamespace, seconds: float) -> Any:
    """The plain leapfrog, which also moves the clock by `seconds` for each gradient of a chain."""

    def advance(target: Any, start: Trajectory, *, n_steps: int, order: Array | None = None) -> Any:
        clock.now += seconds * (n_steps + 1) * len(start.position)
        return leapfrog.advance(target, start, n_steps=min(n_steps, 1), order=order)

    return advance


def test_a_row_is_for_each_kernel_and_positive() -> None:
    rows = step_times.rows_of_shapes(["1-2-1/3", "2-3-2-1/4"], chains=2, seconds=0.01)
    assert {row.shape for row in rows} == {"1-2-1/3", "2-3-2-1/4"}
    assert len({(row.shape, row.kernel) for row in rows}) == len(rows)
    assert all(row.us_per_step > 0 and row.gflops > 0 and row.chains == 2 for row in rows)


def test_json_has_the_documented_keys() -> None:
    rows = step_times.rows_of_shapes(["1-2-1/3"], chains=2, seconds=0.01, dtype="float64")
    found = json.loads(steps.BenchResult("cpu", "float64", rows).to_json())
    assert set(found) == {"device", "dtype", "rows"}
    assert (found["device"], found["dtype"]) == ("cpu", "float64")
    assert all(set(row) == ROW for row in found["rows"])


def test_a_made_up_posterior_has_its_shape() -> None:
    posterior = step_times.generated_posterior("3-4-5-2/6")
    assert step_times.shape_of(posterior) == "3-4-5-2/6"
    assert posterior.n_parameters == 3 * 4 + 4 + 4 * 5 + 5 + 5 * 2 + 2
    assert posterior.dtype == "float32"


@pytest.mark.parametrize("shape", ["", "2-16-2", "2-16/200", "2-0-2/200", "2-16-2/0", "2-x-2/200", "2--2/9"])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    with pytest.raises(ConfigError, match="shape: must be inputs-hidden"):
        step_times.parsed_shape(shape)


def test_operations_are_those_of_the_products() -> None:
    posterior = step_times.generated_posterior("2-16-2/200")
    forward = (2 * 16 + 16) + (16 * 2 + 2)  # multiplications and additions of one case, weights and biases
    assert step_times.floating_point_operations(posterior) == 2 * 200 * (2 * forward + 16 * 2)


def test_the_time_of_a_step_is_that_of_a_gradient_of_one_chain(clock: SimpleNamespace) -> None:
    posterior = step_times.generated_posterior("1-2-1/3")
    per_step = step_times.seconds_per_step(posterior, counted(clock, 0.001), chains=3, seconds=1.0)
    assert per_step == pytest.approx(0.001, rel=1e-4)


def test_too_many_chains_for_the_memory_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "_MAX_VALUES", 40)
    rows = step_times.kernel_rows(step_times.generated_posterior("1-4-1/3"), chains=1000, seconds=0.01)
    assert next(rows).chains == 3


def run_of(phases: Sequence[tuple[tuple[Operation, ...], int]], chains: int) -> Any:
    """A configuration with batches of two chains, as an estimate needs it."""
    return SimpleNamespace(
        phase=[SimpleNamespace(operations=one, iterations=n, keep=False) for one, n in phases],
        chains=chains,
        chains_per_batch=2,
        initial=SimpleNamespace(sigmas=0.5),
        tuning_phases=(),
        ladder=None,
        device="cpu",
        n_parts=1,
    )


def test_the_estimate_is_the_time_of_the_run(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = counted(clock, 0.001)
    monkeypatch.setattr(choose, "advance_for", lambda posterior: (advance, "counted"))
    posterior = step_times.generated_posterior("1-2-1/3", dtype="float64")
    phases: list[tuple[tuple[Operation, ...], int]] = [
        ((SampleSigmas(), Heatbath(), Hybrid(steps=700, stepsize=0.1)), 3),
        ((Repeat(2, (Heatbath(), Hybrid(steps=900, stepsize=0.1, window=5))),), 4),
    ]
    monkeypatch.setattr(run_times, "_ESTIMATE_SECONDS", 1e-3)
    estimate = run_times.estimate_run(run_of(phases, 5), posterior, workers=2)
    assert estimate.least == estimate.most
    found = estimate.most
    clock.now = 0.0
    state, streams = step_times.started(posterior, 2)
    for operations, iterations in phases:
        iteration = schedule.build_iteration(
            operations, target=posterior, updates=posterior.updates, advance=advance
        )
        for number in range(iterations):
            state, _ = iteration(state, streams.at(iteration=number))
    assert found.core_seconds == pytest.approx(clock.now * 5 / 2, rel=0.01)
    assert found.seconds == pytest.approx(clock.now * 2, rel=0.01)  # three batches on two workers
    assert estimate.workers == 2
    assert found.gradient_evaluations == 5 * (3 * 700 + 4 * 2 * 900)


def test_updates_are_timed_with_the_random_numbers_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    purposes = []

    class RecordedStreams(Streams):
        def uniform(self, purpose: Purpose, *args: Any, **options: Any) -> Array:
            purposes.append(purpose)
            return super().uniform(purpose, *args, **options)

    monkeypatch.setattr(choose, "streams_class", lambda device: RecordedStreams)
    posterior = step_times.generated_posterior("1-2-1/3", dtype="float64")
    times = run_times.UpdateTimes(posterior, chains=2, sigmas=0.5, seconds=1e-3)
    purposes.clear()
    times.update(Heatbath())
    assert purposes and set(purposes) == {Purpose.MOMENTUM}


def test_a_row_is_for_each_kind_of_trajectory_that_the_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind is timed on its own target, partial gradients and integrator."""
    monkeypatch.setattr(step_times, "repeated", lambda run, *, seconds: [run()])
    seen: dict[str, Any] = {}
    calls: list[tuple[Any, int]] = []
    chosen, name = choose.advance_for(step_times.generated_posterior("1-2-1/6"))

    def watched(target: Any, *arrays: Any, order: Array | None = None, **settings: Any) -> Any:
        calls.append((target, 1 if order is None else order.shape[1]))
        return chosen(target, *arrays, order=order, **settings)

    monkeypatch.setattr(choose, "advance_for", lambda posterior: (watched, name))

    def report(row: steps.Row) -> None:
        seen[row.shape] = set(calls)
        calls.clear()

    whole = HybridMarginal(("outputs", "precisions"), steps="auto", stepsize="auto")
    operations: tuple[Operation, ...] = (
        Repeat(2, (Hybrid(steps=5, stepsize=0.1), whole)),
        Hybrid(steps=7, stepsize=0.2, partitions=3),
        Hybrid(steps=5, stepsize=0.1, integrator="two-stage"),
        Hybrid(steps=5, stepsize=0.1, integrator="fourth-order"),
        Heatbath(),
    )
    posterior = step_times.generated_posterior("1-2-1/6", dtype="float64")
    rows = step_times.rows_of_operations(posterior, operations, chains=2, seconds=1e-3, report=report)
    names = ["hybrid", "hybrid-marginal over outputs and precisions", "hybrid, 3 partitions"]
    assert list(seen) == [f"1-2-1/6 {name}" for name in [*names, "hybrid, two-stage", "hybrid, fourth-order"]]
    kinds = {shape: {(type(target).__name__, n) for target, n in found} for shape, found in seen.items()}
    assert list(kinds.values()) == [
        {("SampledPosterior", 1)},
        {("WithoutOutputs", 1)},
        {("SampledPosterior", 3)},
        set(),
        set(),
    ]
    assert len(rows) == 8


def test_the_estimate_goes_from_the_shortest_to_the_longest_automatic_trajectories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_times, "repeated", lambda run, *, seconds: [run()])
    whole = HybridMarginal(("outputs", "precisions"), steps="auto", stepsize="auto")
    operations: tuple[Operation, ...] = (
        Repeat(2, (Hybrid(steps=5, stepsize=0.1), whole)),
        Hybrid(steps=7, stepsize=0.2, partitions=3),
        Hybrid(steps=5, stepsize=0.1, integrator="fourth-order"),
        Heatbath(),
    )
    posterior = step_times.generated_posterior("1-2-1/6", dtype="float64")
    estimate = run_times.estimate_run(run_of([(operations, 3)], 2), posterior, workers=1)
    least, most = estimate.least, estimate.most
    assert least.gradient_evaluations == 2 * 3 * (2 * (5 + 16) + 7 + 7 * 5)
    assert most.gradient_evaluations == 2 * 3 * (2 * (5 + 256) + 7 + 7 * 5)
    assert least.core_seconds < most.core_seconds


def test_code_that_does_not_cover_what_is_left_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    line = network({"io": "1", "bo": "1"}, inputs=1, outputs=1, units=(), activations=())
    posterior = problem(spec=line)
    of_a_small_device = partial(choose.advance_for, device="gpu", max_shared_bytes=100)
    monkeypatch.setattr(choose, "advance_for", of_a_small_device)
    (found,) = step_times.kernels_of(posterior, steps.TrajectoryKind("", over=("outputs",)))
    assert found == ("plain CuPy (no parameters are kept)", leapfrog.advance)


@pytest.mark.parametrize(
    "operation",
    [SampleSigmas(), Hybrid(steps=50, stepsize=0.1, window=7), Hybrid(steps=6, stepsize=0.1, jump=3)],
)
def test_a_shorter_operation_is_of_its_kind(operation: Operation) -> None:
    short = run_times.with_few_steps(operation, 2)
    assert type(short) is type(operation)
    assert run_times.gradients(short) == min(2, run_times.gradients(operation))
    assert unrolled((short,)) == (short,)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["bench", *(str(argument) for argument in arguments)])


@pytest.fixture
def few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarking, "STANDARD_SHAPES", ("1-2-1/3",))


def test_the_command_prints_json_alone_and_its_progress_elsewhere(few_shapes: None) -> None:
    result = command("--json", "--chains", 2)
    assert result.exit_code == 0, result.output
    assert {row["shape"] for row in json.loads(result.stdout)["rows"]} == {"1-2-1/3"}
    assert "1-2-1/3, 2 chains, plain NumPy" in result.stderr
    quiet = command("--json", "--no-progress", "--device", "cpu")
    assert quiet.stderr == ""
    assert json.loads(quiet.stdout)["rows"][0]["chains"] == 16


def test_quick_times_the_standard_shapes_for_a_tenth_of_the_time(
    few_shapes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    timed = step_times.rows_of_shapes

    def watched(*arguments: Any, seconds: float, **settings: Any) -> Any:
        times.append(seconds)
        return timed(*arguments, seconds=0.01, **settings)

    monkeypatch.setattr(benchmarking, "rows_of_shapes", watched)
    for arguments in ((), ("--quick",)):
        result = command("--json", "--no-progress", *arguments)
        assert result.exit_code == 0, result.output
        assert {row["shape"] for row in json.loads(result.stdout)["rows"]} == {"1-2-1/3"}
    assert times == [1.0, 0.1]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (step_times, run_times):
        monkeypatch.setattr(module, "repeated", lambda run, *, seconds: [run()])
        monkeypatch.setattr(module, "steps_within", lambda seconds_per_step, seconds: 2)


def test_a_configuration_has_its_own_shape_and_an_estimate(tmp_path: Path, short: None) -> None:
    spec = small_spec(tmp_path)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    result = command(tmp_path / "run.toml", "--json", "--no-progress")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) == {"device", "dtype", "rows", "estimate"}
    assert found["dtype"] == spec.dtype
    assert all(row["shape"].startswith("2-3-1/") and row["chains"] == 2 for row in found["rows"])
    assert set(found["estimate"]) == {"workers", "least", "most"}
    assert found["estimate"]["least"] == found["estimate"]["most"]
    assert found["estimate"]["most"]["gradient_evaluations"] == 5 * (3 * 5 + 10 * 6)
    assert found["estimate"]["most"]["core_seconds"] > 0


def test_the_text_says_what_the_run_takes_from_the_least_to_the_most(tmp_path: Path, short: None) -> None:
    (tmp_path / "run.toml").write_text(small_spec(tmp_path).to_toml())
    text = command(tmp_path / "run.toml", "--no-progress", *AUTOMATIC).stdout
    # Three iterations of 32 to 4096 steps, because some trajectories are measured beyond the current length.
    assert "the whole run: 156 to 12,348 gradient evaluations" in text and "with 1 worker" in text
    assert "from the shortest to the longest automatic trajectories" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "tpu"), 'device: must be "cpu" or "gpu", got "tpu"'),
        (("--chains", 0), "chains: must be at least 1, got 0"),
        (("--set", "chains=2"), "set: needs a configuration, got chains=2"),
        (("absent.toml",), "absent.toml"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[object, ...], message: str) -> None:
    result = command(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfbnn.verbs.arguments.gpu_is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: there is no GPU here"):
        rayfbnn.bench(device="gpu")


def test_a_real_clock_is_not_far_off() -> None:
    posterior = step_times.generated_posterior("2-16-2/200")
    state, _ = step_times.started(posterior, 4)
    stepsizes = step_times.STEPSIZE * posterior.stepsizes(state.precisions).astype(np.float32)
    begun = time.perf_counter()
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
    leapfrog.advance(posterior, start, n_steps=2000)
    whole = (time.perf_counter() - begun) / 2000 / 4
    found = step_times.seconds_per_step(posterior, leapfrog.advance, chains=4, seconds=0.2)
    # Allows for a loaded machine; an error by a factor of chains or steps would show.
    assert 0.1 < found / whole < 10
