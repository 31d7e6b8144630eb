"""How fast this machine is: microseconds per leapfrog step of a chain, and how long a whole run will take.

Needs NumPy and SciPy only (CuPy for a GPU).
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from rayfbnn.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.arrays import array_namespace, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.schedule import build_iteration, gradient_evaluations
from rayfbnn.model.posterior import Posterior
from rayfbnn.operations import Operation, inner_operations, unrolled
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Purpose, Streams

Dtype = Literal["float32", "float64"]
# Neal's first network, the robot arm, a wide layer, two layers, and one whose time is in matrix products
STANDARD_SHAPES = ("1-8-1/100", "2-16-2/200", "10-100-1/1000", "13-50-50-1/506", "784-100-10/10000")
STEPSIZE = 0.1  # of the heuristic ones: stable on all shapes, so that no time goes into infinities
ASSUMED_STEPS = 100
# The plain code holds every chain's hidden values, a gigabyte of float32 at this many.
_MAX_VALUES = 2**28


@dataclass(frozen=True)
class Row:
    """The time of one network with one kernel.

    shape        units of each layer and cases, such as "2-16-2/200"
    chains       advanced by one call
    us_per_step  microseconds per leapfrog step per chain
    gflops       10**9 additions and multiplications a second, those of the products with weights alone
    """

    shape: str
    chains: int
    kernel: str
    us_per_step: float
    gflops: float


@dataclass(frozen=True)
class RunEstimate:
    """What a configuration will take: sampling alone, without starting Ray, writing, or reading data.

    core_seconds   of all chains, one after another
    seconds        with so many workers, each a core (or a device)
    assumed_steps  of the trajectories whose length is automatic, and so not known; None if there are none
    """

    gradient_evaluations: int
    core_seconds: float
    workers: int
    seconds: float
    assumed_steps: int | None


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


def bench_shapes(
    shapes: Sequence[str],
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    chains: int = 16,
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> BenchResult:
    """Time networks of the given shapes on made-up cases, with every kernel that there is for each.

    chains   advanced together; fewer where the plain code would need more than a few gigabytes
    seconds  spent on each row, or three repeats where these take longer
    report   called with each row as soon as it is there
    """
    rows = []
    for shape in shapes:
        posterior = made_up_posterior(shape, dtype=dtype, device=device)
        for row in kernel_rows(posterior, chains=chains, seconds=seconds):
            report(row)
            rows.append(row)
    return BenchResult(device, dtype, tuple(rows))


def made_up_posterior(shape: str, *, dtype: Dtype = "float32", device: str = "cpu") -> Posterior:
    """A network of tanh units with real targets: standard normal inputs and targets from streams."""
    layers, n_cases = parsed_shape(shape)
    n_inputs, *hidden, n_outputs = layers
    names = ["ih0", *(f"h{layer - 1}h{layer}" for layer in range(1, len(hidden)))]
    names += [f"bh{layer}" for layer in range(len(hidden))] + [f"ho{len(hidden) - 1}", "bo"]
    network = NetworkSpec(
        inputs=n_inputs,
        outputs=n_outputs,
        hidden=tuple(LayerSpec(units, "tanh") for units in hidden),
        priors={name: PriorSpec(1.0) for name in names},
    )
    streams = Streams(seed=1, chains=np.zeros(1, dtype=np.uint64))
    inputs = streams.normal(Purpose.PROPOSAL, (n_cases, n_inputs))[0]
    targets = streams.normal(Purpose.TARGET_VALUE, (n_cases, n_outputs))[0]
    model = ModelSpec("real", PriorSpec(0.3))
    return Posterior.of(network, model, inputs, targets, dtype=dtype, xp=device_namespace(device))


def parsed_shape(shape: str) -> tuple[list[int], int]:
    """Units of each layer, inputs and outputs included, and cases, of text such as "2-16-2/200"."""
    try:
        units, _, cases = shape.partition("/")
        layers, n_cases = [int(part) for part in units.split("-")], int(cases)
    except ValueError:
        layers, n_cases = [], 0
    if len(layers) < 3 or min(layers) < 1 or n_cases < 1:
        raise ConfigError(
            "shape: must be inputs-hidden-...-outputs/cases, each at least 1, such as 2-16-2/200,"
            f" got {shape}"
        )
    return layers, n_cases


def shape_of(posterior: Posterior) -> str:
    """The shape of a posterior's network, in the notation of STANDARD_SHAPES."""
    network = posterior.network
    layers = [network.inputs, *(layer.units for layer in network.hidden), network.outputs]
    return f"{'-'.join(map(str, layers))}/{posterior.n_cases}"


def kernels_of(posterior: Posterior) -> list[tuple[str, Advance]]:
    """Every kernel that there is for a network, the plain code first."""
    plain = "plain CuPy" if array_namespace(posterior.inputs) is not np else "plain NumPy"
    chosen, name = choose.advance_for(posterior)
    return [(plain, leapfrog.advance), *([] if chosen is leapfrog.advance else [(name, chosen)])]


def kernel_rows(posterior: Posterior, *, chains: int, seconds: float) -> Iterator[Row]:
    """A row for each kernel, as it is measured."""
    n_units = max([1, *(layer.units for layer in posterior.network.hidden)])
    chains = max(1, min(chains, _MAX_VALUES // (n_units * posterior.n_cases)))
    for name, advance in kernels_of(posterior):
        per_step = seconds_per_step(posterior, advance, chains=chains, seconds=seconds)
        yield Row(
            shape_of(posterior),
            chains,
            name,
            us_per_step=_digits(1e6 * per_step),
            gflops=_digits(1e-9 * floating_point_operations(posterior) / per_step),
        )


def floating_point_operations(posterior: Posterior) -> int:
    """Additions and multiplications of one gradient in the products with weights and biases.

    Forwards two for each weight and case, backwards two more for its derivative, and two to go through it
    where it comes from a hidden layer.
    """
    total = 0
    for group in posterior.network.groups():
        passes = 3 if group.name.startswith("h") else 2
        total += 2 * passes * group.size * posterior.n_cases
    return total


def seconds_per_step(posterior: Posterior, advance: Advance, *, chains: int, seconds: float) -> float:
    """Median time of a leapfrog step of one chain, `chains` of them advancing together.

    A trajectory of n steps takes n + 1 gradients, so its time is divided by that: trajectories are long
    where steps are short.
    """
    state, _ = started(posterior, chains)
    stepsizes = (STEPSIZE * posterior.stepsizes(state.precisions)).astype(posterior.dtype)

    def run(n_steps: int) -> float:
        begun = time.perf_counter()
        *_, potential = advance(
            posterior,
            state.position,
            state.momentum,
            state.precisions,
            stepsizes,
            n_steps=n_steps,
        )
        to_host(potential)  # waits for a device
        return (time.perf_counter() - begun) / (n_steps + 1)

    run(1)  # the first call allocates
    n_steps = _steps_within(run(2), seconds / 5)
    return statistics.median(repeated(lambda: run(n_steps), seconds=seconds)) / chains


def repeated(run: Callable[[], float], *, seconds: float) -> list[float]:
    """What `run` returns, called at least three times and until `seconds` have passed."""
    end = time.perf_counter() + seconds
    found: list[float] = []
    while len(found) < 3 or time.perf_counter() < end:
        found.append(run())
    return found


def started(posterior: Posterior, chains: int, sigmas: float | None = 0.5) -> tuple[ChainState, Streams]:
    """Chains at the start of a run, with momentum, and their streams."""
    xp = array_namespace(posterior.inputs)
    streams = Streams(seed=2, chains=xp.arange(chains, dtype=xp.uint64))
    state = posterior.initial_state(streams, sigmas=sigmas)
    momentum = streams.normal(Purpose.MOMENTUM, (posterior.n_parameters,)).astype(posterior.dtype)
    return replace(state, momentum=momentum), streams


def bench_run(
    posterior: Posterior,
    phases: Sequence[tuple[tuple[Operation, ...], int]],
    *,
    device: str,
    chains: int,
    chains_per_batch: int,
    sigmas: float | None,
    workers: int,
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> BenchResult:
    """Time a run's own network, a batch of chains at once, and estimate what the whole run takes.

    phases   operations and number of iterations of each
    workers  that share the batches
    seconds  spent on each row, and a quarter of it on each kind of operation
    """
    chains_per_batch = min(chains, chains_per_batch)
    rows = []
    for row in kernel_rows(posterior, chains=chains_per_batch, seconds=seconds):
        report(row)
        rows.append(row)
    _, advance = kernels_of(posterior)[-1]  # the one that the run would take
    state, streams = started(posterior, chains_per_batch, sigmas)
    batch_seconds, evaluations = 0.0, 0
    times: dict[Operation, float] = {}
    is_automatic = False
    for given, iterations in phases:
        operations = tuple(with_numbers(operation) for operation in unrolled(given))
        is_automatic |= any(getattr(operation, "steps", None) == "auto" for operation in unrolled(given))
        evaluations += gradient_evaluations(operations) * iterations * chains
        for operation in operations:
            if operation not in times:
                times[operation] = operation_seconds(
                    operation, posterior, advance, state, streams, seconds / 4
                )
            batch_seconds += iterations * times[operation]
    n_batches = math.ceil(chains / chains_per_batch)
    workers = min(workers, n_batches)
    estimate = RunEstimate(
        evaluations,
        core_seconds=_digits(batch_seconds * chains / chains_per_batch),
        workers=workers,
        seconds=_digits(batch_seconds * math.ceil(n_batches / workers)),
        assumed_steps=ASSUMED_STEPS if is_automatic else None,
    )
    return BenchResult(device, posterior.dtype, tuple(rows), estimate)


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
    n_steps = _steps_within(run(short) / (gradients(short) + 1), seconds / 5)
    short = with_steps(operation, n_steps)
    measured = statistics.median(repeated(lambda: run(short), seconds=seconds))
    window = getattr(operation, "window", 1)
    # A trajectory of n steps takes n + 1 gradients, its start's energy one, and each state in a window one.
    return measured * (gradients(operation) + 2 * window) / (gradients(short) + 2)


def with_numbers(operation: Operation) -> Operation:
    """The operation with ASSUMED_STEPS and STEPSIZE in place of what is automatic."""
    assumed = {"steps": ASSUMED_STEPS, "stepsize": STEPSIZE}
    changes: dict[str, Any] = {
        name: value for name, value in assumed.items() if getattr(operation, name, None) == "auto"
    }
    return replace(operation, **changes) if changes else operation


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


def _steps_within(seconds_per_step: float, seconds: float) -> int:
    return max(2, min(100_000, int(seconds / max(seconds_per_step, 1e-9))))


def _digits(value: float) -> float:
    """Four digits: more would say nothing."""
    return float(f"{value:.4g}")
