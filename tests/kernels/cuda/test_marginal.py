"""The CUDA kernels agree with array code where outputs or common precisions are integrated out; on a CPU.

The source is compiled by g++ with a shim, as in test_chip.py, which says what this cannot show. The primal
form has matrices of the features, and the dual form has matrices of the cases.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import chip
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Trajectory
from tests.support import problems
from tests.support.joint import PROBLEMS, Problem, stays_exact
from tests.support.kernels.backends import OnChip
from tests.support.kernels.marginals import (
    CASES,
    JOINT,
    TOLERANCES,
    beginning,
    largest_error,
    short_operations,
    worst_error,
)
from tests.support.kernels.networks import are_equal, end_of, small
from tests.support.model.marginals import BOTH, COMMON, OUTPUTS, PRECISIONS, conditional, made
from tests.support.problems import parse, problem
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = needs_gxx


@pytest.mark.parametrize("form, name, model, over, dtype, is_missing", CASES)
def test_a_trajectory_is_that_of_the_array_code(
    form: str, name: str, model: str, over: tuple[str, ...], dtype: str, is_missing: bool
) -> None:
    size = {"n_cases": 150} if form == "primal" else {}
    target = made(name, model, form, is_missing=is_missing, dtype=dtype, **size)
    state, given = conditional(target, over, f"device {form} {name} {model}", 5)
    advance = OnChip()
    assert advance.covers(given)
    assert over == PRECISIONS or given.regression.is_dual == (form == "dual")
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


WIDE = replace(small((83,)), priors=parse(dict.fromkeys(("ih0", "bh0", "ho0"), "0.7:3") | {"bo": "1"}))


@pytest.mark.parametrize("n_cases, tile, threads", [(1, 16, 64), (17, 32, 128), (64, 64, 256)])
def test_numbers_of_cases(n_cases: int, tile: int, threads: int) -> None:
    """Each thread has one, two or four squares of B; tiles are full or not."""
    state, given = conditional(problem(spec=WIDE, n_cases=n_cases), BOTH, f"device {n_cases} cases", 2)
    advance = OnChip()
    plan = advance.launch_plan(given)
    assert (plan.tile, plan.threads) == (tile, threads)
    assert worst_error(given, beginning(given, state), advance, n_steps=2) < TOLERANCES["float64"]


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
ORDERED = [
    ("primal", "t", OUTPUTS),
    ("primal", "gaussian by target", BOTH),
    ("primal", "gaussian by target", OUTPUTS),
    ("dual", "t", OUTPUTS),
    ("dual", "gaussian by target", BOTH),
]


def two_warps(form: str, model: str, over: tuple[str, ...]) -> tuple[Any, Trajectory]:
    """A target of two warps, with several tiles of cases in the primal form."""
    n_cases = 99 if form == "primal" else 13
    target = problem(model, spec=problems.network(COMMON, units=(6, 4)), n_cases=n_cases)
    state, given = conditional(target, over, "device orders", 2)
    assert given.regression.is_dual == (form == "dual") and OnChip().launch_plan(given).threads == 64
    return given, beginning(given, state)


def results_in_orders(case: tuple[str, str, tuple[str, ...]], **options: Any) -> list[tuple[Array, ...]]:
    """A trajectory with the threads of a block running forwards, backwards, and in a scattered order."""
    given, start = two_warps(*case)
    return [end_of(OnChip(ShimBuild(order, **options)), given, start, n_steps=2) for order in (0, 1, 5)]


@pytest.mark.parametrize("case", ORDERED)
def test_threads_may_run_in_any_order(case: tuple[str, str, tuple[str, ...]]) -> None:
    assert are_equal(results_in_orders(case))


# The energy of the precisions that move is read from positions, over which a thread writes when its
# solve_all is done.
IN_ORDER = """  const double energy = threadIdx.x == 0 ? energy_of_moved<0>(shared) : 0.0;
  return energy + solve_all<true>(shared, given);"""
OUT_OF_ORDER = """  const double energy = solve_all<true>(shared, given);
  return energy + (threadIdx.x == 0 ? energy_of_moved<0>(shared) : 0.0);"""


def test_the_energy_reads_positions_before_other_threads_write_over_them() -> None:
    results = results_in_orders(ORDERED[-1], replace=(IN_ORDER, OUT_OF_ORDER, 0))
    assert not are_equal(results)


BARRIER = "__syncthreads();"
OWN_BARRIERS = (Path(chip.__file__).parent / "source" / "marginal_dual.cu").read_text().count(BARRIER)


@pytest.mark.long
@pytest.mark.parametrize(
    "case, which",
    [(ORDERED[2], which) for which in range(15)]
    + [(ORDERED[-1], which - OWN_BARRIERS - 1) for which in range(OWN_BARRIERS)],
)
def test_every_barrier_is_needed(case: tuple[str, str, tuple[str, ...]], which: int) -> None:
    """Without a barrier the bits depend on the order of the threads, or differ from array code.

    The dual form only has those of its last source. In the primal form no precisions are integrated out: on
    the CPU the shuffles of their sums wait for all threads.
    """
    given, start = two_warps(*case)
    results = results_in_orders(case, replace=(BARRIER, "", which))
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


LOG_OF_MATRIX = ("- log(x[c * WIDTH + c])", "")
DUAL_MUTANTS = [
    LOG_OF_MATRIX,
    ("sum *= N_EACH;", ""),
    ("slope[k][i] += spread * sum[k][i]", "slope[k][i] = spread * sum[k][i]"),
    ("] = -0.5 * sum;", "] = 0;"),
    ("energy_of_moved<0>", "energy_of_moved<N_ALL>"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "form, before, after",
    [("primal", *bug) for bug in MUTANTS] + [("dual", *bug) for bug in DUAL_MUTANTS],
)
def test_mutants_are_told_from_the_array_code(form: str, before: str, after: str) -> None:
    model = "gaussian" if before == "sum *= N_EACH;" else "gaussian by target"
    given, start = two_warps(form, model, BOTH)
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


def test_what_the_dual_form_does_not_cover_is_said() -> None:
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


def stays_exact_through(
    build: ShimBuild,
    name: str,
    *,
    n_chains: int,
    over: tuple[str, ...] = BOTH,
    joint: Problem = PROBLEMS["binary"],
) -> bool:
    def advance_for(target: SampledPosterior) -> Advance:
        assert target.marginal(BOTH).layer.is_dual == (joint is JOINT["dual"])
        return OnChip(build)

    changed = replace(joint, operations=short_operations(over))
    return stays_exact(changed, name, n_chains=n_chains, advance_for=advance_for)


@pytest.mark.parametrize("joint", [PROBLEMS["binary"], JOINT["dual"]], ids=["primal", "dual"])
def test_joint_distribution_stays_through_the_kernel(joint: Problem) -> None:
    assert stays_exact_through(ShimBuild(), "marginal device", n_chains=1_000, joint=joint)


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
def test_a_dual_kernel_that_gives_another_energy_is_killed() -> None:
    build = ShimBuild(replace=(LOG_OF_MATRIX[0], LOG_OF_MATRIX[0].replace("-", "+"), 0))
    assert not stays_exact_through(build, "wrong dual", n_chains=1_000, joint=JOINT["dual"])


@pytest.mark.long
def test_another_prior_without_common_precisions_is_killed() -> None:
    build = ShimBuild(replace=("shape / 2 * RAYFBNN_LOG(sum)", "shape * RAYFBNN_LOG(sum)", 0))
    assert not stays_exact_through(build, "wrong precisions", n_chains=400, over=PRECISIONS)
