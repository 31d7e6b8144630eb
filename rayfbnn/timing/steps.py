"""How fast trajectories are on this machine: microseconds per leapfrog step of a chain.

Needs NumPy and SciPy only (CuPy for a GPU).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array, array_namespace, device_namespace, to_host
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.mcmc import fourth_order, leapfrog
from rayfbnn.mcmc.operations import (
    Dynamic,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Integrator,
    Operation,
    inner_operations,
    unrolled,
)
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.marginal.output_layer import feeds_outputs
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance, ChainState, Target, Trajectory
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


def rows_of_shapes(
    shapes: Sequence[str],
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    chains: int = 16,
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
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
    return tuple(rows)


def rows_of_operations(
    posterior: Posterior,
    operations: Sequence[Operation],
    *,
    chains: int,
    seconds: float = 1.0,
    report: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
    """The same for each kind of trajectory among the operations of a run, with its own posterior."""
    rows = []
    for trajectory in trajectories(operations):
        for row in kernel_rows(posterior, chains=chains, seconds=seconds, trajectory=trajectory):
            report(row)
            rows.append(row)
    return tuple(rows)


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
class TrajectoryKind:
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


HYBRID = TrajectoryKind()


def trajectories(operations: Sequence[Operation]) -> tuple[TrajectoryKind, ...]:
    """The different ones of operations, those inside others too, in order."""
    found: dict[TrajectoryKind, None] = {}
    for operation in unrolled(tuple(operations)):
        if isinstance(operation, HybridMarginal):
            n = operation.partitions
            name = f"{operation.op} over {' and '.join(operation.over)}{_partial(n)}"
            found[TrajectoryKind(name, operation.over, n)] = None
        elif isinstance(operation, Hybrid | HybridMax | Dynamic):
            n, integrator = operation.partitions, operation.integrator
            kind = _partial(n) if integrator == "leapfrog" else f", {integrator}"
            found[TrajectoryKind(operation.op + kind, partitions=n, integrator=integrator)] = None
        found |= dict.fromkeys(trajectories(inner_operations(operation)))
    return tuple(found)


def _partial(partitions: int) -> str:
    return f", {partitions} partitions" if partitions > 1 else ""


def kernels_of(posterior: Posterior, trajectory: TrajectoryKind = HYBRID) -> list[tuple[str, Advance]]:
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
    posterior: Posterior, *, chains: int, seconds: float, trajectory: TrajectoryKind = HYBRID
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
            us_per_step=four_digits(1e6 * per_step),
            gflops=four_digits(1e-9 * operations / per_step),
        )


def floating_point_operations(posterior: Posterior, trajectory: TrajectoryKind = HYBRID) -> int:
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
    posterior: Posterior, trajectory: TrajectoryKind, *, chains: int
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
    trajectory: TrajectoryKind = HYBRID,
) -> float:
    """Median time of a step of one chain, `chains` of them advancing together.

    A trajectory of n steps of g gradients takes n g + 1, so its time is divided by n + 1/g: trajectories are
    long where steps are short.
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
    return posterior.initial_state(streams, sigmas=sigmas), streams


def steps_within(seconds_per_step: float, seconds: float) -> int:
    """How many steps take so long, from 2 to 100,000."""
    return max(2, min(100_000, int(seconds / max(seconds_per_step, 1e-9))))


def four_digits(value: float) -> float:
    """The value without what comes after, which would say nothing."""
    return float(f"{value:.4g}")
