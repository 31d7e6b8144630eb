"""How fast this machine is: microseconds per leapfrog step of a chain, and how long a whole run will take.

Needs NumPy and SciPy only (CuPy for a GPU).
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from rayfbnn.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import fourth_order, leapfrog
from rayfbnn.mcmc.schedule import build_iteration, gradient_evaluations
from rayfbnn.mcmc.tuning import Tuning, extreme_tunings
from rayfbnn.model.output_layer import feeds_outputs
from rayfbnn.model.posterior import Posterior
from rayfbnn.operations import (
    AUTO,
    Dynamic,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Integrator,
    Operation,
    inner_operations,
    unrolled,
)
from rayfbnn.state import Advance, ChainState, Target
from rayfbnn.streams import Purpose, Streams

Dtype = Literal["float32", "float64"]
# Neal's first network, the robot arm, a wide layer, two layers, and one whose time is in matrix products
STANDARD_SHAPES = ("1-8-1/100", "2-16-2/200", "10-100-1/1000", "13-50-50-1/506", "784-100-10/10000")
STEPSIZE = 0.1  # of the heuristic ones: stable on all shapes, so that no time goes into infinities
# The plain code holds every chain's hidden values, a gigabyte of float32 at this many.
_MAX_VALUES = 2**28


@dataclass(frozen=True)
class Row:
    """The time of one network with one kernel.

    shape        units of each layer and cases, such as "2-16-2/200"; of a configuration's network also which
                 trajectories, such as "2-16-2/200 hybrid-marginal over outputs"
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
    """

    workers: int
    least: Cost
    most: Cost


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
    """Time networks of the given shapes on made-up cases, by array code and by the kernel chosen for each.

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


@dataclass(frozen=True)
class Trajectory:
    """The steps of trajectories of one kind, by what tells these apart.

    name  for people
    over  what is integrated out, of hybrid-marginal
    """

    name: str = ""
    over: tuple[Literal["outputs", "precisions"], ...] = ()
    partitions: int = 1
    integrator: Integrator = "leapfrog"

    @property
    def gradients_per_step(self) -> int:
        """Those over 1/partitions of the cases."""
        return self.partitions if self.integrator == "leapfrog" else fourth_order.GRADIENTS_PER_STEP


HYBRID = Trajectory()


def trajectories(operations: Sequence[Operation]) -> tuple[Trajectory, ...]:
    """The different ones of operations, those inside others too, in order."""
    found: dict[Trajectory, None] = {}
    for operation in unrolled(tuple(operations)):
        if isinstance(operation, HybridMarginal):
            n = operation.partitions
            name = f"{operation.op} over {' and '.join(operation.over)}{_partial(n)}"
            found[Trajectory(name, operation.over, n)] = None
        elif isinstance(operation, Hybrid | HybridMax | Dynamic):
            n, integrator = operation.partitions, operation.integrator
            kind = _partial(n) if integrator == "leapfrog" else f", {integrator}"
            found[Trajectory(operation.op + kind, partitions=n, integrator=integrator)] = None
        found |= dict.fromkeys(trajectories(inner_operations(operation)))
    return tuple(found)


def _partial(partitions: int) -> str:
    return f", {partitions} partitions" if partitions > 1 else ""


def kernels_of(posterior: Posterior, trajectory: Trajectory = HYBRID) -> list[tuple[str, Advance]]:
    """The plain code, and what runs a network's trajectories if that is another."""
    plain = choose.PLAIN_ON_DEVICE if array_namespace(posterior.inputs) is not np else choose.PLAIN
    if trajectory.integrator != "leapfrog":
        return [(plain, fourth_order.advance)]
    chosen, name = choose.advance_for(posterior)
    if trajectory.over and chosen is not leapfrog.advance:
        target, *_ = at_start(posterior, trajectory, chains=1)
        name = choose.marginal_name(target, chosen, name)
        if name.startswith(plain):  # kernels for the posterior, none for what is left of it
            return [(name, leapfrog.advance)]
    return [(plain, leapfrog.advance), *([] if chosen is leapfrog.advance else [(name, chosen)])]


def kernel_rows(
    posterior: Posterior, *, chains: int, seconds: float, trajectory: Trajectory = HYBRID
) -> Iterator[Row]:
    """A row for the plain code and one for what runs the trajectories, as it is measured."""
    n_units = max([1, *(layer.units for layer in posterior.network.hidden)])
    chains = max(1, min(chains, _MAX_VALUES // (n_units * posterior.n_cases)))
    operations = floating_point_operations(posterior, trajectory)
    for name, advance in kernels_of(posterior, trajectory):
        per_step = seconds_per_step(posterior, advance, chains=chains, seconds=seconds, trajectory=trajectory)
        yield Row(
            f"{shape_of(posterior)} {trajectory.name}".strip(),
            chains,
            name,
            us_per_step=_digits(1e6 * per_step),
            gflops=_digits(1e-9 * operations / per_step),
        )


def floating_point_operations(posterior: Posterior, trajectory: Trajectory = HYBRID) -> int:
    """Additions and multiplications of one step in the products with weights and biases.

    Forwards two for each weight and case, backwards two more for its derivative, and two to go through it
    where it comes from a hidden layer. Of weights that are integrated out none.
    """
    total = 0
    for group in posterior.network.groups():
        if "outputs" in trajectory.over and feeds_outputs(group.name):
            continue
        passes = 3 if group.name.startswith("h") else 2
        total += 2 * passes * group.size * posterior.n_cases
    return total * trajectory.gradients_per_step // trajectory.partitions


def at_start(
    posterior: Posterior, trajectory: Trajectory, *, chains: int
) -> tuple[Target, ChainState, Array | None]:
    """The target of trajectories, where they may start, and the order of partial gradients if any."""
    state, streams = started(posterior, chains)
    target: Target = posterior
    if trajectory.over:
        given = posterior.marginal(trajectory.over).given(state, streams)
        target, state = given, given.start(state, streams)
    n = trajectory.partitions
    return target, state, streams.permutation(n, Purpose.PARTITION_ORDER) if n > 1 else None


def seconds_per_step(
    posterior: Posterior,
    advance: Advance,
    *,
    chains: int,
    seconds: float,
    trajectory: Trajectory = HYBRID,
) -> float:
    """Median time of a step of one chain, `chains` of them advancing together.

    A trajectory of n steps of g gradients takes n g + 1, so its time is divided by n + 1/g: trajectories are
    long where steps are short.
    """
    target, state, order = at_start(posterior, trajectory, chains=chains)
    stepsizes = (STEPSIZE * target.stepsizes(state.precisions)).astype(posterior.dtype)

    def run(n_steps: int) -> float:
        started_at = time.perf_counter()
        *_, potential = advance(
            target,
            state.position,
            state.momentum,
            state.precisions,
            stepsizes,
            n_steps=n_steps,
            order=order,
        )
        to_host(potential)  # waits for a device
        return (time.perf_counter() - started_at) / (n_steps + 1 / trajectory.gradients_per_step)

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
    tuning_phases: Collection[int] = (),
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> BenchResult:
    """Time the trajectories of a run, a batch of chains at once, and estimate what the whole run takes.

    phases   operations and number of iterations of each
    workers  that share the batches
    tuning_phases  numbers of those in which automatic settings are looked for
    seconds  spent on each row, and a quarter of it on each kind of operation
    """
    chains_per_batch = min(chains, chains_per_batch)
    rows = []
    for trajectory in trajectories([each for operations, _ in phases for each in operations]):
        for row in kernel_rows(posterior, chains=chains_per_batch, seconds=seconds, trajectory=trajectory):
            report(row)
            rows.append(row)
    advance, _ = choose.advance_for(posterior)
    state, streams = started(posterior, chains_per_batch, sigmas)
    n_batches = math.ceil(chains / chains_per_batch)
    workers = min(workers, n_batches)
    times: dict[Operation, float] = {}

    def cost(which: int) -> Cost:
        """With the shortest (0) or the longest (1) trajectories."""
        batch_seconds, evaluations = 0.0, 0
        for number, (given, iterations) in enumerate(phases):
            tuning = extreme_tunings(given, is_measured=number in tuning_phases)[which]
            operations = tuple(with_numbers(operation, tuning) for operation in unrolled(given))
            evaluations += gradient_evaluations(operations) * iterations * chains
            for operation in operations:
                if operation not in times:
                    times[operation] = operation_seconds(
                        operation, posterior, advance, state, streams, seconds / 4
                    )
                batch_seconds += iterations * times[operation]
        return Cost(
            evaluations,
            core_seconds=_digits(batch_seconds * chains / chains_per_batch),
            seconds=_digits(batch_seconds * math.ceil(n_batches / workers)),
        )

    estimate = RunEstimate(workers, least=cost(0), most=cost(1))
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


def with_numbers(operation: Operation, tuning: Tuning) -> Operation:
    """The operation with the steps of `tuning` and STEPSIZE in place of what is automatic."""
    if not isinstance(operation, Hybrid | HybridMarginal) or operation not in tuning.settings:
        return operation
    settings = tuning.settings[operation]
    steps = settings.longest if tuning.is_measured else settings.steps
    stepsize = STEPSIZE if operation.stepsize == AUTO else operation.stepsize
    return replace(operation, steps=steps, stepsize=stepsize)


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
