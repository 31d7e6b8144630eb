"""The CUDA kernels agree with array code on random networks of every shape that they cover; on a CPU.

The source is compiled by g++ with a shim, as in test_chip.py, which says what this cannot show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda import products_marginal as wide_marginal
from rayfbnn.kernels.cuda.chip import ChipKernels
from rayfbnn.kernels.cuda.launch_plan import TILES, LaunchPlan, block_bytes
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.kernels.network_plan import NetworkPlan, plan_of
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.model.likelihood.binary import polya_gamma
from rayfbnn.model.updates.hyperbolic import hyperbolic_variable
from rayfbnn.state import Advance
from rayfbnn.streams import Purpose, Streams, Use
from tests.support.kernels.backends import OnChip
from tests.support.kernels.marginals import largest_error
from tests.support.kernels.networks import (
    H100_SHARED_BYTES,
    N_EXAMPLES,
    TOLERANCES,
    assert_close,
    assert_end_is_a_start,
    examples,
)
from tests.support.kernels.strategies import (
    RandomTrajectory,
    trajectories,
    without_outputs,
    without_precisions,
)
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = needs_gxx
BUILD = ShimBuild()
# Few of a warp's registers; shared memory for a tile of 64 cases, of 32 or of 16.
WARP_UNITS = 6
SHARED_BYTES = (H100_SHARED_BYTES, 64 * 1024, 24 * 1024)


def plans(kernel: str, network: NetworkPlan, dtype: str) -> st.SearchStrategy[LaunchPlan]:
    """Every division of work that the kernel can use."""
    if kernel == "warp":
        return st.sampled_from([32, 64, 128]).map(lambda n: LaunchPlan("warp", n, tile=1, shared_bytes=0))
    size = np.dtype(dtype).itemsize

    def of_block(tile: int, threads: int) -> LaunchPlan:
        return LaunchPlan("block", threads, tile, block_bytes(network, tile, threads, size))

    return st.builds(of_block, st.sampled_from(TILES), st.sampled_from([64, 128, 256]))


AdvanceOf = Callable[[RandomTrajectory, st.DataObject], Advance]


def on_chip(kernel: str) -> AdvanceOf:
    """Return a function that gives the kernel of a posterior, with any division of its work."""

    def advance_of(made: RandomTrajectory, data: st.DataObject) -> Advance:
        network = plan_of(made.made_for)
        assert isinstance(network, NetworkPlan)
        plan = data.draw(plans(kernel, network, made.made_for.dtype))
        return ChipKernels(network, plan, BUILD).advance

    return advance_of


def marginal_on_chip(made: RandomTrajectory, data: st.DataObject) -> Advance:
    limits = [data.draw(st.sampled_from(SHARED_BYTES)), H100_SHARED_BYTES]
    kernels = [OnChip(BUILD, limit) for limit in limits]
    advance = next((kernel for kernel in kernels if kernel.covers(made.target)), None)
    assume(advance is not None)  # float64 and many features
    assert advance is not None
    return advance


def in_products(made: RandomTrajectory, data: st.DataObject) -> Advance:
    """Return the products, whose tiles hold a single chain, a few or all."""
    target, tile_bytes = made.target, data.draw(st.sampled_from([1, 4_000, 1_000_000]))
    assume(not isinstance(target, WithoutOutputs) or target.n_parameters > 0)
    if isinstance(target, WithoutOutputs):
        advance = wide_marginal.compile_for(target.marginal, build=BUILD, tile_bytes=tile_bytes)
    else:
        advance = wide.compile_for(target, build=BUILD, tile_bytes=tile_bytes)
    assert not isinstance(advance, NotCovered), advance
    return advance


NO_TI: Any = {"leaving_out": ("ti",)}
RANDOM: dict[str, tuple[st.SearchStrategy[RandomTrajectory], AdvanceOf]] = {
    "warp": (trajectories(most_units=WARP_UNITS), on_chip("warp")),
    "block": (trajectories(most_units=13), on_chip("block")),
    "products": (trajectories(**NO_TI), in_products),
    "without precisions": (without_precisions(), marginal_on_chip),
    "without outputs": (without_outputs(form="primal", most_cases=150), marginal_on_chip),
    "without outputs, dual": (without_outputs(form="dual", most_cases=64), marginal_on_chip),
    "products without precisions": (without_precisions(**NO_TI), in_products),
    "products without outputs": (without_outputs(form="primal", most_cases=100, **NO_TI), in_products),
    "products without outputs, dual": (without_outputs(form="dual", most_cases=100, **NO_TI), in_products),
}


@pytest.mark.parametrize("n", N_EXAMPLES)
@pytest.mark.parametrize("name", RANDOM)
def test_a_trajectory_is_that_of_the_array_code(name: str, n: int) -> None:
    """A start at its end gives its energy again."""
    random, advance_of = RANDOM[name]

    @examples(n)
    @given(random, st.data())
    def agree(made: RandomTrajectory, data: st.DataObject) -> None:
        advance, start = advance_of(made, data), made.start
        ended = start.run(advance, made.target, n_steps=made.n_steps)
        expected = start.run(leapfrog.advance, made.target, n_steps=made.n_steps)
        if name in ("warp", "block", "products"):
            assert_close(ended, expected, made.made_for.dtype)
        for a, b in zip(ended, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            assert largest_error(a, b) < TOLERANCES[made.made_for.dtype]
        assert_end_is_a_start(
            advance, made.target, ended, start.precisions, start.stepsizes, order=start.order
        )

    agree()


SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


def relative_error(found: Array, expected: Array) -> float:
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected) / np.maximum(np.abs(expected), 1), initial=0))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(0, 2**32 - 9),
    n_chains=st.integers(1, 9),
    iteration=st.integers(0, 2**32 - 1),
    operation=st.integers(0, 2**16),
    shape=SHAPES,
    index=st.integers(0, 2**18 - 1),
    attempt=st.integers(0, 63),
    purpose=st.sampled_from(Purpose),
    size=st.floats(-4, 4),
)
def test_random_numbers(
    seed: int,
    first: int,
    n_chains: int,
    iteration: int,
    operation: int,
    shape: tuple[int, ...],
    index: int,
    attempt: int,
    purpose: Purpose,
    size: float,
) -> None:
    """Words agree bit for bit, and so do decisions of rejection loops.

    Functions of them agree up to rounding.
    """
    chains = np.arange(first, first + n_chains, dtype=np.uint64)
    here = Streams(seed, chains, iteration, operation)
    there = DeviceStreams(seed, chains, iteration, operation, BUILD)
    options = {"index": index, "attempt": attempt}
    uniform = here.uniform(purpose, shape, **options)
    assert np.array_equal(there.uniform(purpose, shape, **options), uniform)
    draws: list[Callable[[Streams], Array]] = [
        lambda random: random.normal(purpose, shape, index=index),
        lambda random: random.log_gamma(10.0**size, purpose, shape, index=index),
        lambda random: hyperbolic_variable(
            10.0 ** abs(size) - 1, 10.0**size * uniform, random, use=Use(purpose, index, 1)
        ),
        lambda random: polya_gamma(10 * size * uniform, random, purpose=purpose),
    ]
    for draw in draws:
        assert relative_error(draw(there), draw(here)) < 1e-10
    n = 1 + sum(shape)
    assert np.array_equal(there.permutation(n, purpose), here.permutation(n, purpose))
    assert np.array_equal(there.shuffle(n, purpose), here.shuffle(n, purpose))
