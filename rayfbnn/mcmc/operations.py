"""The operations an iteration is made of, as plain records."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

Integrator = Literal["leapfrog", "fourth-order"]
Auto = Literal["auto"]
AUTO: Auto = "auto"  # found in the initial phases, see mcmc/tuning/
Level = Literal["lower", "upper"]

_FORBID: dict[str, Any] = {"extra": "forbid"}  # read by pydantic, which this file does not import


@dataclass(frozen=True)
class SampleSigmas:
    """Gibbs updates of the noise precisions, then of every other precision; or only of some.

    level   "lower": precisions that rule Gaussian parameters or noise, and adjustments; "upper": those that
            rule other precisions, of units or of single t values; absent: both
    groups  those of the groups and adjustments named, such as ih0, ao and noise; absent: all
    """

    level: Level | None = None
    groups: tuple[str, ...] | None = None
    op: Literal["sample-sigmas"] = "sample-sigmas"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_groups(self.groups)


@dataclass(frozen=True)
class SampleNoise:
    """Gibbs updates of the noise precisions alone."""

    op: Literal["sample-noise"] = "sample-noise"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True)
class RandomGrid:
    """Random-grid Metropolis updates of the precisions that rule other precisions.

    stepsize  of the logarithm of a precision: proposals are uniform within it
    groups    those of the groups named, such as ih0 and noise; absent: all
    """

    stepsize: float = 0.1
    groups: tuple[str, ...] | None = None
    op: Literal["random-grid"] = "random-grid"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_stepsize(self.stepsize, None)
        _check_groups(self.groups)


@dataclass(frozen=True)
class Rescale:
    """Metropolis updates that scale sigmas and the parameters they rule together.

    along     "sigmas": each sigma in turn; "incoming": for each layer, hidden or output, all sigmas of what
              leads into it
    stepsize  of the logarithm of the factor: proposals are normal
    """

    along: Literal["sigmas", "incoming"]
    stepsize: float = 0.3
    op: Literal["rescale"] = "rescale"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_stepsize(self.stepsize, None)


@dataclass(frozen=True)
class Heatbath:
    """p becomes decay * p + sqrt(1 - decay**2) * n, n standard normal. decay 0 forgets the old momentum."""

    decay: float = 0.0
    op: Literal["heatbath"] = "heatbath"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: must be at least 0 and below 1, got {self.decay}")


@dataclass(frozen=True)
class RadialHeatbath:
    """The length of the momentum drawn anew, its direction kept."""

    op: Literal["radial-heatbath"] = "radial-heatbath"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


@dataclass(frozen=True)
class Negate:
    """Momentum reversed; after `hybrid` it makes the momentum persist on acceptance."""

    op: Literal["negate"] = "negate"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID


def _check_stepsize(stepsize: float, jitter: float | None) -> None:
    if not (stepsize > 0 and math.isfinite(stepsize)):
        raise ValueError(f"stepsize: must be a positive number, got {stepsize}")
    if jitter is not None and (jitter == 0 or not math.isfinite(jitter)):
        raise ValueError(
            f"stepsize_jitter: must be positive (alpha of a Gamma) or negative (decades), got {jitter}"
        )


def _check_settings(operation: Tunable, partitions: int, integrator: str) -> None:
    """What `hybrid` and `hybrid-marginal` have in common."""
    steps, window, jump = operation.steps, operation.window, operation.jump
    if steps == AUTO:
        _check_trajectory(1, partitions, integrator)
        for name, value in (("window", window), ("jump", jump)):
            if value != 1:
                raise ValueError(f'{name}: must be 1 with steps = "auto", got {value}; leave it out')
    else:
        _check_trajectory(steps, partitions, integrator, jump=jump)
        most, formula = steps // jump + 1, "steps" if jump == 1 else "steps / jump"
        if not 1 <= window <= most:
            raise ValueError(f"window: must be from 1 to {formula} + 1 = {most}, got {window}")
    _check_stepsize(1.0 if operation.stepsize == AUTO else operation.stepsize, operation.stepsize_jitter)
    if operation.scaling == AUTO and operation.stepsize != AUTO:
        raise ValueError(f'scaling: "auto" needs stepsize = "auto", got stepsize {operation.stepsize}')


def _check_groups(groups: tuple[str, ...] | None) -> None:
    if groups is not None and (not groups or len(set(groups)) < len(groups)):
        raise ValueError(f"groups: must name at least one group, and each once, got {list(groups)}")


def _check_trajectory(
    steps: int, partitions: int, integrator: str, *, jump: int = 1, name: str = "steps"
) -> None:
    if steps < 1:
        raise ValueError(f"{name}: must be at least 1, got {steps}")
    if partitions < 1:
        raise ValueError(f"partitions: must be at least 1, got {partitions}")
    if partitions > 1 and integrator != "leapfrog":
        raise ValueError(
            f"partitions: the {integrator} integrator takes the full gradient, got {partitions}; leave it out"
        )
    if jump < 1 or steps % jump:
        raise ValueError(f"jump: must divide {name} = {steps}, got {jump}")


@dataclass(frozen=True)
class Hybrid:
    """A hybrid Monte Carlo update: a trajectory of `steps` leapfrog steps, accepted or not.

    steps, stepsize  numbers, or "auto": found in the initial phases that have the same operation
    window      states in the windows at both ends (1 is plain hybrid Monte Carlo)
    partitions  blocks of cases whose partial gradients make up one step (1 is the full gradient)
    stepsize    factor on the heuristic stepsizes
    stepsize_jitter  alpha > 0: stepsize / sqrt(Gamma(alpha/2, mean 1)) for each trajectory;
                     -a: log-uniform over a decades centred on stepsize; absent: fixed
    jump        only the states after every `jump` steps are looked at, and make up the windows
    integrator  "leapfrog", or "fourth-order": seven gradients a step
    scaling     "auto": a factor more on the stepsizes of each group, such as ih0, found with the stepsize;
                absent: the heuristic's alone
    """

    steps: int | Auto
    stepsize: float | Auto
    window: int = 1
    partitions: int = 1
    stepsize_jitter: float | None = None
    jump: int = 1
    integrator: Integrator = "leapfrog"
    scaling: Auto | None = None
    op: Literal["hybrid"] = "hybrid"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_settings(self, self.partitions, self.integrator)


@dataclass(frozen=True)
class HybridMarginal:
    """A hybrid Monte Carlo update with some variables integrated out, which are drawn anew after it.

    over  "outputs": the parameters that feed the outputs, which are linear in them;
          "precisions": the common precisions of groups of Gaussian parameters without precisions of units;
          with both, those of what feeds the outputs are not integrated out: they move along
    partitions  not with "outputs": the energy is then no sum over cases
    The other settings are those of `hybrid`.
    """

    over: tuple[Literal["outputs", "precisions"], ...]
    steps: int | Auto
    stepsize: float | Auto
    window: int = 1
    partitions: int = 1
    stepsize_jitter: float | None = None
    jump: int = 1
    scaling: Auto | None = None
    op: Literal["hybrid-marginal"] = "hybrid-marginal"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        if not self.over or len(set(self.over)) < len(self.over):
            names = list(self.over)
            raise ValueError(f'over: must name "outputs", "precisions" or both, each once, got {names}')
        _check_settings(self, self.partitions, "leapfrog")
        if self.partitions > 1 and "outputs" in self.over:
            raise ValueError(
                f'partitions: over "outputs" the energy is no sum over cases, got {self.partitions};'
                " leave it out"
            )


@dataclass(frozen=True)
class HybridMax:
    """A hybrid Monte Carlo update that ends its trajectory once `max_ok` acceptable states were met.

    max_steps  leapfrog steps at most; the last state is then accepted or not, as in `hybrid`
    max_ok     states that would be accepted; the trajectory ends at the last of them
    The other settings are those of `hybrid`.
    """

    max_steps: int
    max_ok: int
    stepsize: float
    partitions: int = 1
    stepsize_jitter: float | None = None
    jump: int = 1
    integrator: Integrator = "leapfrog"
    op: Literal["hybrid-max"] = "hybrid-max"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_trajectory(self.max_steps, self.partitions, self.integrator, jump=self.jump, name="max_steps")
        if self.max_ok < 1:
            raise ValueError(f"max_ok: must be at least 1, got {self.max_ok}")
        _check_stepsize(self.stepsize, self.stepsize_jitter)


@dataclass(frozen=True)
class Dynamic:
    """A trajectory of `steps` leapfrog steps whose end is always taken: draws are biased by its error.

    permuted  the partial gradients are visited in a random order rather than one after another
    The other settings are those of `hybrid`.
    """

    steps: int
    stepsize: float
    partitions: int = 1
    permuted: bool = False
    stepsize_jitter: float | None = None
    integrator: Integrator = "leapfrog"
    op: Literal["dynamic"] = "dynamic"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_trajectory(self.steps, self.partitions, self.integrator)
        if self.permuted and self.partitions == 1:
            raise ValueError("permuted: there is no order without partitions, got true; give partitions > 1")
        _check_stepsize(self.stepsize, self.stepsize_jitter)


@dataclass(frozen=True)
class Metropolis:
    """A random-walk Metropolis update of all parameters at once, Gaussian proposals."""

    stepsize: float
    stepsize_jitter: float | None = None
    op: Literal["metropolis"] = "metropolis"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_stepsize(self.stepsize, self.stepsize_jitter)


@dataclass(frozen=True)
class Metropolis1:
    """Random-walk Metropolis updates of one parameter after another.

    random  one parameter, chosen at random for each chain, rather than every one in order
    """

    stepsize: float
    stepsize_jitter: float | None = None
    random: bool = False
    op: Literal["metropolis-1"] = "metropolis-1"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_stepsize(self.stepsize, self.stepsize_jitter)


@dataclass(frozen=True)
class Slice1:
    """Slice sampling of one parameter after another.

    stepsize   first width of the interval, as a factor on the heuristic stepsizes
    max_steps  how many such widths the interval may have in the end; doubling: a power of two of them
    random     one parameter, chosen at random for each chain, rather than every one in order
    doubling   the interval is doubled rather than stepped out, where it may have to be much wider
    """

    stepsize: float
    max_steps: int = 100
    stepsize_jitter: float | None = None
    random: bool = False
    doubling: bool = False
    op: Literal["slice-1"] = "slice-1"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps: must be at least 1, got {self.max_steps}")
        _check_stepsize(self.stepsize, self.stepsize_jitter)


@dataclass(frozen=True)
class Repeat:
    """A group of operations done `times` times."""

    times: int
    operations: tuple[Operation, ...]
    op: Literal["repeat"] = "repeat"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times: must be at least 1, got {self.times}")
        if not self.operations:
            raise ValueError("operations: must name at least one operation, got none")


def _check_ladder(inverse_temperatures: tuple[float, ...]) -> None:
    is_descending = all(a > b for a, b in itertools.pairwise(inverse_temperatures))
    if not (
        len(inverse_temperatures) >= 2
        and inverse_temperatures[0] == 1
        and inverse_temperatures[-1] >= 0
        and is_descending
    ):
        raise ValueError(
            "inverse_temperatures: must begin with 1 and descend, to 0 at the lowest,"
            f" got {list(inverse_temperatures)}"
        )
    if len(inverse_temperatures) > 10_000:
        raise ValueError(f"inverse_temperatures: must be at most 10000, got {len(inverse_temperatures)}")


def _check_inner(operations: tuple[Operation, ...], allowed: tuple[type, ...], why: str) -> None:
    if not operations:
        raise ValueError("operations: must name at least one operation, got none")
    for operation in unrolled(operations):
        if not isinstance(operation, allowed):
            raise ValueError(f"operations: {why}, got {operation.op}")
    for automatic_one in automatic(operations):
        raise ValueError(
            f'operations: must have steps and stepsizes as numbers, got "auto" in {automatic_one.op}'
        )


@dataclass(frozen=True)
class SimulatedTempering:
    """A walk among temperatures, `operations` at each, that ends when it is back at the run's own.

    inverse_temperatures  1 and descending; they multiply that of the run
    log_weights           of the levels, near minus the log normaliser of each; their differences matter
    """

    inverse_temperatures: tuple[float, ...]
    log_weights: tuple[float, ...]
    operations: tuple[Operation, ...]
    op: Literal["simulated-tempering"] = "simulated-tempering"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_ladder(self.inverse_temperatures)
        if len(self.log_weights) != len(self.inverse_temperatures):
            raise ValueError(
                f"log_weights: must be one for each of the {len(self.inverse_temperatures)}"
                f" inverse_temperatures, got {len(self.log_weights)}"
            )
        if not all(math.isfinite(weight) for weight in self.log_weights):
            raise ValueError(f"log_weights: must be finite numbers, got {list(self.log_weights)}")
        exact = tuple(
            kind
            for kind in get_args(Operation)
            if kind not in (Dynamic, SimulatedTempering, TemperedTransition)
        )
        _check_inner(self.operations, exact, "must be exact, and no tempering themselves")


@dataclass(frozen=True)
class TemperedTransition:
    """A proposal by way of higher temperatures: up the ladder and down again, `operations` at each level.

    inverse_temperatures  1 and descending; they multiply that of the run
    """

    inverse_temperatures: tuple[float, ...]
    operations: tuple[Operation, ...]
    op: Literal["tempered-transition"] = "tempered-transition"
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    def __post_init__(self) -> None:
        _check_ladder(self.inverse_temperatures)
        reversible = (SampleSigmas, SampleNoise, Heatbath, Negate, Hybrid, Metropolis)
        names = ", ".join(kind.op for kind in reversible)
        _check_inner(self.operations, reversible, f"must be reversible ({names})")


Operation = (
    SampleSigmas
    | SampleNoise
    | RandomGrid
    | Rescale
    | Heatbath
    | RadialHeatbath
    | Negate
    | Hybrid
    | HybridMarginal
    | HybridMax
    | Dynamic
    | Metropolis
    | Metropolis1
    | Slice1
    | SimulatedTempering
    | TemperedTransition
    | Repeat
)


def unrolled(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The operations of one iteration in order, every `repeat` written out."""
    flat: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Repeat):
            flat.extend(unrolled(operation.operations) * operation.times)
        else:
            flat.append(operation)
    return tuple(flat)


def inner_operations(operation: Operation) -> tuple[Operation, ...]:
    """The operations that are inside one which is itself no `repeat`."""
    if isinstance(operation, SimulatedTempering | TemperedTransition):
        return operation.operations
    return ()


Tunable = Hybrid | HybridMarginal
"""The operations whose steps and stepsize may be "auto"."""


def automatic(operations: tuple[Operation, ...]) -> tuple[Tunable, ...]:
    """The different operations with something automatic, in order, those inside others too."""
    found: dict[Tunable, None] = {}
    for operation in operations:
        if isinstance(operation, Tunable) and AUTO in (operation.steps, operation.stepsize):
            found[operation] = None
        inside = operation.operations if isinstance(operation, Repeat) else inner_operations(operation)
        found |= dict.fromkeys(automatic(inside))
    return tuple(found)
