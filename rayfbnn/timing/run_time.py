"""Estimates how long a whole run takes on this machine.

It needs only NumPy and SciPy (and CuPy for a GPU).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from rayfbnn.arrays import to_host
from rayfbnn.kernels import choose
from rayfbnn.mcmc.operation import AUTO, Operation, Tuning, gradient_evaluations, unrolled
from rayfbnn.mcmc.schedule import build_iteration
from rayfbnn.mcmc.tuning.settings import extreme_tunings
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Streams
from rayfbnn.timing.steps import STEPSIZE, Cost, RunEstimate, four_digits, repeated, started, steps_within


def estimate_run(
    posterior: SampledPosterior,
    phases: Sequence[tuple[tuple[Operation, ...], int]],
    *,
    chains: int,
    chains_per_batch: int,
    sigmas: float | None,
    workers: int,
    tuning_phases: Collection[int] = (),
    seconds: float = 0.25,
) -> RunEstimate:
    """Estimate the time of a whole run from the time of each of its operations for a batch of chains.

    phases         the operations and the number of iterations of each phase
    sigmas         the value of sigmas at the start; None for a draw from the prior
    workers        number of workers that share the batches
    tuning_phases  numbers of the phases that tune automatic settings
    seconds        time to spend on measuring each operation
    """
    chains_per_batch = min(chains, chains_per_batch)
    times = UpdateTimes(posterior, chains=chains_per_batch, sigmas=sigmas, seconds=seconds)
    n_batches = math.ceil(chains / chains_per_batch)
    workers = min(workers, n_batches)

    def cost(tunings: Sequence[Tuning]) -> Cost:
        """Return the cost of the run with these automatic settings in each phase."""
        batch_seconds, evaluations = 0.0, 0
        for (written, iterations), tuning in zip(phases, tunings, strict=True):
            operations = tuple(with_numbers(operation, tuning) for operation in unrolled(written))
            evaluations += gradient_evaluations(operations) * iterations * chains
            batch_seconds += iterations * times.iteration(operations)
        return Cost(
            evaluations,
            core_seconds=four_digits(batch_seconds * chains / chains_per_batch),
            seconds=four_digits(batch_seconds * math.ceil(n_batches / workers)),
        )

    is_tuned = [number in tuning_phases for number in range(len(phases))]
    extremes = [
        extreme_tunings(operations, is_measured=is_measured)
        for (operations, _), is_measured in zip(phases, is_tuned, strict=True)
    ]
    least, most = (cost(tunings) for tunings in zip(*extremes, strict=True))
    return RunEstimate(workers, least, most)


class UpdateTimes:
    """The times of single updates of a batch of chains. Each time is measured once."""

    def __init__(
        self, posterior: SampledPosterior, *, chains: int, sigmas: float | None, seconds: float
    ) -> None:
        """Prepare to measure updates of `chains` chains with these initial sigmas, for `seconds` each."""
        self.posterior, self.seconds = posterior, seconds
        self.advance, _ = choose.advance_for(posterior)
        self.state, self.streams = started(posterior, chains, sigmas)
        self._times: dict[Operation, float] = {}

    def iteration(self, operations: Sequence[Operation]) -> float:
        """Return the time of one update by each of the operations. They must have no automatic settings."""
        return sum(self.update(operation) for operation in operations)

    def update(self, operation: Operation) -> float:
        """Return the time of one update."""
        if operation not in self._times:
            self._times[operation] = _operation_seconds(
                operation, self.posterior, self.advance, self.state, self.streams, self.seconds
            )
        return self._times[operation]


def _operation_seconds(
    operation: Operation,
    posterior: SampledPosterior,
    advance: Advance,
    state: ChainState,
    streams: Streams,
    seconds: float,
) -> float:
    """Return the time of one update of all chains of `state`, extrapolated for long trajectories."""
    if inner := operation.inner:
        once = sum(
            _operation_seconds(one, posterior, advance, state, streams, seconds) for one in unrolled(inner)
        )
        times = gradient_evaluations((operation,)) / max(1, gradient_evaluations(unrolled(inner)))
        return max(1.0, times) * once

    def run(timed: Operation) -> float:
        iteration = build_iteration((timed,), target=posterior, updates=posterior.updates, advance=advance)
        started_at = time.perf_counter()
        to_host(iteration(state, streams)[0].position)  # waits for a device
        return time.perf_counter() - started_at

    short = with_steps(operation, 2)
    n_steps = steps_within(run(short) / (gradients(short) + 1), seconds / 5)
    short = with_steps(operation, n_steps)
    measured = statistics.median(repeated(lambda: run(short), seconds=seconds))
    window = getattr(operation, "window", 1)
    # A trajectory of n steps evaluates n + 1 gradients, the energy of its start, and the energy of each state
    # in a window.
    return measured * (gradients(operation) + 2 * window) / (gradients(short) + 2)


def with_numbers(operation: Operation, tuning: Tuning) -> Operation:
    """Return the operation with the steps of `tuning`, and with STEPSIZE for an automatic stepsize."""
    if operation.tuned is None or operation.tuned not in tuning.settings:
        return operation
    settings = tuning.settings[operation.tuned]
    steps = settings.longest if tuning.is_measured else settings.steps
    stepsize = STEPSIZE if operation.tuned.stepsize == AUTO else operation.tuned.stepsize
    # Scales belong to an automatic stepsize. They change where a step leads, not how long it takes.
    changes: dict[str, Any] = {"steps": steps, "stepsize": stepsize, "scaling": None}
    return replace(operation, **changes)


def gradients(operation: Operation) -> int:
    """Return the number of gradient evaluations in one update of a chain."""
    return gradient_evaluations((operation,))


def with_steps(operation: Operation, n_steps: int) -> Operation:
    """Return the operation with at most n_steps and without windows, or unchanged if it has no steps."""
    names = {field.name for field in dataclasses.fields(operation)}
    changes: dict[str, Any] = {name: 1 for name in ("window", "jump") if name in names}
    for name in ("steps", "max_steps"):
        if name in names and gradients(operation) > 0:
            changes[name] = min(n_steps, getattr(operation, name))
    return replace(operation, **changes) if "steps" in changes or "max_steps" in changes else operation
