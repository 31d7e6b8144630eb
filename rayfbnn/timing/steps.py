"""Measures leapfrog steps on this machine, for configured networks or given shapes; records of times."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.leapfrog import COMPOSITIONS, Integrator, integrator_of
from rayfbnn.mcmc.operation import Operation, TrajectoryOperation, unrolled
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.output_layer import feeds_outputs
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.numerals import duration
from rayfbnn.output.facts import Answer, Fact, Paragraph, TableFact
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class TrajectoryKind:
    """The properties of a trajectory that determine the time of its steps.

    name        the name of the kind in a table
    over        the variables that hybrid-marginal integrates out
    partitions  number of blocks of cases; each step has a partial gradient for each block
    """

    name: str = ""
    over: tuple[Literal["outputs", "precisions"], ...] = ()
    partitions: int = 1
    integrator: Integrator = "leapfrog"

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients in one step, each over 1/partitions of the cases."""
        return self.partitions * COMPOSITIONS[self.integrator].gradients_per_step


HYBRID = TrajectoryKind()


def trajectory_kinds(operations: Sequence[Operation]) -> tuple[TrajectoryKind, ...]:
    """Return the distinct kinds in the operations and in the operations inside them, in order."""
    kinds: dict[TrajectoryKind, None] = {}
    for operation in unrolled(tuple(operations)):
        if isinstance(operation, HybridMarginal):
            n = operation.partitions
            name = f"{operation.op} over {' and '.join(operation.over)}{_partial(n)}"
            kinds[TrajectoryKind(name, operation.over, n)] = None
        elif isinstance(operation, TrajectoryOperation):
            n, integrator = operation.partitions, operation.integrator
            suffix = _partial(n) if integrator == "leapfrog" else f", {integrator}"
            kinds[TrajectoryKind(operation.op + suffix, partitions=n, integrator=integrator)] = None
        kinds |= dict.fromkeys(trajectory_kinds(operation.inner))
    return tuple(kinds)


def _partial(partitions: int) -> str:
    return f", {partitions} partitions" if partitions > 1 else ""


# A factor on the heuristic stepsizes. It is stable for all shapes; arithmetic with infinities would be slow.
STEPSIZE = 0.1
# The array code holds the hidden values of every chain. This number of them is a gigabyte of float32.
_MAX_VALUES = 2**28


def rows_of_shapes(
    shapes: Sequence[str],
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    chains: int = 16,
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
    """Time networks of the given shapes with generated cases, by array code and by the kernel chosen here.

    chains   number of chains that advance together; fewer if array code would need more than a few gigabytes
    seconds  time to spend on each row; at least three repeats are timed
    report   function to call with each row as soon as it is measured
    """
    rows = []
    for shape in shapes:
        posterior = generated_posterior(shape, dtype=dtype, device=device)
        for row in kernel_rows(posterior, chains=chains, seconds=seconds):
            report(row)
            rows.append(row)
    return tuple(rows)


def rows_of_operations(
    posterior: SampledPosterior,
    operations: Sequence[Operation],
    *,
    chains: int,
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
    """Time each kind of trajectory in the operations of a run, with the run's posterior.

    The arguments are those of `rows_of_shapes`.
    """
    rows = []
    for trajectory in trajectory_kinds(operations):
        for row in kernel_rows(posterior, chains=chains, seconds=seconds, trajectory=trajectory):
            report(row)
            rows.append(row)
    return tuple(rows)


def kernels_of(posterior: SampledPosterior, trajectory: TrajectoryKind = HYBRID) -> list[tuple[str, Advance]]:
    """Return (name, Advance) of the array code, and of the kernel for these trajectories if it differs."""
    plain = choose.ARRAY_CODE["gpu" if array_namespace(posterior.inputs) is not np else "cpu"]
    if trajectory.integrator != "leapfrog":
        return [(plain, integrator_of(trajectory.integrator, leapfrog.advance))]
    chosen, name = choose.advance_for(posterior)
    if trajectory.over and chosen is not leapfrog.advance:
        target, *_ = at_start(posterior, trajectory, chains=1)
        chosen, name = choose.advance_for(target)
        if chosen is leapfrog.advance:  # a kernel covers the posterior but not its marginal
            return [(name, chosen)]
    return [(plain, leapfrog.advance), *([] if chosen is leapfrog.advance else [(name, chosen)])]


def kernel_rows(
    posterior: SampledPosterior, *, chains: int, seconds: float, trajectory: TrajectoryKind = HYBRID
) -> Iterator[Row]:
    """Yield a row for the array code, and one for the kernel for these trajectories if it differs."""
    n_units = max([1, *(layer.units for layer in posterior.network.hidden)])
    chains = max(1, min(chains, _MAX_VALUES // (n_units * posterior.n_cases)))
    operations = floating_point_operations(posterior, trajectory)
    for name, advance in kernels_of(posterior, trajectory):
        per_step = seconds_per_step(posterior, advance, chains=chains, seconds=seconds, trajectory=trajectory)
        yield Row(
            f"{shape_of(posterior)} {trajectory.name}".strip(),
            chains,
            name,
            us_per_step=four_digits(1e6 * per_step),
            gflops=four_digits(1e-9 * operations / per_step),
        )


def floating_point_operations(posterior: SampledPosterior, trajectory: TrajectoryKind = HYBRID) -> int:
    """Return the additions and multiplications in one step's products with weights and biases.

    Each weight and case takes two in the forward pass and two for the derivative of the weight. A weight from
    a hidden layer takes two more, for the derivative of that layer. Weights that are integrated out do not
    count.
    """
    total = 0
    for group in posterior.network.groups():
        if "outputs" in trajectory.over and feeds_outputs(group.name):
            continue
        passes = 3 if group.name.startswith("h") else 2
        total += 2 * passes * group.size * posterior.n_cases
    return total * trajectory.gradients_per_step // trajectory.partitions


def at_start(
    posterior: SampledPosterior, trajectory: TrajectoryKind, *, chains: int
) -> tuple[Target, ChainState, Array | None]:
    """Return the target of the trajectories, a state to start from, and the order of partial gradients."""
    state, streams = started(posterior, chains)
    target: Target = posterior
    if trajectory.over:
        conditional = posterior.marginal(trajectory.over).given(state, streams)
        target, state = conditional, conditional.start(state, streams)
    n = trajectory.partitions
    return target, state, streams.permutation(n, Purpose.PARTITION_ORDER) if n > 1 else None


def seconds_per_step(
    posterior: SampledPosterior,
    advance: Advance,
    *,
    chains: int,
    seconds: float,
    trajectory: TrajectoryKind = HYBRID,
) -> float:
    """Return the median time of one step of one chain when `chains` chains advance together.

    A trajectory of n steps with g gradients each has n g + 1 gradients, so its time is divided by n + 1/g.
    Faster steps are timed in longer trajectories.
    """
    target, state, order = at_start(posterior, trajectory, chains=chains)
    stepsizes = (STEPSIZE * target.stepsizes(state.precisions)).astype(posterior.dtype)
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)

    def run(n_steps: int) -> float:
        started_at = time.perf_counter()
        _, potential = advance(target, start, n_steps=n_steps, order=order)
        to_host(potential)  # waits for a device
        return (time.perf_counter() - started_at) / (n_steps + 1 / trajectory.gradients_per_step)

    run(1)  # the first call allocates
    n_steps = steps_within(run(2), seconds / 5)
    return statistics.median(repeated(lambda: run(n_steps), seconds=seconds)) / chains


def repeated(run: Callable[[], float], *, seconds: float) -> list[float]:
    """Call `run` until `seconds` have passed, at least three times; return the results."""
    end = time.perf_counter() + seconds
    results: list[float] = []
    while len(results) < 3 or time.perf_counter() < end:
        results.append(run())
    return results


def timed(call: Callable[[], object], *, seconds: float) -> float:
    """Return the median time of a call that is repeated for `seconds`."""

    def run() -> float:
        started_at = time.perf_counter()
        call()
        return time.perf_counter() - started_at

    return statistics.median(repeated(run, seconds=seconds))


def started(
    posterior: SampledPosterior, chains: int, sigmas: float | None = 0.5
) -> tuple[ChainState, Streams]:
    """Return the initial state of chains, with momentum, and the streams of the first iteration."""
    xp = array_namespace(posterior.inputs)
    streams_class = choose.streams_class("cpu" if xp is np else "gpu")
    streams = streams_class(seed=2, chains=xp.arange(chains, dtype=xp.uint64))
    return posterior.initial_state(streams, sigmas=sigmas), streams.at(iteration=1)


def steps_within(seconds_per_step: float, seconds: float) -> int:
    """Return the number of steps that take `seconds`, limited to 2 to 100,000."""
    return max(2, min(100_000, int(seconds / max(seconds_per_step, 1e-9))))


def four_digits(value: float) -> float:
    """Return the value rounded to four digits; further digits are only noise."""
    return float(f"{value:.4g}")


# Neal's first network, the robot arm, a wide layer, two layers, and a network dominated by matrix products.
STANDARD_SHAPES = ("1-8-1/100", "2-16-2/200", "10-100-1/1000", "13-50-50-1/506", "784-100-10/10000")


def generated_posterior(shape: str, *, dtype: Dtype = "float32", device: str = "cpu") -> SampledPosterior:
    """Return the posterior of a network of tanh units with real targets.

    Inputs and targets are standard normal numbers, which depend on the shape alone.
    """
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
    return SampledPosterior.from_spec(
        network, model, inputs, targets, dtype=dtype, xp=device_namespace(device)
    )


def parsed_shape(shape: str) -> tuple[list[int], int]:
    """Return the units of each layer, including inputs and outputs, and the number of cases."""
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


def shape_of(posterior: SampledPosterior) -> str:
    """Return the shape of a posterior's network, such as "2-16-2/200"."""
    network = posterior.network
    layers = [network.inputs, *(layer.units for layer in network.hidden), network.outputs]
    return f"{'-'.join(map(str, layers))}/{posterior.n_cases}"


Dtype = Literal["float32", "float64"]


@dataclass(frozen=True)
class Row:
    """The time that one kernel takes for one network.

    shape        the units of each layer and the number of cases, such as "2-16-2/200"; for a configuration
                 also the kind of trajectory, such as "2-16-2/200 hybrid-marginal over outputs"
    chains       number of chains that advance together
    kernel       name of the kernel
    us_per_step  microseconds for one leapfrog step of one chain
    gflops       10**9 additions and multiplications per second, counting only products with weights
    """

    shape: str
    chains: int
    kernel: str
    us_per_step: float
    gflops: float


@dataclass(frozen=True)
class Cost:
    """The time that a run takes to sample, excluding the start of Ray and reading and writing.

    gradient_evaluations  the total over all chains
    core_seconds          time of all chains, one batch after another
    seconds               time if workers share the batches, each on a core (or a GPU)
    """

    gradient_evaluations: int
    core_seconds: float
    seconds: float


@dataclass(frozen=True)
class RunEstimate:
    """The time that a configuration takes with a number of workers.

    least, most  the costs with the shortest and the longest trajectories that tuning can choose; equal if no
                 length is automatic
    """

    workers: int
    least: Cost
    most: Cost

    def __str__(self) -> str:
        costs = list(dict.fromkeys((self.least, self.most)))
        evaluations = " to ".join(f"{cost.gradient_evaluations:,}" for cost in costs)
        core = " to ".join(duration(cost.core_seconds) for cost in costs)
        together = " to ".join(duration(cost.seconds) for cost in costs)
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        text = f"{evaluations} gradient evaluations, about {core} on one core, {together} with {workers}"
        if len(costs) == 1:
            return text
        ends = "from the shortest to the longest automatic trajectories; the run finds their length"
        return f"{text}\n{ends}"


@dataclass(frozen=True)
class Forecast:
    """The time that a run will take, measured in a second or two.

    workers         number of processes that share the batches
    seconds         time of the whole run
    before_draws    the part of `seconds` before the first draw is kept
    start           the part of all these times for starting workers, which is not measured
    first_verdict   time before the first verdict if the run ends when it is ok; None for a fixed length
    """

    workers: int
    seconds: float
    before_draws: float
    start: float = 0.0
    first_verdict: float | None = None

    def after(self, start: float) -> Forecast:
        """Return the forecast if workers take `start` seconds before they begin to sample."""
        first_verdict = None if self.first_verdict is None else self.first_verdict + start
        return Forecast(self.workers, self.seconds + start, self.before_draws + start, start, first_verdict)


@dataclass(frozen=True)
class BenchResult(Answer):
    """The rows for one device and precision, and for a configuration also the estimate of its run."""

    device: str
    dtype: Dtype
    rows: tuple[Row, ...]
    estimate: RunEstimate | None = None

    def facts(self) -> list[Fact]:
        """Return the rows as a table, and the estimate in words."""
        table = TableFact(
            ("shape", "chains", "us/step", "GFLOP/s", "kernel"),
            [(row.shape, row.chains, row.us_per_step, row.gflops, row.kernel) for row in self.rows],
            f"{self.device}, {self.dtype}: microseconds per leapfrog step of a chain",
        )
        run = [] if self.estimate is None else [Paragraph(f"the whole run: {self.estimate}")]
        return [table, *run]

    def to_json(self) -> str:
        """Return one JSON object, with the key "estimate" only for a configuration."""
        fields = asdict(self)
        if self.estimate is None:
            del fields["estimate"]
        return json.dumps(fields)
