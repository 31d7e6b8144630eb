"""Recorded gradients of large networks give the same trajectories, on a CPU stand-in for CUDA graphs.

This cannot show that a device captures every launch: see test_on_device.py.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import graphs
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.graphs import Recording, Recordings
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance
from tests.support.kernels.networks import Start
from tests.support.problems import covariates_of, network, problem
from tests.support.shim.compiled import ShimBuild, needs_gxx

Function = Callable[[], None]


class StandIn:
    """A recorder like a device's: recording runs nothing, and a launch uses the same memory."""

    def __init__(self) -> None:
        self.n_recorded = 0
        self.n_launched = 0

    def __call__(self, function: Function) -> Function:
        self.n_recorded += 1
        recording = function.__self__  # type: ignore[attr-defined]
        assert isinstance(recording, Recording)
        before = self.addresses(recording)

        def launch() -> None:
            self.n_launched += 1
            function()
            assert self.addresses(recording) == before

        return launch

    @staticmethod
    def addresses(recording: Recording) -> list[int]:
        return [array.ctypes.data for array in (*recording.arguments, recording._result)]


def posterior(model: str = "gaussian by target", dtype: str = "float64") -> SampledPosterior:
    spec = network(outputs=3 if model == "class" else 2)
    return problem(model, spec=spec, dtype=dtype, n_cases=37)


def advance_of(target: SampledPosterior, recordings: Recordings | None) -> Advance:
    """The products, with several tiles of cases in each gradient."""
    advance = wide.compile_for(target, build=ShimBuild(), tile_bytes=4_000, recordings=recordings)
    assert not isinstance(advance, NotCovered)
    return advance


def assert_equal_with_and_without(
    target: SampledPosterior,
    start: Start,
    recordings: Recordings,
    *,
    n_steps: int = 9,
    base: SampledPosterior | None = None,
) -> tuple[Array, ...]:
    base = target if base is None else base
    results = start.run(advance_of(base, recordings), target, n_steps=n_steps)
    expected = start.run(advance_of(base, None), target, n_steps=n_steps)
    for values, others in zip(results, expected, strict=True):
        assert np.array_equal(values, others)
    return results


@needs_gxx
@pytest.mark.parametrize("n_steps", [8, 11])
@pytest.mark.parametrize("model, dtype", [("gaussian by target", "float64"), ("class", "float32")])
def test_recorded_trajectories_are_the_same_bit_for_bit(model: str, dtype: str, n_steps: int) -> None:
    target, device = posterior(model, dtype), StandIn()
    assert_equal_with_and_without(target, Start.of(target), Recordings(device), n_steps=n_steps)
    # One gradient checks the recording, and then come the trajectory's own.
    assert (device.n_recorded, device.n_launched) == (1, 1 + n_steps + 1)


@needs_gxx
def test_one_recording_serves_all_states_and_temperatures_of_a_posterior() -> None:
    target, device = posterior(), StandIn()
    recordings = Recordings(device)
    starts = [Start.of(target, name=name) for name in ("one", "two")]
    cases = [target, target.tempered(np.array([0.3, 1.0, 0.7])), target.tempered(0.5), target]
    for number, case in enumerate(cases):
        assert_equal_with_and_without(case, starts[number % 2], recordings, base=target)
    assert device.n_recorded == 1


@needs_gxx
def test_a_later_trajectory_does_not_write_to_the_ends_of_an_earlier_one() -> None:
    target, recordings = posterior(), Recordings(StandIn())
    ends = assert_equal_with_and_without(target, Start.of(target, name="one"), recordings)
    copies = [values.copy() for values in ends]
    assert_equal_with_and_without(target, Start.of(target, name="two"), recordings)
    assert all(np.array_equal(values, copy) for values, copy in zip(ends, copies, strict=True))


@needs_gxx
def test_what_a_trajectory_started_from_may_change_afterwards() -> None:
    target, device = posterior(), StandIn()
    recordings, start = Recordings(device), Start.of(target)
    again = replace(start, **{name: getattr(start, name).copy() for name in ("position", "precisions")})
    expected = assert_equal_with_and_without(target, start, recordings)
    start.position.fill(math.nan)
    start.precisions.fill(math.nan)
    results = again.run(advance_of(target, recordings), target, n_steps=9)
    assert device.n_recorded == 1
    assert all(np.array_equal(values, others) for values, others in zip(results, expected, strict=True))


@needs_gxx
def test_other_targets_data_and_numbers_of_chains_have_their_own() -> None:
    target, device = posterior(), StandIn()
    recordings = Recordings(device)
    stream = target.with_targets(np.stack([target.targets.T[::-1]] * 3))
    missing = np.where(np.arange(37)[:, None] == 4, math.nan, target.targets.T)
    without = SampledPosterior.from_spec(target.network, target.model, covariates_of(target), missing)
    other = SampledPosterior.from_spec(target.network, target.model, -covariates_of(target), target.targets.T)
    for case in (target, stream, without, other):
        assert_equal_with_and_without(case, Start.of(case), recordings)
    assert device.n_recorded == 4
    assert_equal_with_and_without(target, Start.of(target, n_chains=2), recordings)
    single = posterior("class", "float32")
    assert_equal_with_and_without(single, Start.of(single), recordings)
    assert device.n_recorded == 6
    assert len(recordings._kept) == graphs._N_KEPT
    assert_equal_with_and_without(target, Start.of(target), recordings)  # recorded again
    assert_equal_with_and_without(single, Start.of(single), recordings)  # kept from before
    assert device.n_recorded == 7


@needs_gxx
def test_short_trajectories_and_partial_gradients_are_not_recorded() -> None:
    target, device = posterior(), StandIn()
    assert_equal_with_and_without(target, Start.of(target), Recordings(device), n_steps=7)
    assert_equal_with_and_without(target, Start.of(target, n_partitions=3), Recordings(device))
    assert device.n_recorded == 0


@needs_gxx
def test_gradients_that_take_a_device_longer_than_launches_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recording would hold the memory of a gradient for nothing."""
    target, device = posterior(), StandIn()
    units = 3 * (2 * (4 + 3 + 2) + 4) * 8 * 37  # values, slopes and derivatives of three chains
    for most, n_recorded in ((units - 1, 0), (units, 1)):
        monkeypatch.setattr(wide, "_MOST_BYTES_TO_RECORD", most)
        assert_equal_with_and_without(target, Start.of(target), Recordings(device))
        assert device.n_recorded == n_recorded


@needs_gxx
def test_common_precisions_may_be_integrated_out_of_a_recorded_gradient() -> None:
    """The posterior's own recording is used, in turn with its trajectories."""
    target, device = posterior(), StandIn()
    left, recordings, start = target.marginal(("precisions",)), Recordings(device), Start.of(target)
    for _ in range(2):
        expected = start.run(advance_of(target, None), left, n_steps=9)
        results = start.run(advance_of(target, recordings), left, n_steps=9)
        assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))
        assert_equal_with_and_without(target, start, recordings)
    assert device.n_recorded == 1


@needs_gxx
def test_a_chain_that_blows_up_is_recorded_with_the_others() -> None:
    target = posterior("class", "float32")
    recordings, start = Recordings(StandIn()), Start.of(target)
    start.position[1] = 1e30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potential = start.run(advance_of(target, recordings), target, n_steps=9)[2]
    assert potential[1] == math.inf and np.isfinite(potential[[0, 2]]).all()


def refuses(error: Exception) -> graphs.Record:
    def record(function: Function) -> Function:
        raise error

    return record


def computes_nothing(function: Function) -> Function:
    return lambda: None


def computes_too_much(function: Function) -> Function:
    def launch() -> None:
        function()
        function.__self__._result[2, 0] += 0.1  # type: ignore[attr-defined]

    return launch


@needs_gxx
@pytest.mark.parametrize(
    "record, reason",
    [
        (refuses(NotImplementedError("calling cuBLAS")), "NotImplementedError: calling cuBLAS"),
        (refuses(RuntimeError("cublasSetStream_v2: status 1")), "cublasSetStream_v2: status 1"),
        (refuses(OSError("libcublas.so.12: cannot open")), "OSError: libcublas"),
        (refuses(MemoryError("out of memory")), "MemoryError"),
        (refuses(ValueError("product: matrices must fit each other")), "ValueError: product"),
        (refuses(AttributeError("undefined symbol: cublasGemm")), "AttributeError: undefined symbol"),
        (computes_nothing, "wrong by nan"),
        (computes_too_much, "wrong by"),
    ],
)
def test_what_cannot_be_recorded_is_launched_one_by_one_and_said_once(
    record: graphs.Record, reason: str
) -> None:
    target = posterior()
    recordings = Recordings(record)
    with pytest.warns(UserWarning, match=f"CUDA graphs cannot be used.*{reason}") as said:
        for name in ("one", "two"):
            assert_equal_with_and_without(target, Start.of(target, name=name), recordings)
    assert len(said) == 1


class FakeCupy:
    """The part of CuPy that records; it logs the order of calls."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.cuda = SimpleNamespace(
            Stream=self.stream,
            MemoryPool=lambda: SimpleNamespace(malloc=None),
            using_allocator=self.allocator,
        )

    def stream(self, *, non_blocking: bool) -> FakeCupy:
        assert non_blocking  # neither the default stream nor one that waits for it can be captured
        return self

    def allocator(self, malloc: Any) -> FakeCupy:
        return self

    def __enter__(self) -> FakeCupy:
        self.events.append("enter")
        return self

    def __exit__(self, *why: object) -> None:
        self.events.append("exit")

    def begin_capture(self) -> None:
        self.events.append("begin")

    def end_capture(self) -> Any:
        self.events.append("end")
        if "broken" in self.events:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        return SimpleNamespace(launch=lambda: self.events.append("launch"))


def test_a_capture_is_ended_whatever_happens_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    graphs.cuda_graph(lambda: cupy.events.append("work"))()
    assert cupy.events == ["enter", "enter", "begin", "work", "end", "exit", "exit", "launch"]
    cupy.events.clear()

    def broken() -> None:
        cupy.events.append("broken")
        raise NotImplementedError("calling cuBLAS")

    with pytest.raises(NotImplementedError, match="calling cuBLAS"):
        graphs.cuda_graph(broken)
    assert cupy.events == ["enter", "enter", "begin", "broken", "end", "exit", "exit"]
