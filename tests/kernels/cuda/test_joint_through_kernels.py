"""Exact draws of parameters and data stay exact through each kernel of a posterior; by the shim.

The kernels of marginal densities have such tests beside their others, in test_marginal.py
and test_products_marginal.py.
"""

from __future__ import annotations

import pytest

from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance
from tests.support.joint import PROBLEMS, stays_exact
from tests.support.kernels.backends import advance_of
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = [pytest.mark.long, needs_gxx]
# Whole updates in one launch, and trajectories in pieces, between which array code makes the choices.
PASSES = [("warp", True), ("warp", False), ("block", True), ("block", False), ("wide", False)]


def stays_exact_through(
    problem: str, kernel: str, build: ShimBuild, name: str, *, n_chains: int, is_whole: bool = True
) -> bool:
    def advance_for(target: SampledPosterior) -> Advance:
        return advance_of(target, kernel, build, is_whole=is_whole)

    name = f"{name} {problem} {kernel} {is_whole}"
    return stays_exact(PROBLEMS[problem], name, n_chains=n_chains, advance_for=advance_for)


@pytest.mark.parametrize("kernel, is_whole", PASSES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_joint_distribution_stays_through_the_kernel(problem: str, kernel: str, is_whole: bool) -> None:
    assert stays_exact_through(problem, kernel, ShimBuild(), "device", n_chains=1_000, is_whole=is_whole)


@pytest.mark.parametrize("kernel", ["warp", "block", "wide"])
def test_a_kernel_that_gives_another_energy_is_killed(kernel: str) -> None:
    build = ShimBuild(replace=("own - L::log(sum)", "0 * (own - L::log(sum))", 0))
    assert not stays_exact_through("class", kernel, build, "wrong device", n_chains=600)


@pytest.mark.parametrize(
    "before, after",
    [
        ("minus_energy + gumbel > best_score", "gumbel > best_score"),
        ("energy.prior += kinetic / 2;", "energy.prior += kinetic / 4;"),
    ],
)
def test_wrong_choices_in_one_launch_are_killed(before: str, after: str) -> None:
    build = ShimBuild(replace=(before, after, 0))
    assert not stays_exact_through("real", "warp", build, "wrong choice", n_chains=1_000)
