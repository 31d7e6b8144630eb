"""The CUDA kernels agree with array code: the same source, compiled by g++ with a shim and run on the CPU.

This cannot show the rounding of a device's own functions, nor its speed: see test_on_device.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda.advance import CudaBackend
from rayfbnn.kernels.cuda.generate import source_of
from rayfbnn.kernels.cuda.launch_plan import wide_plan
from rayfbnn.kernels.network_plan import NetworkPlan, plan_of
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from tests.support.kernels.backends import advance_of
from tests.support.kernels.networks import (
    H100_SHARED_BYTES,
    Start,
    are_equal,
    assert_close,
    small,
)
from tests.support.problems import MODELS, network, problem, streams
from tests.support.shim.compiled import ShimBuild, ShimKernel, needs_gxx

pytestmark = needs_gxx


def full_problem(model: str, kernel: str, dtype: str, *, n_cases: int = 37) -> SampledPosterior:
    """A problem with every group of parameters that the kernel covers."""
    outputs = 3 if model == "class" else 2
    spec = network(outputs=outputs)
    return problem(model, spec=spec, dtype=dtype, n_cases=n_cases)


@pytest.mark.parametrize("is_whole", [True, False], ids=["in one launch", "by pieces"])
@pytest.mark.parametrize("kernel", ["warp", "block"])
def test_hybrid_updates_are_those_of_the_array_code(kernel: str, is_whole: bool) -> None:
    """Windows, chains that start backwards, partial gradients, acceptance and rejection."""
    target = problem(spec=small((3,)), n_cases=20)
    state = target.initial_state(streams("hybrid", 6), sigmas=0.5)
    random = streams("hybrid", 6, iteration=1)
    options: dict[str, Any] = {"steps": 6, "window": 3, "partitions": 4, "stepsize": 0.6}
    expected, info = hmc.hybrid(state, random, target=target, **options)
    found, found_info = hmc.hybrid(
        state, random, target=target, advance=advance_of(target, kernel, is_whole=is_whole), **options
    )
    assert info.accepted.any() and not info.accepted.all()
    assert np.array_equal(found_info.accepted, info.accepted)
    assert np.max(np.abs(found_info.energy_change - info.energy_change)) < 1e-9
    assert np.max(np.abs(found.position - expected.position)) < 1e-11
    assert np.max(np.abs(found.momentum - expected.momentum)) < 1e-11


@pytest.mark.parametrize("kernel", ["warp", "wide"])
def test_a_kernel_is_looked_for_once(kernel: str) -> None:
    """To find one by its source takes longer than to launch it."""
    asked: list[str] = []

    class Build(ShimBuild):
        def __call__(self, source: str, name: str, shared_bytes: int) -> ShimKernel:
            asked.append(name)
            return super().__call__(source, name, shared_bytes)

    target = problem("binary", spec=small((4,), outputs=1), n_cases=20)
    start, advance = Start.of(target), advance_of(target, kernel, Build())
    start.run(advance, target)
    n_asked = len(asked)
    start.run(advance, target)
    assert len(asked) == n_asked == len(set(asked)) > 0


def results_in_orders(target: SampledPosterior, kernel: str, **options: Any) -> list[tuple[Array, ...]]:
    """A trajectory with the threads of a block running forwards, backwards, and in a scattered order."""
    start = Start.of(target, n_chains=2, n_partitions=2)
    builds = [ShimBuild(order, **options) for order in (0, 1, 5)]
    return [start.run(advance_of(target, kernel, build), target) for build in builds]


@pytest.mark.parametrize("kernel", ["warp", "block"])
def test_threads_may_run_in_any_order(kernel: str) -> None:
    target = full_problem("class", kernel, "float64", n_cases=70)
    assert are_equal(results_in_orders(target, kernel))


# All barriers but the warp's last; the shuffles before it stand in for that one, but on a device they order
# no memory.
QUICK_BARRIERS = {("block", 0), ("block", 4), ("block", 9), ("warp", 0), ("warp", 1)}
BARRIERS = [
    pytest.param(kernel, which, marks=() if (kernel, which) in QUICK_BARRIERS else pytest.mark.long)
    for kernel, n_barriers in (("block", 10), ("warp", 2))
    for which in range(n_barriers)
]


@pytest.mark.parametrize("kernel, which", BARRIERS)
def test_every_barrier_is_needed(kernel: str, which: int) -> None:
    """Without a barrier the bits depend on the order of the threads, or differ from array code."""
    barrier = "__syncwarp();" if kernel == "warp" else "__syncthreads();"
    target = full_problem("class", kernel, "float64", n_cases=70)
    # Here the sums of energies lie over the last tile, with next to no units.
    if (kernel, which) == ("block", 9):
        line = network({"io": "1"}, inputs=1, outputs=1, units=(), activations=())
        target = problem(spec=line, n_cases=70)
    start = Start.of(target, n_chains=2, n_partitions=2)
    results = results_in_orders(target, kernel, replace=(barrier, "", which))
    expected = start.run(leapfrog.advance, target)
    differs = any(
        not np.allclose(values, others, rtol=1e-9, equal_nan=False)
        for result in results
        for values, others in zip(result, expected, strict=True)
    )
    assert differs or not are_equal(results)


MUTANTS = [
    ("block", "is_end ? own.stepsize[i] / 2 : own.stepsize[i]", "own.stepsize[i]"),
    ("warp", "real(n_partitions * inverse_temperature[chain])", "real(inverse_temperature[chain])"),
    ("block", "(long long)n_cases * part / n_partitions", "n_cases / n_partitions * part"),
    ("block", "seen[p] += tile.offset(m)", "seen[p] += 0"),
    ("warp", "slope[p] = slope_of<L>(A, u[m][p])", "slope[p] = 1"),
    ("block", "sums[i][j] += value[p] * slope[j][p]", "sums[i][j] += value[p] * slope[j][0]"),
    ("warp", "(alpha + 1) / (alpha + slope * w)", "(alpha + 1) / (alpha + w)"),
    ("block", "* inverse_temperature[chain]", ""),
]
LONG_MUTANTS = [
    ("warp", "is_end ? full[i] / 2 : full[i]", "full[i]"),
    ("warp", "order[piece.is_backwards && place > 0 ? n_partitions - place : place]", "place"),
    ("block", "value += shared[offset_of(0) + unit]", "value += 0"),
    ("warp", "gradient[offset_of(LAYER) + unit] += derivative[0][0];", ""),
    ("warp", "u[m][p] += bias", "u[m][p] += 0"),
    ("block", "derivative[m][p] *= slope[p]", "derivative[m][p] *= 1"),
    ("block", "shared[GRADIENT + parameter] = 0;\n    own.momentum[i] -=", "own.momentum[i] -="),
]


@pytest.mark.parametrize(
    "kernel, before, after",
    [*MUTANTS, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG_MUTANTS)],
)
def test_mutants_are_told_from_the_array_code(kernel: str, before: str, after: str) -> None:
    target = full_problem("gaussian", kernel, "float64", n_cases=38).tempered(0.7)
    start = Start.of(target, n_partitions=4)
    expected = start.run(leapfrog.advance, target)
    with pytest.raises(AssertionError):
        build = ShimBuild(replace=(before, after, 0))
        assert_close(start.run(advance_of(target, kernel, build), target), expected, "float64")


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-13)])
def test_slopes_of_binary_targets_keep_their_digits_far_from_zero(dtype: str, tolerance: float) -> None:
    """sigmoid(v) of a zero and -sigmoid(-v) of a one, also where sigmoid(v) - y cancels."""
    plan = plan_of(problem("binary", spec=small((4,), outputs=1), dtype=dtype))
    assert isinstance(plan, NetworkPlan)
    source = source_of(plan, wide_plan, dtype=dtype, is_weighted=False)
    outputs = np.array([40, 40, -40, -40, 3], dtype=dtype)
    targets, nothing = np.array([1.0, 0, 1, 0, 1]), np.empty(0)
    expected = np.where(
        targets == 1, -1 / (1 + np.exp(outputs, dtype=float)), 1 / (1 + np.exp(-outputs, dtype=float))
    )
    arguments = (
        outputs,
        np.ones(1),
        np.zeros(plan.n_parameters, dtype=dtype),
        nothing,
        targets.astype(dtype),
        targets,
        nothing,
    )
    numbers = (np.int64(0), np.int64(0), np.int32(1), np.int32(5), np.int32(0), np.int32(5))
    ShimBuild()(source, "slopes_of_outputs", 0)((1,), (256,), (*arguments, *numbers))
    assert np.abs(outputs / expected - 1).max() < tolerance


def test_every_model_has_its_kernel() -> None:
    """Small networks run on the chip by warps, larger ones by blocks, and the largest by products."""
    backend = CudaBackend(uses_graphs=False, build=ShimBuild(), max_shared_bytes=H100_SHARED_BYTES)
    choices = {
        (16,): "a warp a chain",
        (100,): "a block a chain",
        (300, 300): "products over all chains, gradients in TF32",
    }
    for units, words in choices.items():
        target = problem(spec=small(units), dtype="float32")
        compiled = backend.compile(target)
        assert isinstance(compiled, Compiled) and words in compiled.name
    softmax = problem(spec=small((4,), activation="softmax"))
    assert backend.compile(softmax) == NotCovered("softmax layers")
    for model in MODELS:
        assert isinstance(backend.compile(problem(model)), Compiled)
