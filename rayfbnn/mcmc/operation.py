"""The interface of operations: the methods of their records, and the context that builds their updates.

Each operation has one file with a frozen dataclass derived from `Operation`, and its update.
`mcmc/operations.py` lists all operations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

from rayfbnn.arrays import Array
from rayfbnn.mcmc.leapfrog import COMPOSITIONS, Integrator, Order
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, jittered_stepsize
from rayfbnn.state import Advance, ChainState, Target, Update
from rayfbnn.streams import Streams

Auto: TypeAlias = Literal["auto"]
AUTO: Auto = "auto"  # a setting that the tuning phases find, see mcmc/automatic.py

ModelUpdate: TypeAlias = Callable[..., tuple[ChainState, Any]]
"""An update that belongs to the model, or a function that becomes an update once its settings are bound."""


@dataclass(frozen=True)
class Operation(ABC):
    """One kind of update, with its settings.

    A subclass is a frozen dataclass. Its fields are the keys of the operation's table in a configuration.
    Its `__post_init__` raises ValueError, "key: what would be right, got value", for an invalid value.

    op                 name of the operation in a configuration
    is_exact           whether the update leaves its target distribution invariant
    bias               the source of bias in its draws, if it is not exact
    is_reversible      whether the update is reversible and can be used in `tempered-transition`
    is_tempering       whether the update itself changes the temperature
    has_energy_change  whether the update reports a change of energy (HMCInfo or UncorrectedInfo)
    undivided          the reason of `why_undivided`, after the name of the operation, or ""
    """

    op: ClassVar[str]
    is_exact: ClassVar[bool] = True
    bias: ClassVar[str] = "draws are biased by the error of its trajectories"
    is_reversible: ClassVar[bool] = False
    is_tempering: ClassVar[bool] = False
    has_energy_change: ClassVar[bool] = False
    undivided: ClassVar[str] = ""

    def build(self, context: BuildContext) -> Update:
        """Build the update that runs this operation: `update` in a context, unless overridden."""
        return partial(self.update, context=context)

    def update(self, state: ChainState, streams: Streams, *, context: BuildContext) -> tuple[ChainState, Any]:
        """Return the state after one update, and an info.

        The info is None, one of the info records of state.py, or an ExcursionInfo (schedule.py).
        """
        raise NotImplementedError

    @abstractmethod
    def description(self) -> str:
        """Describe the operation and its settings in one line, for `rayfbnn show`."""

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradient evaluations of one update, see `gradient_evaluations`."""
        return 0

    def why_undivided(self) -> str | None:
        """Return why training cases cannot be divided into parts and how to fix it, or None if they can."""
        return f"{self.op} {self.undivided}" if self.undivided else None

    @property
    def inner(self) -> tuple[Operation, ...]:
        """The operations inside this one; most have none."""
        return ()

    @property
    def tuned(self) -> Tunable | None:
        """The operation whose settings the tuning phases find for this one; None if nothing is "auto"."""
        return None

    def unrolled(self) -> tuple[Operation, ...]:
        """Return the updates that this operation consists of: itself, unless it is a repetition."""
        return (self,)


class Nesting(Operation):
    """An operation that consists of others, which are its `operations`."""

    operations: tuple[Operation, ...]

    @property
    def inner(self) -> tuple[Operation, ...]:
        return self.operations

    def check_operations(self) -> None:
        """Raise ValueError without operations inside this one."""
        if not self.operations:
            raise ValueError("operations: must name at least one operation, got none")


class TrajectoryOperation(Operation):
    """An operation that follows trajectories. It therefore needs other operations to refresh the momentum.

    partitions  number of blocks of cases; one step uses the partial gradient of each block. 1 is the full
                gradient
    integrator  the kind of steps
    jump        number of steps from one considered state to the next
    order       the order of the partial gradients, see `leapfrog.drawn_order`
    """

    partitions: int
    integrator: Integrator = "leapfrog"
    jump: int = 1
    order: Order | None = None
    has_energy_change: ClassVar[bool] = True

    @property
    def is_cyclic(self) -> bool:
        """True if partial gradients come in a cyclic order. Training data in parts requires this."""
        return self.order == "cyclic"

    def check_steps(self, steps: int, *, name: str = "steps") -> None:
        """Raise ValueError unless trajectories can have this length, which is the value of the key `name`."""
        if steps < 1:
            raise ValueError(f"{name}: must be at least 1, got {steps}")
        if self.partitions < 1:
            raise ValueError(f"partitions: must be at least 1, got {self.partitions}")
        if self.partitions > 1 and self.integrator != "leapfrog":
            raise ValueError(
                f"partitions: the {self.integrator} integrator takes the full gradient, got"
                f" {self.partitions}; leave it out"
            )
        if self.jump < 1 or steps % self.jump:
            raise ValueError(f"jump: must divide {name} = {steps}, got {self.jump}")

    def check_order(self) -> None:
        """Raise ValueError if an order is given although there is only one partition."""
        if self.order is not None and self.partitions == 1:
            raise ValueError(
                f'order: needs partitions > 1, since one block has no order, got "{self.order}"; leave it out'
            )

    def gradients_of(self, n_steps: int) -> int:
        """Count the gradients of n_steps steps, without the one at the start of the trajectory."""
        return n_steps * COMPOSITIONS[self.integrator].gradients_per_step

    def described(self, *parts: str) -> str:
        """Return the parts of a description, followed by the jump and the partial gradients of a step."""
        jump = [f"considering a state after every {self.jump} steps"] * (self.jump > 1)
        gradients = [f"{self.partitions} partial gradients per step{self.order_in_words}"]
        return ", ".join([*parts, *jump, *gradients * (self.partitions > 1)])

    @property
    def order_in_words(self) -> str:
        """The order of the partial gradients, after a space; empty for a random one."""
        return " in cyclic order" if self.order == "cyclic" else ""


class Tunable(TrajectoryOperation):
    """A trajectory operation with settings that may be "auto". The tuning phases find these settings.

    steps     number of steps of a trajectory, or "auto"
    stepsize  factor on the heuristic stepsizes, or "auto"
    scaling   "auto" if tuning also finds a factor on the stepsizes of each group of coordinates
    window, jump, stepsize_jitter  see `hybrid.hybrid`
    longest   the longest trajectory that tuning tries
    """

    longest: ClassVar[int]
    steps: int | Auto
    stepsize: float | Auto
    window: int
    stepsize_jitter: float | None
    scaling: Auto | None

    def __post_init__(self) -> None:
        if self.steps == AUTO:
            for name, value in (("window", self.window), ("jump", self.jump)):
                if value != 1:
                    raise ValueError(f'{name}: must be 1 with steps = "auto", got {value}; leave it out')
            self.check_steps(1)
        else:
            self.check_steps(self.steps)
            most = self.steps // self.jump + 1
            formula = "steps" if self.jump == 1 else "steps / jump"
            if not 1 <= self.window <= most:
                raise ValueError(f"window: must be from 1 to {formula} + 1 = {most}, got {self.window}")
        self.check_order()
        check_stepsize(1.0 if self.stepsize == AUTO else self.stepsize, self.stepsize_jitter)
        check_scaling(self.scaling, self.stepsize)

    @property
    def is_automatic(self) -> bool:
        """True if the number of steps or the stepsize is "auto"."""
        return AUTO in (self.steps, self.stepsize)

    @property
    def tuned(self) -> Tunable | None:
        """The operation itself if it has an automatic setting, otherwise None."""
        return self if self.is_automatic else None

    def length(self, tuning: Tuning | None) -> int:
        """Return the number of steps of a trajectory, as configured or tuned; 0 if it is not known yet."""
        if self.steps != AUTO:
            return self.steps
        if tuning is None or self not in tuning.settings:
            return 0
        settings = tuning.settings[self]
        return settings.longest if tuning.is_measured else settings.steps

    def gradients(self, tuning: Tuning | None = None) -> int:
        return self.gradients_of(self.length(tuning))

    def describe_trajectories(self) -> str:
        """Describe the trajectories: their length, stepsizes, windows and partitions."""
        parts = [
            describe_length(self.steps, self.integrator),
            describe_stepsize(self.stepsize, self.stepsize_jitter),
        ]
        if self.scaling == AUTO:
            parts.append("automatic scales of groups")
        if self.window > 1:
            parts.append(f"windows of {self.window} states")
        return self.described(*parts)


def check_scaling(scaling: Auto | None, stepsize: float | Auto) -> None:
    """Raise ValueError if scales are automatic and the stepsize is not."""
    if scaling == AUTO and stepsize != AUTO:
        raise ValueError(f'scaling: "auto" needs stepsize = "auto", got stepsize {stepsize}')


def describe_length(steps: int | Auto, integrator: Integrator) -> str:
    """Describe the length of trajectories."""
    if steps == AUTO:
        return f"trajectories of an automatic number of {integrator} steps"
    return f"trajectories of {steps} {integrator} {'step' if steps == 1 else 'steps'}"


@dataclass(frozen=True)
class Settings:
    """The settings that tuning has found for one operation.

    stepsize  factor on the heuristic stepsizes
    steps     number of steps of a trajectory
    longest   number of steps of a measured trajectory; it may exceed `steps` to test longer trajectories
    scales    factors on the stepsizes of the groups of coordinates (mcmc/stepsizes.py); empty for none
    """

    stepsize: float
    steps: int
    longest: int
    scales: tuple[float, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """The settings of all automatic operations.

    is_measured  whether the iteration belongs to a tuning round and measures its trajectories
    """

    settings: Mapping[Tunable, Settings]
    is_measured: bool = False


@dataclass(frozen=True)
class BuildContext:
    """The arguments for building the updates of an iteration.

    target       the density to sample from
    updates      the updates that belong to the model, by name of operation (state.TemperedTarget)
    advance      runs leapfrog steps
    tuning       the settings of automatic operations, or None
    first_inner  the number, in the random streams, of the first update inside this operation
    """

    target: Target
    updates: Mapping[str, ModelUpdate]
    advance: Advance
    tuning: Tuning | None
    first_inner: int


def unrolled(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the updates of one iteration in order, with every `repeat` written out."""
    return tuple(update for operation in operations for update in operation.unrolled())


def with_inner(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the updates of one iteration, followed by the updates inside them."""
    outer = unrolled(operations)
    return outer + tuple(update for operation in outer for update in unrolled(operation.inner))


def automatic(operations: tuple[Operation, ...]) -> tuple[Tunable, ...]:
    """Return the distinct operations that tuning has to find settings for, in order, also nested ones."""
    different: dict[Tunable, None] = {}
    for operation in operations:
        if operation.tuned is not None:
            different[operation.tuned] = None
        different |= dict.fromkeys(automatic(operation.inner))
    return tuple(different)


def gradient_evaluations(operations: tuple[Operation, ...], *, tuning: Tuning | None = None) -> int:
    """Count the evaluations of the gradient over all training cases in one iteration.

    K partial gradients count as one evaluation. A leapfrog step takes one, a two-stage step two and a
    fourth-order step seven. If the length of a trajectory is random, the longest one is counted. For an
    excursion of simulated tempering, the average length with good weights is counted.

    The gradient at the start of each piece of a trajectory is not counted. A trajectory has one of these,
    and one more for each state that is considered along it.

    tuning  gives the automatic numbers of steps; without it they count as 0
    """
    return sum(operation.gradients(tuning) for operation in operations)


def total_steps(operations: tuple[Operation, ...], tuning: Tuning) -> float:
    """Return the number of steps of all trajectories of an iteration.

    It is NaN for trajectories of variable length, or without trajectories.
    """
    with_gradients = [operation for operation in unrolled(operations) if operation.gradients(tuning)]
    steps = (getattr(_settings(operation, tuning), "steps", math.nan) for operation in with_gradients)
    return sum(steps) or math.nan


def last_stepsizes(operations: tuple[Operation, ...], tuning: Tuning, streams: Streams) -> Array | None:
    """Return the stepsizes of the update whose energy change an iteration reports, (n_chains,) float64.

    This is the last update that has an energy change. The stepsize is the factor on the heuristic stepsizes,
    with its jitter, which is drawn again from the random numbers of the update. None if there is no such
    update, or if it has no stepsize.
    """
    updates = list(enumerate(unrolled(operations)))
    last = next((pair for pair in reversed(updates) if pair[1].has_energy_change), None)
    if last is None:
        return None
    number, operation = last
    stepsize = getattr(_settings(operation, tuning), "stepsize", None)
    if stepsize is None:
        return None
    jitter = getattr(operation, "stepsize_jitter", None)
    return jittered_stepsize(stepsize, jitter, streams.at(iteration=streams.iteration, operation=number))


def _settings(operation: Operation, tuning: Tuning) -> object:
    """Return the operation, or the settings that tuning has found for it."""
    return operation if operation.tuned is None else tuning.settings.get(operation.tuned, operation)
