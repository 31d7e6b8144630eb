"""The CUDA kernels agree with array code where outputs or common precisions are integrated out; on a CPU.

The source is compiled by g++ with a shim, as in test_chip.py, which says what this cannot show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Trajectory
from tests.support import problems
from tests.support.joint import PROBLEMS, stays_exact
from tests.support.kernels.backends import OnChip
from tests.support.kernels.marginals import (
    TOLERANCES,
    beginning,
    largest_error,
    short_operations,
    worst_error,
)
from tests.support.kernels.networks import are_equal, end_of, small
from tests.support.model.marginals import BOTH, COMMON, OUTPUTS, PRECISIONS, conditional, made
from tests.support.problems import problem
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = needs_gxx


# Several tiles of cases, the last one partly filled. Together the cases have one system and several, noise
# that is the same in all cases or not, missing targets, precisions that move, integrated precisions of hidden
# groups, factors a, offsets of the inputs, no hidden layer, nothing but biases, and improper priors.
CASES = [
    ("common precisions", "gaussian", BOTH, "float32", False),
    ("common precisions", "gaussian by target", BOTH, "float64", False),
    ("common precisions", "gaussian", BOTH, "float32", True),
    ("common precisions", "t", BOTH, "float64", True),
    ("every level", "gaussian", BOTH, "float64", False),
    ("t output weights", "t by target", BOTH, "float32", False),
    ("one output", "gaussian", OUTPUTS, "float64", True),
    ("no biases", "t", BOTH, "float64", False),
    ("no hidden layer", "gaussian by target", BOTH, "float64", False),
    ("biases alone feed the outputs", "gaussian", BOTH, "float64", True),
    ("adjustments", "gaussian", BOTH, "float64", False),
    ("vague", "gaussian", BOTH, "float64", False),
    ("common precisions", "gaussian", PRECISIONS, "float32", False),
    ("adjustments", "t by target", PRECISIONS, "float64", True),
    ("common precisions", "binary", BOTH, "float32", False),
    ("common precisions", "binary", PRECISIONS, "float64", False),
]


@pytest.mark.parametrize("name, model, over, dtype, is_missing", CASES)
def test_a_trajectory_is_that_of_the_array_code(
    name: str, model: str, over: tuple[str, ...], dtype: str, is_missing: bool
) -> None:
    target = made(name, model, "primal", is_missing=is_missing, n_cases=150, dtype=dtype)
    state, given = conditional(target, over, f"device {name} {model}", 3)
    advance = OnChip()
    assert advance.covers(given)
    assert worst_error(given, beginning(given, state), advance, n_steps=3) < TOLERANCES[dtype]


def test_features_that_leave_out_inputs() -> None:
    """Features are runs of rows that are no whole layer; the offsets of these inputs get the slopes."""
    spec = replace(problems.network(COMMON), omitted={"io": (1,)})
    state, given = conditional(problem(spec=spec, n_cases=30), BOTH, "device runs", 3)
    assert worst_error(given, beginning(given, state), OnChip(), n_steps=3) < 1e-11


@pytest.mark.parametrize("units, threads", [((3,), 32), ((48,), 256)])
def test_blocks_of_every_size(units: tuple[int, ...], threads: int) -> None:
    target = problem(spec=small(units), n_cases=100, dtype="float32")
    state, given = conditional(target, OUTPUTS, "device sizes", 2)
    advance = OnChip()
    assert advance.launch_plan(given).threads == threads
    assert worst_error(given, beginning(given, state), advance, n_steps=2) < TOLERANCES["float32"]


def test_a_matrix_that_is_not_positive_definite_is_infinite() -> None:
    target = made("common precisions", "gaussian", "primal")
    state, given = conditional(target, OUTPUTS, "device indefinite", 3)
    data = given.regression
    prior = data.prior.copy()
    prior[1] *= -1e9
    start = beginning(given, state)
    indefinite = replace(given, regression=replace(data, prior=prior))
    with np.errstate(invalid="ignore"):
        found = end_of(OnChip(), indefinite, start, n_steps=2)
    good = end_of(OnChip(), given, start, n_steps=2)
    assert found[2][1] == np.inf
    assert all(np.array_equal(a[[0, 2]], b[[0, 2]]) for a, b in zip(found, good, strict=True))


# Two warps; noise that differs by case, and two systems of the same noise in all cases, one after the other.
ORDERED = [("t", OUTPUTS), ("gaussian by target", BOTH), ("gaussian by target", OUTPUTS)]


def results_in_orders(model: str, over: tuple[str, ...], **options: Any) -> list[tuple[Array, ...]]:
    """A trajectory with the threads of a block running forwards, backwards, and in a scattered order."""
    given, start = several_tiles(model, over)
    return [end_of(OnChip(ShimBuild(order, **options)), given, start, n_steps=2) for order in (0, 1, 5)]


def several_tiles(model: str, over: tuple[str, ...]) -> tuple[Any, Trajectory]:
    target = problem(model, spec=problems.network(COMMON, units=(6, 4)), n_cases=99)
    state, given = conditional(target, over, "device orders", 2)
    return given, beginning(given, state)


@pytest.mark.parametrize("model, over", ORDERED)
def test_threads_may_run_in_any_order(model: str, over: tuple[str, ...]) -> None:
    assert are_equal(results_in_orders(model, over))


@pytest.mark.long
@pytest.mark.parametrize("which", range(15))
def test_every_barrier_is_needed(which: int) -> None:
    """Without a barrier the bits depend on the order of the threads, or differ from array code.

    No precisions are integrated out here: on the CPU the shuffles of their sums wait for all threads.
    """
    problem_of_all = ORDERED[-1]
    given, start = several_tiles(*problem_of_all)
    results = results_in_orders(*problem_of_all, replace=("__syncthreads();", "", which))
    expected = end_of(leapfrog.advance, given, start, n_steps=2)
    is_plain = all(
        largest_error(a, b) < 1e-9 for result in results for a, b in zip(result, expected, strict=True)
    )
    assert not is_plain or not are_equal(results)


MUTANTS = [
    ("- N_EACH * log(x[f * WIDTH + f])", ""),
    ("energy += 0.5 * s * squares", "energy += 0.5 * squares"),
    ("energy_of_moved<N_ALL>(shared) : 0.0", "0.0 : 0.0"),
    ("energy_of_moved<N_ALL>", "energy_of_moved<N_EACH>"),
    ("shape / 2 * RAYFBNN_LOG(sum)", "shape * RAYFBNN_LOG(sum)"),
    ("return shape / sum", "return 1 / sum"),
    ("double rate = integrated_rate(GROUP)", "double rate = 0"),
    ("half * (ratio - 1)", "0"),
    ("total = system > 0 ? total + slope : slope", "total = slope"),
    ("(is_first ? real(0) : block[i * N_FEATURES + j])", "real(0)"),
    ("real(-t * m)", "real(-m)"),
    ("if (at >= given.n_cases) continue;", ""),
    ("if (begin + number >= n_here) break;", ""),
]


@pytest.mark.long
@pytest.mark.parametrize("before, after", MUTANTS)
def test_mutants_are_told_from_the_array_code(before: str, after: str) -> None:
    given, start = several_tiles("gaussian by target", BOTH)
    advance = OnChip(ShimBuild(replace=(before, after, 0)))
    assert worst_error(given, start, advance, n_steps=3) > 1e-6


def test_what_does_not_fit_on_the_chip_is_said() -> None:
    wide = problem(spec=small((160,)), n_cases=170)
    _, given = conditional(wide, OUTPUTS, "too large", 2)
    chosen = OnChip().chosen(given)
    assert isinstance(chosen, Compiled) and chosen.name == (
        "CUDA, products over all chains (480 parameters and a regression on 161 features: their state takes"
        " 479 KiB, and a block has 227 KiB of shared memory)"
    )
    _, given = conditional(wide, PRECISIONS, "too large", 2)
    assert "parameters: their state takes" in str(OnChip(max_shared_bytes=10_000).chosen(given))
    nothing = problems.network({"io": "1", "bo": "1"}, units=(), activations=())
    _, given = conditional(problem(spec=nothing, n_cases=30), OUTPUTS, "nothing kept", 2)
    assert OnChip().chosen(given) == NotCovered("no parameters are kept")


def test_what_is_covered_is_run_by_the_kernel() -> None:
    target = made("common precisions", "gaussian", "primal", dtype="float32")
    state, given = conditional(target, BOTH, "chosen", 3)
    start, advance = beginning(given, state), OnChip()
    errors = end_of(advance.advance, given, start, n_steps=2)
    for a, b in zip(errors, end_of(advance, given, start, n_steps=2), strict=True):
        assert np.array_equal(a, b)


def test_inputs_that_would_be_misread_are_refused() -> None:
    target = made("common precisions", "gaussian", "primal", dtype="float32")
    wrong = {
        "be float32": (TypeError, target.inputs.astype(np.float64)),
        "be C-contiguous": (ValueError, np.asfortranarray(target.inputs)),
        "have the shape": (ValueError, target.inputs[:, :-1].copy()),
    }
    for over in (BOTH, PRECISIONS):
        for words, (kind, array) in wrong.items():
            state, given = conditional(target, over, "device inputs", 3)
            start, posterior = beginning(given, state), replace(target, inputs=array)
            if over == PRECISIONS:
                changed = replace(given, posterior=posterior)
            else:
                changed = replace(given, marginal=replace(given.marginal, posterior=posterior))
            with pytest.raises(kind, match=f"inputs: must {words}"):
                end_of(OnChip(), changed, start, n_steps=2)


def stays_exact_through(build: ShimBuild, name: str, *, n_chains: int, over: tuple[str, ...] = BOTH) -> bool:
    def advance_for(target: SampledPosterior) -> Advance:
        return OnChip(build)

    changed = replace(PROBLEMS["binary"], operations=short_operations(over))
    return stays_exact(changed, name, n_chains=n_chains, advance_for=advance_for)


def test_joint_distribution_stays_through_the_kernel() -> None:
    assert stays_exact_through(ShimBuild(), "marginal device", n_chains=1_000)


@pytest.mark.long
def test_joint_distribution_stays_without_common_precisions() -> None:
    assert stays_exact_through(ShimBuild(), "precisions device", n_chains=1_000, over=PRECISIONS)


@pytest.mark.parametrize(
    "before, after",
    [MUTANTS[0], pytest.param("sum += 0.5 * given", "sum += 0.2 * given", marks=pytest.mark.long)],
)
def test_a_kernel_that_gives_another_energy_is_killed(before: str, after: str) -> None:
    assert not stays_exact_through(ShimBuild(replace=(before, after, 0)), "wrong", n_chains=400)


@pytest.mark.long
def test_another_prior_without_common_precisions_is_killed() -> None:
    build = ShimBuild(replace=("shape / 2 * RAYFBNN_LOG(sum)", "shape * RAYFBNN_LOG(sum)", 0))
    assert not stays_exact_through(build, "wrong precisions", n_chains=400, over=PRECISIONS)
