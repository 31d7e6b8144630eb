"""The contract of an approximation: its settings, its fit, and the questions that the two answer.

An approximation is one file: a frozen dataclass that derives from `Approximation`, and its fit, which derives
from `Fit`. `approximate/registry.py` lists all of them.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args, get_type_hints

import numpy as np

from rayfbnn.approximate.distributions import Distribution
from rayfbnn.approximate.target_protocols import FitTarget
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.state import Advance
from rayfbnn.streams import Streams

_LIMITS = "limits"
_MOST_WHOLE = 2**31 - 1  # compiled code counts steps in 32 bits


@dataclass(frozen=True)
class Limits:
    """The limits of a number.

    words         the right values, as a message ends with them: "must be <words>, got 0"
    least, most   bounds that are allowed themselves
    above, below  bounds that are not allowed themselves
    """

    words: str
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def allow(self, value: float) -> bool:
        """Return True if the value is within the limits; NaN and infinity never are."""
        return self.least <= value <= self.most and self.above < value < self.below


STARTS = Limits("a whole number from 1 to 100000", least=1, most=100_000)
COUNT = Limits("a whole number of at least 1", least=1, most=_MOST_WHOLE)
DRAWS = Limits("a whole number of at least 1, such as 1000", least=1, most=_MOST_WHOLE)
POSITIVE = Limits("a positive number, such as 0.01", above=0)
SHARE = Limits("a number of at least 0 and below 1", least=0, below=1)


def key(default: Any, limits: Limits) -> Any:
    """Return the dataclass field of a key that is a number within limits; None may be a default as well.

    Keys that are true or false, or one of several texts, need no limits, because their types are enough.
    """
    return dataclasses.field(default=default, metadata={_LIMITS: limits})


def limits_of(kind: type) -> dict[str, Limits]:
    """Return the limits of an approximation's keys by name, for those keys that have limits."""
    keys = dataclasses.fields(kind)
    return {one.name: one.metadata[_LIMITS] for one in keys if _LIMITS in one.metadata}


def right_values(kind: type) -> dict[str, str]:
    """Return the right values of each key of an approximation in words."""
    types, limits = get_type_hints(kind), limits_of(kind)
    names = [one.name for one in dataclasses.fields(kind)]
    return {name: limits[name].words if name in limits else _choices(types[name]) for name in names}


def _choices(type_of_key: Any) -> str:
    return "true or false" if type_of_key is bool else one_of(get_args(type_of_key))


def one_of(choices: tuple[str, ...]) -> str:
    """Return choices in words, such as: "adam", "sgd" or "leapfrog"."""
    *first, last = (f'"{choice}"' for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last


OBJECTIVE = "objective"
"""Name of the array (n_starts, n_bins) in a stored state that has the course of the objective."""
LOG_EVIDENCE = "log_evidence"
"""Name of the array (n_starts,) in a stored state that has the log evidence, or a bound on it."""

Dtype: TypeAlias = Literal["float32", "float64"]
State: TypeAlias = Mapping[str, Array]
"""The state of a fit: arrays (n_starts, ...) by name."""


@dataclass(frozen=True)
class Timing:
    """The measurements of a forecast, and how often they count.

    measured     the approximation with its shortest steps, which the forecast measures
    n_steps      number of these steps that a fit is likely to take
    is_together  True if the starts of a batch are measured together; False if one start stands for each
    n_densities  number of log likelihoods of each start that the log evidence at the end takes; 0 if the
                 forecast leaves the log evidence out
    is_most      True if the fit may be complete before its last step
    """

    measured: Approximation
    n_steps: int
    is_together: bool = True
    n_densities: int = 0
    is_most: bool = False


@dataclass(frozen=True)
class Approximation(ABC):
    """One kind of approximation, with its settings.

    A subclass is a frozen dataclass. Its fields are the keys of its table [methods.NAME] in a configuration;
    all of them have defaults, and numbers have limits (`key`). `__post_init__` checks keys that depend on
    each other.

    starts  number of independent fits, which are the chains of the store
    draws   number of draws of each start

    These class attributes describe the approximation:

    name          name of the method and of its table
    title         description of the method in words
    objective     description of its objective in words
    dtype         the only precision of networks that it runs in; None if the configuration chooses
    has_density   False if draws are single points without a density, which say nothing about uncertainty
    is_objective_evidence  True if the objective estimates the log evidence
    setting_for_networks  for an approximation with linear predictions (`linear_about`): the setting that lets
                  draws predict by their own networks, for messages
    """

    starts: int = key(4, STARTS)
    draws: int = key(1000, DRAWS)

    name: ClassVar[str]
    title: ClassVar[str]
    objective: ClassVar[str]
    dtype: ClassVar[Dtype | None] = None
    has_density: ClassVar[bool] = True
    is_objective_evidence: ClassVar[bool] = False
    setting_for_networks: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the limits of all numbers."""
        for name, limits in limits_of(type(self)).items():
            value = getattr(self, name)
            if value is not None and not limits.allow(value):
                raise self.wrong(name, f"must be {limits.words}, got {value:.15g}")

    def wrong(self, name: str, what: str) -> ConfigError:
        """Return the error for a wrong key."""
        return ConfigError(f"methods.{self.name}.{name}: {what}")

    def refuse(self, reason: str | None) -> None:
        """Raise ConfigError, naming the method, if there is a reason to refuse it."""
        if reason is not None:
            raise ConfigError(f"method {self.name}: {reason}")

    @property
    @abstractmethod
    def n_steps(self) -> int:
        """The largest number of steps of a fit."""

    @abstractmethod
    def check_covers(self, target: FitTarget, *, n_together: int) -> None:
        """Raise ConfigError, naming the method or the key, if the posterior cannot be approximated.

        n_together  number of starts that are in memory at once
        """

    @abstractmethod
    def build(self, target: FitTarget, advance: Callable[[], Advance]) -> Fit:
        """Build the fit to a posterior.

        advance  chooses the code that runs trajectories, which may take steps of the fit as well
        """

    def timing(self) -> Timing:
        """Return the measurements of a forecast: all steps as they are, unless overridden."""
        return Timing(self, self.n_steps)

    @abstractmethod
    def gradients(self, state: State, *, n_cases: int, n_outputs: int) -> float:
        """Count the gradients of all cases that the fit took for all starts, given its last state.

        A gradient of a batch, or without held-out cases, counts as their share of the cases.
        """

    def why_unusable(self, state: State) -> str | None:
        """Return why the fit has not led to an approximation, and what to do; None if it has."""
        return None

    def shares(self, state: State) -> Array:
        """Return the share of each start in predictions, (n_starts,): equal shares, unless overridden.

        state  the last state, on the host, of a fit that is usable (`why_unusable`)
        """
        n_starts = len(state[OBJECTIVE])
        return np.full(n_starts, 1 / n_starts)

    @property
    def linear_about(self) -> str | None:
        """The array of the state about which outputs of draws are linear; None if they are not linear.

        The array is (n_starts, n_parameters). Without it draws predict by their own networks.
        """
        return None


class Fit(ABC):
    """The fit of an approximation to one posterior; the chain axis is that of starts.

    settings  the approximation
    results   names of the arrays (n_starts,) that `result` may return; until then a stored state has NaN
    """

    settings: Approximation
    results: ClassVar[tuple[str, ...]] = (LOG_EVIDENCE,)

    @abstractmethod
    def initial(self, streams: Streams) -> State:
        """Return the state before the first step."""

    @abstractmethod
    def step(self, state: State, streams: Streams) -> tuple[State, Array]:
        """Take step streams.iteration, counted from 1; return the state and the objectives (n_starts,)."""

    def steps(self, state: State, streams: Streams, most: int) -> tuple[State, Array]:
        """Take up to `most` steps from number streams.iteration on: a single one, unless overridden.

        Returns the state and the objectives (n_steps, n_starts). The result of a step must not depend on how
        many steps are taken at once.
        """
        state, objective = self.step(state, streams)
        return state, objective[None]

    def is_complete(self, state: State) -> bool:
        """Return True if further steps would change nothing that matters: never, unless overridden."""
        return False

    def result(self, state: State, streams: Streams) -> dict[str, Array]:
        """Return those `results` that the method gives, after the last step."""
        return {}

    @abstractmethod
    def distribution(self, state: State) -> Distribution:
        """Return the distribution that draws are made from."""


_MEMBERS = Limits(
    "a whole number of at least 1 and at most starts, or left out for all", COUNT.least, COUNT.most
)


@dataclass(frozen=True)
class WithMembers(Approximation):
    """An approximation that estimates a log evidence for each start.

    members  number of starts that predictions use: those of the greatest log evidence; None for all
    """

    members: int | None = key(None, _MEMBERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members is not None and self.members > self.starts:
            raise self.wrong(
                "members", f"must be at most {self.starts}, the number of starts, got {self.members}"
            )

    def shares(self, state: State) -> Array:
        """Return equal shares of the members, or of all starts if no log evidence is known."""
        log_evidence = state[LOG_EVIDENCE]
        n_usable = int(np.isfinite(log_evidence).sum())
        if self.members is None or n_usable == 0:
            return super().shares(state)
        return member_weights(log_evidence, np.zeros(len(log_evidence)), min(self.members, n_usable))


def member_weights(
    log_evidence: Array,
    least_eigenvalue: Array,
    members: int,
    how: Literal["equal", "evidence"] = "equal",
) -> Array:
    """Return the weight of each start, (n_starts,): zero except for the members of the greatest evidence.

    Starts with a negative eigenvalue of the exact Hessian come after all others, because they are no modes.

    log_evidence, least_eigenvalue  (n_starts,)
    members                         number of starts with a weight
    how                             "equal", or "evidence" for weights in proportion to the evidence
    """
    xp = array_namespace(log_evidence)
    is_mode = least_eigenvalue >= 0
    lowest = xp.where(xp.isfinite(log_evidence), log_evidence, -1e300).min()
    rank = xp.lexsort(xp.stack([-log_evidence, ~is_mode]))
    chosen = xp.zeros(len(rank), dtype=bool)
    chosen[rank[:members]] = True
    if how == "equal":
        return chosen / chosen.sum()
    shifted = xp.where(chosen, log_evidence, lowest)
    weights = xp.where(chosen, xp.exp(shifted - shifted[chosen].max()), 0.0)
    return weights / weights.sum()
