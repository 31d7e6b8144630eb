"""Measures the time of leapfrog steps on this machine, for networks of a configuration or a given shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.trajectories import integrator_of
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.output_layer import feeds_outputs
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import Purpose, Streams
from rayfbnn.timing.measured_times import Dtype, Row
from rayfbnn.timing.trajectory_kinds import HYBRID, TrajectoryKind, trajectory_kinds

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
    plain = choose.ARRAY_CODE["gpu" if array_namespace(posterior.inputs) is not np else "cpu"].name
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
