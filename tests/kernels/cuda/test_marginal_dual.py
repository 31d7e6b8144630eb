"""The CUDA kernel with matrices of the cases agrees with array code; on a CPU, as in test_marginal.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Compiled
from rayfbnn.kernels.cuda import chip
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Trajectory
from tests.support import problems
from tests.support.joint import stays_exact
from tests.support.kernels.backends import OnChip
from tests.support.kernels.marginals import (
    JOINT,
    TOLERANCES,
    beginning,
    largest_error,
    short_operations,
    worst_error,
)
from tests.support.kernels.networks import are_equal, end_of, small
from tests.support.model.marginals import BOTH, COMMON, OUTPUTS, conditional, made
from tests.support.problems import parse, problem
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = needs_gxx

# Between them one system and several, noise that is the same in all cases and not, missing targets,
# precisions that move, hidden groups' integrated out, connections from the inputs, factors a, offsets of the
# inputs.
CASES = [
    ("common precisions", "gaussian", BOTH, "float32", True),
    ("common precisions", "gaussian by target", BOTH, "float64", False),
    ("adjustments", "t by target", OUTPUTS, "float32", True),
    ("every level", "t", BOTH, "float64", True),
    ("t output weights", "gaussian", OUTPUTS, "float32", False),
    ("one output", "binary", BOTH, "float64", False),
]


@pytest.mark.parametrize("name, model, over, dtype, is_missing", CASES)
def test_a_trajectory_is_that_of_the_array_code(
    name: str, model: str, over: tuple[str, ...], dtype: str, is_missing: bool
) -> None:
    target = made(name, model, "dual", is_missing=is_missing, dtype=dtype)
    state, given = conditional(target, over, f"device dual {name} {model}", 5)
    assert given.regression.is_dual and OnChip().covers(given)
    assert worst_error(given, beginning(given, state), OnChip(), n_steps=3) < TOLERANCES[dtype]


WIDE = replace(small((83,)), priors=parse(dict.fromkeys(("ih0", "bh0", "ho0"), "0.7:3") | {"bo": "1"}))


@pytest.mark.parametrize("n_cases, tile, threads", [(1, 16, 64), (17, 32, 128), (64, 64, 256)])
def test_numbers_of_cases(n_cases: int, tile: int, threads: int) -> None:
    """Each thread has one, two or four squares of B; tiles are full or not."""
    state, given = conditional(problem(spec=WIDE, n_cases=n_cases), BOTH, f"device {n_cases} cases", 2)
    advance = OnChip()
    plan = advance.launch_plan(given)
    assert (plan.tile, plan.threads) == (tile, threads)
    assert worst_error(given, beginning(given, state), advance, n_steps=2) < TOLERANCES["float64"]


# Two warps; one system and several, noise that differs by case and does not.
ORDERED = [("t", OUTPUTS), ("gaussian by target", BOTH)]


def two_warps(model: str, over: tuple[str, ...]) -> tuple[Any, Trajectory]:
    target = problem(model, spec=problems.network(COMMON, units=(6, 4)), n_cases=13)
    state, given = conditional(target, over, "device dual orders", 2)
    assert given.regression.is_dual and OnChip().launch_plan(given).threads == 64
    return given, beginning(given, state)


def results_in_orders(model: str, over: tuple[str, ...], **options: Any) -> list[tuple[Array, ...]]:
    given, start = two_warps(model, over)
    return [end_of(OnChip(ShimBuild(order, **options)), given, start, n_steps=2) for order in (0, 1, 5)]


@pytest.mark.parametrize("model, over", ORDERED)
def test_threads_may_run_in_any_order(model: str, over: tuple[str, ...]) -> None:
    assert are_equal(results_in_orders(model, over))


# The energy of the precisions that move is read from positions, over which a thread writes when its
# solve_all is done.
IN_ORDER = """  const double energy = threadIdx.x == 0 ? energy_of_moved<0>(shared) : 0.0;
  return energy + solve_all<true>(shared, given);"""
OUT_OF_ORDER = """  const double energy = solve_all<true>(shared, given);
  return energy + (threadIdx.x == 0 ? energy_of_moved<0>(shared) : 0.0);"""


def test_the_energy_reads_positions_before_other_threads_write_over_them() -> None:
    results = results_in_orders(*ORDERED[-1], replace=(IN_ORDER, OUT_OF_ORDER, 0))
    assert not are_equal(results)


BARRIER = "__syncthreads();"
OWN_BARRIERS = (Path(chip.__file__).parent / "source" / "marginal_dual.cu").read_text().count(BARRIER)


@pytest.mark.long
@pytest.mark.parametrize("which", range(OWN_BARRIERS))
def test_every_barrier_is_needed(which: int) -> None:
    """Without a barrier the bits depend on the order of the threads, or differ from array code.

    This is about the last source; test_marginal.py has those before it.
    """
    given, start = two_warps(*ORDERED[-1])
    results = results_in_orders(*ORDERED[-1], replace=(BARRIER, "", which - OWN_BARRIERS - 1))
    expected = end_of(leapfrog.advance, given, start, n_steps=2)
    is_plain = all(
        largest_error(a, b) < 1e-9 for result in results for a, b in zip(result, expected, strict=True)
    )
    assert not is_plain or not are_equal(results)


LOG_OF_MATRIX = ("- log(x[c * WIDTH + c])", "")
MUTANTS = [
    LOG_OF_MATRIX,
    ("sum *= N_EACH;", ""),
    ("slope[k][i] += spread * sum[k][i]", "slope[k][i] = spread * sum[k][i]"),
    ("] = -0.5 * sum;", "] = 0;"),
    ("energy_of_moved<0>", "energy_of_moved<N_ALL>"),
]


@pytest.mark.long
@pytest.mark.parametrize("before, after", MUTANTS)
def test_mutants_are_told_from_the_array_code(before: str, after: str) -> None:
    model = "gaussian" if "N_EACH" in before else "gaussian by target"
    given, start = two_warps(model, BOTH)
    advance = OnChip(ShimBuild(replace=(before, after, 0)))
    assert worst_error(given, start, advance, n_steps=3) > 1e-6


def test_what_is_not_covered_is_said() -> None:
    _, given = conditional(problem(spec=WIDE, n_cases=65), OUTPUTS, "many cases", 2)
    assert given.regression.is_dual
    chosen = OnChip().chosen(given)
    assert isinstance(chosen, Compiled)
    assert chosen.name == "CUDA, products over all chains (more than 64 cases in the dual form)"
    _, given = conditional(problem(spec=WIDE, n_cases=60), OUTPUTS, "little memory", 2)
    chosen = OnChip(max_shared_bytes=48 * 1024).chosen(given)
    assert isinstance(chosen, Compiled) and chosen.name == (
        "CUDA, products over all chains (249 parameters and a regression on 84 features: their state takes"
        " 166 KiB, and a block has 48 KiB of shared memory)"
    )


def stays_exact_through(build: ShimBuild, name: str, *, n_chains: int) -> bool:
    def advance_for(target: SampledPosterior) -> Advance:
        assert target.marginal(BOTH).layer.is_dual
        return OnChip(build)

    changed = replace(JOINT["dual"], operations=short_operations(BOTH))
    return stays_exact(changed, name, n_chains=n_chains, advance_for=advance_for)


def test_joint_distribution_stays_through_the_kernel() -> None:
    assert stays_exact_through(ShimBuild(), "dual marginal device", n_chains=1_000)


@pytest.mark.long
def test_a_kernel_that_gives_another_energy_is_killed() -> None:
    other_sign = LOG_OF_MATRIX[0], LOG_OF_MATRIX[0].replace("-", "+"), 0
    assert not stays_exact_through(ShimBuild(replace=other_sign), "wrong dual", n_chains=1_000)
