"""How long a whole run will take on this machine.

Needs NumPy and SciPy only (CuPy for a GPU).
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rayfbnn.arrays import to_host
from rayfbnn.kernels import choose
from rayfbnn.mcmc.operations import (
    AUTO,
    Hybrid,
    HybridMarginal,
    Operation,
    Tunable,
    inner_operations,
    unrolled,
)
from rayfbnn.mcmc.schedule import build_iteration, gradient_evaluations
from rayfbnn.mcmc.tuning.measuring import Settings, Tuning, extreme_tunings
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Streams
from rayfbnn.timing.steps import STEPSIZE, Dtype, Row, four_digits, repeated, started, steps_within


@dataclass(frozen=True)
class Cost:
    """What a run takes: sampling alone, without starting Ray, writing, or reading data.

    core_seconds   of all chains, one after another
    seconds        with the workers that share them, each a core (or a device)
    """

    gradient_evaluations: int
    core_seconds: float
    seconds: float


@dataclass(frozen=True)
class RunEstimate:
    """What a configuration will take with so many workers.

    least, most  with the shortest and the longest of the trajectories whose length is automatic, and so not
                 known before the run has found it; the same if there are none
    likely       with the settings that a trial has found; None where there was no trial, or too short a one
    """

    workers: int
    least: Cost
    most: Cost
    likely: Cost | None


@dataclass(frozen=True)
class BenchResult:
    """Rows of one device and precision; the estimate is of the configuration, if there was one."""

    device: str
    dtype: Dtype
    rows: tuple[Row, ...]
    estimate: RunEstimate | None = None

    def to_json(self) -> str:
        """One JSON object; "estimate" is there only for a configuration."""
        found = asdict(self)
        return json.dumps(found if self.estimate else {k: v for k, v in found.items() if k != "estimate"})


def estimate_run(
    posterior: Posterior,
    phases: Sequence[tuple[tuple[Operation, ...], int]],
    *,
    chains: int,
    chains_per_batch: int,
    sigmas: float | None,
    workers: int,
    tuning_phases: Collection[int] = (),
    tried: Mapping[Tunable, Settings] | None = None,
    seconds: float = 0.25,
) -> RunEstimate:
    """What a whole run takes, from the time of each of its operations on a batch of chains.

    phases   operations and number of iterations of each
    workers  that share the batches
    tuning_phases  numbers of those in which automatic settings are looked for
    tried    settings that these may come to
    seconds  spent on each kind of operation
    """
    chains_per_batch = min(chains, chains_per_batch)
    advance, _ = choose.advance_for(posterior)
    state, streams = started(posterior, chains_per_batch, sigmas)
    n_batches = math.ceil(chains / chains_per_batch)
    workers = min(workers, n_batches)
    times: dict[Operation, float] = {}

    def cost(tunings: Sequence[Tuning]) -> Cost:
        """With the settings of each phase."""
        batch_seconds, evaluations = 0.0, 0
        for (given, iterations), tuning in zip(phases, tunings, strict=True):
            operations = tuple(with_numbers(operation, tuning) for operation in unrolled(given))
            evaluations += gradient_evaluations(operations) * iterations * chains
            for operation in operations:
                if operation not in times:
                    times[operation] = operation_seconds(
                        operation, posterior, advance, state, streams, seconds
                    )
                batch_seconds += iterations * times[operation]
        return Cost(
            evaluations,
            core_seconds=four_digits(batch_seconds * chains / chains_per_batch),
            seconds=four_digits(batch_seconds * math.ceil(n_batches / workers)),
        )

    is_tuned = [number in tuning_phases for number in range(len(phases))]
    extremes = [
        extreme_tunings(given, is_measured=each) for (given, _), each in zip(phases, is_tuned, strict=True)
    ]
    least, most = (cost(tunings) for tunings in zip(*extremes, strict=True))
    likely = None if tried is None else cost([Tuning(tried, is_measured=each) for each in is_tuned])
    return RunEstimate(workers, least, most, least if least == most else likely)


def operation_seconds(
    operation: Operation,
    posterior: Posterior,
    advance: Advance,
    state: ChainState,
    streams: Streams,
    seconds: float,
) -> float:
    """Time of one update of all chains of `state`; of a long trajectory, from shorter ones."""
    if inner := inner_operations(operation):
        each = sum(
            operation_seconds(one, posterior, advance, state, streams, seconds) for one in unrolled(inner)
        )
        times = gradient_evaluations((operation,)) / max(1, gradient_evaluations(unrolled(inner)))
        return max(1.0, times) * each

    def run(timed: Operation) -> float:
        iteration = build_iteration((timed,), target=posterior, updates=posterior.updates, advance=advance)
        begun = time.perf_counter()
        to_host(iteration(state, streams)[0].position)  # waits for a device
        return time.perf_counter() - begun

    short = with_steps(operation, 2)
    n_steps = steps_within(run(short) / (gradients(short) + 1), seconds / 5)
    short = with_steps(operation, n_steps)
    measured = statistics.median(repeated(lambda: run(short), seconds=seconds))
    window = getattr(operation, "window", 1)
    # A trajectory of n steps takes n + 1 gradients, its start's energy one, and each state in a window one.
    return measured * (gradients(operation) + 2 * window) / (gradients(short) + 2)


def with_numbers(operation: Operation, tuning: Tuning) -> Operation:
    """The operation with the steps of `tuning` and STEPSIZE in place of what is automatic."""
    if not isinstance(operation, Hybrid | HybridMarginal) or operation not in tuning.settings:
        return operation
    settings = tuning.settings[operation]
    steps = settings.longest if tuning.is_measured else settings.steps
    stepsize = STEPSIZE if operation.stepsize == AUTO else operation.stepsize
    # Scales belong to an automatic stepsize. They change where a step leads, not how long it takes.
    return replace(operation, steps=steps, stepsize=stepsize, scaling=None)


def gradients(operation: Operation) -> int:
    return gradient_evaluations((operation,))


def with_steps(operation: Operation, n_steps: int) -> Operation:
    """The operation with at most so many steps and no windows; as it is, where it has no steps."""
    names = {field.name for field in dataclasses.fields(operation)}
    changes: dict[str, Any] = {name: 1 for name in ("window", "jump") if name in names}
    for name in ("steps", "max_steps"):
        if name in names and gradients(operation) > 0:
            changes[name] = min(n_steps, getattr(operation, name))
    return replace(operation, **changes) if "steps" in changes or "max_steps" in changes else operation
