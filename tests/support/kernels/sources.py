"""CUDA sources of networks by their shape, such as 2-16-2, with how they are launched."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.kernels.cuda.generate import Launched, reduction_constants, regression_constants, source_of
from rayfbnn.kernels.cuda.launch_plan import (
    LaunchPlan,
    few_outputs_plan,
    launch_plan,
    launch_plan_of_regression,
    wide_plan,
)
from rayfbnn.kernels.cuda.reducing import reduction_plan
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.kernels.planning import hazard_starts, plan_of, plan_of_predictions
from rayfbnn.model.integrated import marginal
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.sampled import SampledPosterior
from tests.support.kernels.networks import small
from tests.support.kernels.reductions import Problem
from tests.support.model.marginals import BOTH
from tests.support.problems import network, problem

# The priors of the robot arm, under which output weights and common precisions can be integrated out.
ROBOT_ARM = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}


@dataclass(frozen=True)
class Source:
    """A source text, with the threads and the dynamic shared memory of a block."""

    text: str
    threads: int
    shared_bytes: int


def of_network(shape: str, *, dtype: str, max_shared_bytes: int, launched: Launched = "advance") -> Source:
    """The kernel of whole trajectories on the chip, or of whole hybrid updates."""
    plan = _plan_of(_posterior(shape, dtype))
    launch = launch_plan(plan, dtype=dtype, max_shared_bytes=max_shared_bytes)
    assert isinstance(launch, LaunchPlan), launch
    return _source(plan, launch, dtype, launched=launched)


def of_products(shape: str, *, dtype: str, max_shared_bytes: int) -> Source:
    """The kernels between products over all chains."""
    return _source(_plan_of(_posterior(shape, dtype)), wide_plan, dtype)


def of_few_outputs(shape: str, *, dtype: str, max_shared_bytes: int) -> Source:
    """The kernels from the last hidden layer to the outputs and back."""
    plan = _plan_of(_posterior(shape, dtype))
    launch = few_outputs_plan(plan, dtype)
    assert launch is not None and launch.shared_bytes <= max_shared_bytes
    return _source(plan, launch, dtype)


def of_sums(shape: str, *, dtype: str, max_shared_bytes: int, is_fused: bool = True) -> Source:
    """The kernels of sums over draws, with five guesses at quantiles."""
    return _sums(_posterior(shape, dtype), is_fused=is_fused, max_shared_bytes=max_shared_bytes)


def of_sums_of(model: str, *, dtype: str, max_shared_bytes: int) -> Source:
    """The same for a network 3-5-2 of another data model, or 4-5-1 for times."""
    posterior = Problem(model, dtype=dtype).posterior
    return _sums(posterior, is_fused=True, max_shared_bytes=max_shared_bytes)


def _sums(posterior: Posterior, *, is_fused: bool, max_shared_bytes: int) -> Source:
    plan, dtype = plan_of_predictions(posterior), posterior.dtype
    assert isinstance(plan, NetworkPlan)
    launch = reduction_plan(plan, dtype, is_fused=is_fused)
    assert launch.shared_bytes <= max_shared_bytes
    constants = reduction_constants(n_guesses=5, starts=hazard_starts(posterior), is_fused=is_fused)
    return _source(plan, launch, dtype, constants)


def of_regression(
    shape: str, *, n_cases: int, dtype: str, max_shared_bytes: int, launched: Launched = "advance"
) -> Source:
    """The kernels of `of_network` with output layer and common precisions integrated out."""
    inputs, units, outputs = map(int, shape.split("-"))
    spec = network(ROBOT_ARM, inputs=inputs, outputs=outputs, units=(units,), activations=("tanh",))
    plan = plan_of(marginal(problem(spec=spec, n_cases=n_cases, dtype=dtype), BOTH))
    assert isinstance(plan, NetworkPlan) and plan.regression is not None
    launch = launch_plan_of_regression(
        plan, dtype=dtype, n_cases=n_cases, is_uniform=True, max_shared_bytes=max_shared_bytes
    )
    assert isinstance(launch, LaunchPlan), launch
    constants = regression_constants(plan.regression, n_cases=n_cases, is_uniform=True)
    return _source(plan, launch, dtype, constants, launched=launched)


def _posterior(shape: str, dtype: str) -> SampledPosterior:
    inputs, *units, outputs = map(int, shape.split("-"))
    return problem(spec=small(tuple(units), inputs=inputs, outputs=outputs), dtype=dtype)


def _plan_of(posterior: SampledPosterior) -> NetworkPlan:
    plan = plan_of(posterior)
    assert isinstance(plan, NetworkPlan)
    return plan


def _source(
    plan: NetworkPlan,
    launch: LaunchPlan,
    dtype: str,
    constants: tuple[str, ...] = (),
    *,
    launched: Launched = "advance",
) -> Source:
    text = source_of(
        plan, launch, dtype=dtype, is_weighted=False, more_constants=constants, launched=launched
    )
    return Source(text, launch.threads, launch.shared_bytes)
