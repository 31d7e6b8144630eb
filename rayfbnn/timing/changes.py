"""Changes of a configuration that make its trajectories faster, and their effect on this machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayfbnn.kernels import choose
from rayfbnn.mcmc.hybrid import Hybrid
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
_FEWER = 4  # a quarter of the iterations
_FEW_CHAINS = 4  # fewer cannot be judged


@dataclass(frozen=True)
class Faster:
    """Options of `sample` that make a run faster.

    options  as they are typed in a shell
    factor   factor on the time of the updates of an operation
    note     what they do, if the options do not say it themselves
    """

    options: str
    factor: float
    note: str = ""


def shorter(spec: RunSpec) -> tuple[str, RunSpec]:
    """Return the option that makes a run's last phase a quarter as long, and the run with it.

    If the schedule is the default one, its tuning becomes shorter too.
    """
    n = max(1, spec.phase[-1].iterations // _FEWER)
    if "phase" in spec.written():
        return f"--set phase[{len(spec.phase) - 1}].iterations={n}", spec.with_iterations(n)
    keys = {**spec.written(), "iterations": n}
    return f"--set iterations={n}", RunSpec.from_dict(keys).resolved(spec.encoding)


def changes(
    spec: RunSpec,
    dataset: Dataset,
    times: UpdateTimes,
    operation: Operation,
    *,
    written: Operation,
    workers: int,
) -> list[Faster]:
    """Return options that change the time of an operation's updates.

    times      the run's updates, with the measured chains
    operation  the operation with the longest updates; without trajectories nothing is returned
    written    the operation as it is written, perhaps with automatic settings
    workers    number of processes that could share the batches

    Some changes shorten trajectories or leave out chains, so the factors do not tell how many draws are
    needed. Fewer units are not proposed, because chains then agree less and predict worse
    (docs/decisions/0017).
    """
    kinds = trajectory_kinds((operation,))
    if not kinds:
        return []
    kind, posterior, chains = kinds[0], times.posterior, len(times.state.position)
    now = _per_step(posterior, kind, chains)
    found = []
    if spec.dtype == "float64":
        other = RunSpec.from_dict({**spec.to_dict(), "dtype": "float32"}).resolved(spec.encoding)
        in_float32 = build_posterior(other, dataset, device="cpu")
        found.append(Faster("--set dtype=float32", _per_step(in_float32, kind, chains) / now))
    place = _place_of(spec, written)
    if place and isinstance(operation, Hybrid) and _can_have_partial_gradients(operation, posterior):
        steps = max(1, int(operation.steps) // _PARTITIONS)
        partial = _per_step(posterior, replace(kind, partitions=_PARTITIONS), chains) / now
        options = f"--set {place}.steps={steps} --set {place}.partitions={_PARTITIONS}"
        found.append(Faster(options, partial * steps / int(operation.steps), "partial gradients"))
    batch = min(spec.chains, spec.chains_per_batch)
    turns = math.ceil(math.ceil(spec.chains / batch) / workers)

    def of_batches(n_chains: int, size: int) -> float:
        """Return the factor of a run with n_chains chains in batches of this size, at most those measured."""
        per_step = _per_step(posterior, kind, min(chains, size)) / now
        return per_step * size * math.ceil(math.ceil(n_chains / size) / workers) / (turns * batch)

    smaller = math.ceil(spec.chains / workers)
    if smaller < batch:
        note = f"shares the chains among {workers} workers"
        found.append(Faster(f"--set chains_per_batch={smaller}", of_batches(spec.chains, smaller), note))
    if spec.chains > _FEW_CHAINS:
        is_shared = batch == smaller  # then fewer chains are shared among the workers, too
        size = min(batch, math.ceil(_FEW_CHAINS / workers) if is_shared else _FEW_CHAINS)
        found.append(Faster(f"--set chains={_FEW_CHAINS}", of_batches(_FEW_CHAINS, size)))
    return found


def _place_of(spec: RunSpec, operation: Operation) -> str:
    """Return the key of an operation in the last of the phases as written; "" for a default schedule."""
    if "phase" not in spec.written() or operation not in spec.phase[-1].operations:
        return ""
    return f"phase[{len(spec.phase) - 1}].operations[{spec.phase[-1].operations.index(operation)}]"


def _can_have_partial_gradients(operation: Hybrid, posterior: SampledPosterior) -> bool:
    is_plain = operation.partitions == 1 and operation.integrator == "leapfrog"
    return is_plain and operation.steps != "auto" and posterior.n_cases >= _PARTITIONS


def _per_step(posterior: SampledPosterior, kind: TrajectoryKind, chains: int) -> float:
    advance, _ = choose.advance_for(posterior)
    return seconds_per_step(posterior, advance, chains=chains, seconds=_STEP_SECONDS, trajectory=kind)
