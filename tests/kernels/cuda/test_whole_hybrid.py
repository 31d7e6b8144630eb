"""A whole hybrid update in one launch makes the choices and the decision of the array code; by the shim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, ChainState, HMCInfo
from tests.support.kernels.backends import advance_of
from tests.support.kernels.networks import are_equal, device_copy, small
from tests.support.problems import problem, streams
from tests.support.shim.compiled import ShimBuild, needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed

pytestmark = needs_gxx
N_CHAINS = 16
# The pieces of a trajectory: one; single steps alone; windows that overlap, and that hold all states; and
# steps that are not considered.
SETTINGS: dict[str, dict[str, Any]] = {
    "no windows": {"steps": 5},
    "windows": {"steps": 7, "window": 3},
    "windows side by side": {"steps": 5, "window": 3},
    "windows that overlap": {"steps": 5, "window": 4},
    "all states": {"steps": 3, "window": 4},
    "one step": {"steps": 1, "window": 2},
    "partial gradients": {"steps": 4, "window": 2, "partitions": 3},
    "cyclic": {"steps": 4, "window": 3, "partitions": 3, "partition_order": "cyclic"},
    "a stepsize for each chain": {"steps": 5, "stepsize": np.geomspace(0.05, 1.5, N_CHAINS)},
    "jumps": {"steps": 8, "window": 2, "jump": 2, "partitions": 3, "stepsize_jitter": -0.5},
}


def updated(
    target: SampledPosterior, advance: Advance, *, start: ChainState | None = None, **settings: Any
) -> tuple[Array, ...]:
    """State and information after one update of every chain."""
    state = target.initial_state(streams("whole", N_CHAINS), sigmas=0.5) if start is None else start
    random = streams("whole", N_CHAINS, iteration=1)
    after, info = hmc.hybrid(state, random, target=target, advance=advance, **({"stepsize": 0.6} | settings))
    assert type(info) is HMCInfo
    return after.position, after.momentum, info.energy_change, info.accepted, info.diverged


def differ(found: tuple[Array, ...], expected: tuple[Array, ...]) -> bool:
    """Return True if choices differ, or numbers by more than rounding."""
    return not all(
        np.array_equal(a, b) if b.dtype == bool else np.allclose(a, b, rtol=1e-9, atol=1e-9)
        for a, b in zip(found, expected, strict=True)
    )


@pytest.fixture(scope="module")
def target() -> SampledPosterior:
    return problem(spec=small((3,)), n_cases=20)


QUICK = {"no windows", "windows", "windows that overlap", "a stepsize for each chain", "jumps"}


@pytest.mark.parametrize("kernel", ["warp", "block"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in SETTINGS]
)
def test_an_update_is_that_of_the_array_code(target: SampledPosterior, name: str, kernel: str) -> None:
    expected = updated(target, leapfrog.advance, **SETTINGS[name])
    assert not differ(updated(target, advance_of(target, kernel), **SETTINGS[name]), expected)


@pytest.mark.parametrize("kernel", ["warp", "block"])
def test_a_trajectory_that_blows_up_is_rejected_in_its_chain(target: SampledPosterior, kernel: str) -> None:
    settings = {"steps": 40, "window": 3, "stepsize_jitter": -9.0}  # some stepsizes are 10,000
    with np.errstate(all="ignore"):
        expected = updated(target, leapfrog.advance, **settings)
        found = updated(target, advance_of(target, kernel), **settings)
    has_diverged = expected[-1]
    assert has_diverged.any() and not has_diverged.all()
    calm = expected[2] < 1e3  # the others magnify rounding
    assert np.array_equal(found[-1], has_diverged) and not found[-2][has_diverged].any()
    assert not differ(tuple(values[calm] for values in found), tuple(values[calm] for values in expected))


@pytest.mark.parametrize("kernel", ["warp", "block"])
def test_a_start_that_is_not_finite_is_told_by_the_energy_change(
    target: SampledPosterior, kernel: str
) -> None:
    """On a device nothing waits to raise an error; whoever reads the results does."""
    state = target.initial_state(streams("whole", N_CHAINS), sigmas=0.5)
    state.position[2] = np.nan
    with np.errstate(all="ignore"):
        energy_change = updated(target, advance_of(target, kernel), start=state, steps=3, window=2)[2]
    assert np.flatnonzero(np.isnan(energy_change)).tolist() == [2]


def in_orders(target: SampledPosterior, kernel: str, **changes: Any) -> list[tuple[Array, ...]]:
    """An update with the threads of a block running forwards, backwards, and in a scattered order."""
    builds = [ShimBuild(order, **changes) for order in (0, 1, 5)]
    options = SETTINGS["partial gradients"]
    return [updated(target, advance_of(target, kernel, build), **options) for build in builds]


@pytest.mark.parametrize("kernel", ["warp", "block"])
def test_threads_may_run_in_any_order(target: SampledPosterior, kernel: str) -> None:
    assert are_equal(in_orders(target, kernel))


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["warp", "block"])
def test_threads_have_to_wait_for_the_choice(target: SampledPosterior, kernel: str) -> None:
    results = in_orders(target, kernel, replace=("    wait_for_chain();\n", "", 0))
    expected = updated(target, leapfrog.advance, **SETTINGS["partial gradients"])
    assert any(differ(result, expected) for result in results)


MUTANTS = [
    ("place < window,", "place <= window,"),
    ("-accept_p[parameter]", "accept_p[parameter]"),
    ("done == 0 || done == offset", "done == 0"),
    ("place > steps - window,", "place >= steps - window,"),
    ("int(of_offset[chain] * window)", "0"),
    ("kinetic / 2", "kinetic"),
    ("is_member && minus_energy + gumbel > best_score", "is_member && minus_energy > best_score"),
    ("is_member && minus_energy + gumbel > best_score", "minus_energy + gumbel > best_score"),
    ("is_member ? minus_energy : -infinite()", "minus_energy"),
    ("high + ::log1p(::exp(low - high))", "high"),
    ("place > 0 ? n_partitions - place : place", "place > 0 ? place : place"),
    ("is_backwards ? -stepsizes[parameter]", "is_backwards ? stepsizes[parameter]"),
    ("stepsizes + vector, here_q", "stepsizes, here_q"),
    ("n_steps * jump", "n_steps"),
    ("seen == 0 ? momentum + vector : here_p", "here_p"),
    ("of_states[chain * n_states + seen]", "of_states[chain * n_states]"),
    ("< -change", "< change"),
]


@pytest.mark.parametrize(
    "before, after", [MUTANTS[0], *(pytest.param(*case, marks=pytest.mark.long) for case in MUTANTS[1:])]
)
def test_mutants_are_told_from_the_array_code(target: SampledPosterior, before: str, after: str) -> None:
    advance = advance_of(target, "warp", ShimBuild(replace=(before, after, 0)))
    settings = [SETTINGS[name] for name in ("windows", "windows that overlap", "jumps")]
    assert any(
        differ(updated(target, advance, **options), updated(target, leapfrog.advance, **options))
        for options in settings
    )


@pytest.fixture
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


@pytest.mark.parametrize(
    "units", [(3,), pytest.param((16,), marks=pytest.mark.long), pytest.param((60,), marks=pytest.mark.long)]
)
def test_launches_are_tens_whatever_the_windows_and_the_steps(cupy: Any, units: tuple[int, ...]) -> None:
    """With the choices in array code, windows of ten states took more than 1,600 launches."""
    host = problem(spec=small(units), n_cases=20, dtype="float32")
    there = device_copy(host, host.targets.T)
    random = DeviceStreams(1, cupy.arange(2, dtype=cupy.uint64))
    state = there.initial_state(random, sigmas=0.5)
    advance = choose.advance_for(there)[0]
    counts = []
    for steps, window in ((20, 1), (20, 10), (40, 10)):
        options: dict[str, Any] = {"steps": steps, "window": window, "stepsize": 0.1}
        with log.recorded() as entries:
            hmc.hybrid(state, random.at(iteration=1), target=there, advance=advance, **options)
        assert [entry.what for entry in entries].count("hybrid") == 1
        assert not any(entry.what == "advance" for entry in entries)
        counts.append(log.launches(entries))
    assert counts[0] < 60 and len(set(counts)) == 1
