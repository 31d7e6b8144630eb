"""Changes of a configuration that make its trajectories faster, and their effect on this machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rayfbnn.kernels import choose
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.operation import Operation
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.run.sampler import build_posterior
from rayfbnn.spec import RunSpec
from rayfbnn.timing.run_time import UpdateTimes
from rayfbnn.timing.steps import seconds_per_step
from rayfbnn.timing.trajectory_kinds import TrajectoryKind, trajectory_kinds

if TYPE_CHECKING:
    from rayfbnn.data import Dataset

_STEP_SECONDS = 0.05  # for measuring the steps of each change
_PARTITIONS = 4


def changes(
    spec: RunSpec, dataset: Dataset, times: UpdateTimes, operation: Operation, *, workers: int
) -> dict[str, float]:
    """Return descriptions of changes, each with its factor on the time of an operation's updates.

    times      the run's updates, with the measured chains
    operation  the operation with the longest updates; without trajectories no change is returned
    workers    number of processes that could share the batches

    Some changes shorten trajectories, so the factors do not tell how many draws are needed. Fewer units are
    not proposed, because chains then agree less and predict worse (docs/decisions/0017).
    """
    kinds = trajectory_kinds((operation,))
    if not kinds:
        return {}
    kind, posterior, chains = kinds[0], times.posterior, len(times.state.position)
    now = _per_step(posterior, kind, chains)
    factors = {}
    if spec.dtype == "float64":
        other = RunSpec.from_dict({**spec.to_dict(), "dtype": "float32"}).resolved(spec.encoding)
        in_float32 = build_posterior(other, dataset, device="cpu")
        factors["dtype = float32"] = _per_step(in_float32, kind, chains) / now
    if isinstance(operation, HybridMarginal) and "outputs" in operation.over:
        factors["hybrid instead of hybrid-marginal, with as many steps"] = (
            _per_step(posterior, TrajectoryKind(), chains) / now
        )
    if isinstance(operation, Hybrid) and _can_have_partial_gradients(operation, posterior):
        steps = max(1, int(operation.steps) // _PARTITIONS)
        partial = _per_step(posterior, replace(kind, partitions=_PARTITIONS), chains) / now
        what = f"trajectories of {steps} steps with {_PARTITIONS} partial gradients each"
        factors[what] = partial * steps / int(operation.steps)
    batch = min(spec.chains, spec.chains_per_batch)
    smaller = math.ceil(spec.chains / workers)
    if smaller < batch:
        per_step = _per_step(posterior, kind, min(chains, smaller)) / now
        turns = math.ceil(math.ceil(spec.chains / batch) / workers)
        what = f"chains_per_batch = {smaller}, to share the chains among {workers} workers"
        factors[what] = per_step * smaller / (turns * batch)
    return factors


def _can_have_partial_gradients(operation: Hybrid, posterior: SampledPosterior) -> bool:
    is_plain = operation.partitions == 1 and operation.integrator == "leapfrog"
    return is_plain and operation.steps != "auto" and posterior.n_cases >= _PARTITIONS


def _per_step(posterior: SampledPosterior, kind: TrajectoryKind, chains: int) -> float:
    advance, _ = choose.advance_for(posterior)
    return seconds_per_step(posterior, advance, chains=chains, seconds=_STEP_SECONDS, trajectory=kind)
