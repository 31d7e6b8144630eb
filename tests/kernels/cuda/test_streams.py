"""The device's random numbers are those of streams.py: the same source, run on the CPU by the shim."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rayfbnn.kernels.cuda.streams import SOURCE, DeviceStreams
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, SampleSigmas
from rayfbnn.model.likelihood.binary import polya_gamma
from rayfbnn.model.updates.hyperbolic import hyperbolic_variable
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams, Use
from tests.support.joint import PROBLEMS, stays_exact
from tests.support.known_answers import KNOWN_ANSWERS
from tests.support.problems import problem
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = needs_gxx
CHAINS = np.arange(5, 105, dtype=np.uint64)
HERE = Streams(7, CHAINS, 3, 2)
THERE = DeviceStreams(7, CHAINS, 3, 2, ShimBuild())
# Source that exposes what the known answers are about: ten rounds on one counter and key.
ROUNDS = SOURCE + (
    'extern "C" __global__ void rounds(const unsigned* in, unsigned* out) {\n'
    "  const Words word = philox(Words{{in[0], in[1], in[2], in[3]}}, in[4], in[5]);\n"
    "  for (int i = 0; i < 4; ++i) out[i] = word.at[i];\n}\n"
)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = np.zeros(4, dtype=np.uint32)
    ShimBuild()(ROUNDS, "rounds", 0)((1,), (1,), (np.array(counter + key, dtype=np.uint32), words))
    assert words.tolist() == expected


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0,)])
def test_uniforms_are_equal_bit_for_bit(shape: tuple[int, ...]) -> None:
    for options in ({}, {"index": 2**18 - 1, "attempt": 63}):
        expected = HERE.uniform(Purpose.MOMENTUM, shape, **options)
        assert np.array_equal(THERE.uniform(Purpose.MOMENTUM, shape, **options), expected)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5)])
def test_normals_are_equal_to_rounding(shape: tuple[int, ...]) -> None:
    difference = THERE.normal(Purpose.MOMENTUM, shape, index=4) - HERE.normal(
        Purpose.MOMENTUM, shape, index=4
    )
    assert abs(difference).max() < 1e-14


def test_log_gammas_are_equal_to_rounding() -> None:
    shapes = np.array([0.0005, 0.3, 1.0, 2.5, 1e4])
    expected = HERE.log_gamma(shapes, Purpose.PRECISION_UNIT, (5,), index=3)
    numbers = THERE.log_gamma(shapes, Purpose.PRECISION_UNIT, (5,), index=3)
    assert np.max(np.abs(numbers / expected - 1)) < 1e-11
    assert abs(THERE.log_gamma(0.7, Purpose.STEPSIZE) - HERE.log_gamma(0.7, Purpose.STEPSIZE)).max() < 1e-11


@pytest.mark.parametrize("a", [0.0, 0.3, 5.0, 100.0])
def test_hyperbolic_variables_are_equal_to_rounding(a: float) -> None:
    omega = np.exp(3 * HERE.normal(Purpose.GRID, (9,)))
    numbers, expected = (
        hyperbolic_variable(a, omega, random, use=Use(Purpose.PRECISION_COMMON, 1, 1))
        for random in (THERE, HERE)
    )
    assert np.max(np.abs(numbers - expected) / np.maximum(np.abs(expected), 1)) < 1e-11


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 40.0])
def test_polya_gamma_variables_are_equal_to_rounding(scale: float) -> None:
    """Arguments lie on both sides of |z| = 2/0.64, where the proposal changes."""
    z = scale * HERE.normal(Purpose.GRID, (3, 7))
    numbers, expected = (polya_gamma(z, random, purpose=Purpose.POLYA_GAMMA) for random in (THERE, HERE))
    assert np.max(np.abs(numbers / expected - 1)) < 1e-11


@pytest.mark.parametrize("n", [1, 2, 31])
def test_permutations_are_the_hosts(n: int) -> None:
    expected = HERE.permutation(n, Purpose.PARTITION_ORDER)
    numbers = THERE.permutation(n, Purpose.PARTITION_ORDER)
    assert numbers.dtype == expected.dtype and np.array_equal(numbers, expected)


@pytest.mark.parametrize("n", [1, 2, 65, 300])
def test_shuffles_are_the_hosts(n: int) -> None:
    expected = HERE.shuffle(n, Purpose.MINIBATCH)
    numbers = THERE.shuffle(n, Purpose.MINIBATCH)
    assert numbers.dtype == expected.dtype and np.array_equal(numbers, expected)


def test_what_was_never_accepted_is_no_number() -> None:
    assert np.isnan(THERE.log_gamma(np.nan, Purpose.PRECISION_UNIT, (2,))).all()
    nothing = np.full((len(CHAINS), 1), np.nan)
    assert np.isnan(THERE.hyperbolic(1.0, nothing, Purpose.PRECISION_UNIT, index=0)).all()
    assert np.isnan(THERE.polya_gamma(nothing, Purpose.POLYA_GAMMA, index=0)).all()


def test_streams_stay_the_devices_own_when_moved_on() -> None:
    moved = THERE.at(iteration=9, operation=4)
    assert isinstance(moved, DeviceStreams)
    expected = HERE.at(iteration=9, operation=4).uniform(Purpose.ACCEPT)
    assert np.array_equal(moved.uniform(Purpose.ACCEPT), expected)


@pytest.mark.parametrize("wrong", [{"attempt": 64}, {"index": 2**18}])
def test_a_counter_that_would_wrap_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        THERE.uniform(Purpose.ACCEPT, **wrong)


def test_heatbath_and_gibbs_updates_are_those_of_the_host() -> None:
    target = problem("t by target", n_cases=12)
    state = target.initial_state(HERE, sigmas=None)
    assert np.allclose(target.initial_state(THERE, sigmas=None).position, state.position, rtol=1e-9)
    for update in (target.sample_sigmas, heatbath):
        expected, _ = update(state, HERE)
        numbers, _ = update(state, THERE)
        assert isinstance(numbers, ChainState)
        assert np.allclose(numbers.precisions, expected.precisions, rtol=1e-9)
        assert np.allclose(numbers.momentum, expected.momentum, rtol=1e-9, atol=1e-12)


MUTANTS = [
    ("0x9E3779B9u", "0x9E3779B8u"),
    ("a < 1 ? a + 1 : a", "a"),
    ("ATTEMPT * attempt", "attempt"),
    ("uniform_of(two, 0)) <", "uniform_of(two, 1)) <"),
    ("-top_left + left * log(v)", "-top_left - left * log(v)"),
]


@pytest.mark.parametrize("before, after", MUTANTS)
def test_mutants_of_the_device_are_seen(before: str, after: str) -> None:
    mutant = DeviceStreams(7, CHAINS, 3, 2, ShimBuild(replace=(before, after, 0)))
    shapes, omega = np.full((100, 40), 0.3), np.full((100, 40), 0.5)
    equal = [
        np.allclose(
            mutant.log_gamma(shapes, Purpose.GRID, (40,)), HERE.log_gamma(shapes, Purpose.GRID, (40,))
        ),
        np.allclose(
            mutant.hyperbolic(0.3, omega, Purpose.GRID, index=1),
            hyperbolic_variable(0.3, omega, HERE, use=Use(Purpose.GRID, 1, 1)),
        ),
    ]
    assert not all(equal)


# Together they ask for all random numbers: Polya-Gamma variables for outputs of binary targets, hyperbolic
# ones for the upper of two levels, permutations for partial gradients.
OPERATIONS = (
    SampleSigmas(),
    Heatbath(),
    Hybrid(steps=2, stepsize=1.5, partitions=3),
    HybridMarginal(("outputs", "precisions"), steps=2, stepsize=2.0),
)


def stays_exact_with(build: ShimBuild, name: str) -> bool:
    joint = replace(PROBLEMS["binary"], operations=OPERATIONS)
    return stays_exact(joint, name, n_chains=1_000, streams_of=partial(DeviceStreams, build=build))


@pytest.mark.long
def test_joint_distribution_stays_with_the_devices_numbers() -> None:
    assert stays_exact_with(ShimBuild(), "random device")


@pytest.mark.long
def test_numbers_that_depend_on_each_other_are_killed() -> None:
    assert not stays_exact_with(ShimBuild(replace=("radius * sin(angle)", "radius * cos(angle)", 0)), "pairs")
