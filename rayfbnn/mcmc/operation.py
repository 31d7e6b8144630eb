"""The interface of operations: the methods of their records, and the context that builds their updates.

Each operation has one file with a frozen dataclass derived from `Operation`, and its update.
`mcmc/operations.py` lists all operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from rayfbnn.mcmc.orders import Order
from rayfbnn.state import Advance, ChainState, Target, Update

Auto: TypeAlias = Literal["auto"]
AUTO: Auto = "auto"  # a setting that the tuning phases find, see mcmc/tuning/
Integrator: TypeAlias = Literal["leapfrog", "two-stage", "fourth-order"]

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
    """

    op: ClassVar[str]
    is_exact: ClassVar[bool] = True
    bias: ClassVar[str] = "draws are biased by the error of its trajectories"
    is_reversible: ClassVar[bool] = False
    is_tempering: ClassVar[bool] = False
    has_energy_change: ClassVar[bool] = False

    @abstractmethod
    def build(self, context: BuildContext) -> Update:
        """Build the update that runs this operation.

        The update returns the state and an info, which is None, one of the info records of state.py, or an
        ExcursionInfo (schedule.py).
        """

    @abstractmethod
    def description(self) -> str:
        """Describe the operation and its settings in one line, for `rayfbnn show`."""

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradient evaluations of one update, see `gradient_evaluations`."""
        return 0

    def why_undivided(self) -> str | None:
        """Return why training cases cannot be divided into parts and how to fix it, or None if they can."""
        return None

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


class TrajectoryOperation(Operation):
    """An operation that follows trajectories. It therefore needs other operations to refresh the momentum.

    partitions  number of blocks of cases; one step uses the partial gradient of each block. 1 is the full
                gradient
    integrator  the kind of steps
    """

    partitions: int
    integrator: Integrator = "leapfrog"
    has_energy_change: ClassVar[bool] = True

    @property
    def is_cyclic(self) -> bool:
        """True if partial gradients come in a cyclic order. Training data in parts requires this."""
        return False


class Tunable(TrajectoryOperation):
    """A trajectory operation with settings that may be "auto". The tuning phases find these settings.

    steps     number of steps of a trajectory, or "auto"
    stepsize  factor on the heuristic stepsizes, or "auto"
    scaling   "auto" if tuning also finds a factor on the stepsizes of each group of coordinates
    window, jump, stepsize_jitter  see `hybrid.hybrid`
    order     the order of the partial gradients, see `orders.drawn_order`
    longest   the longest trajectory that tuning tries
    """

    longest: ClassVar[int]
    steps: int | Auto
    stepsize: float | Auto
    window: int
    jump: int
    stepsize_jitter: float | None
    scaling: Auto | None
    order: Order | None

    @property
    def is_automatic(self) -> bool:
        """True if the number of steps or the stepsize is "auto"."""
        return AUTO in (self.steps, self.stepsize)

    @property
    def tuned(self) -> Tunable | None:
        """The operation itself if it has an automatic setting, otherwise None."""
        return self if self.is_automatic else None

    @property
    def is_cyclic(self) -> bool:
        """True if partial gradients come in a cyclic order."""
        return self.order == "cyclic"


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
