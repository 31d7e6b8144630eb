"""The contract of an approximation: its settings, its fit, and the questions that the two answer.

An approximation is one file: a frozen dataclass that derives from `Approximation`, and its fit, which derives
from `Fit`. `approximate/registry.py` lists all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from rayfbnn.approximate.distributions import Distribution
from rayfbnn.approximate.keys import DRAWS, STARTS, key, limits_of
from rayfbnn.approximate.target_protocols import CurvedTarget, PropagatedTarget
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.state import Advance
from rayfbnn.streams import Streams

OBJECTIVE = "objective"
"""Name of the array (n_starts, n_bins) in a stored state that has the course of the objective."""
LOG_EVIDENCE = "log_evidence"
"""Name of the array (n_starts,) in a stored state that has the log evidence, or a bound on it."""

Dtype: TypeAlias = Literal["float32", "float64"]
State: TypeAlias = Mapping[str, Array]
"""The state of a fit: arrays (n_starts, ...) by name."""


class FitTarget(CurvedTarget, PropagatedTarget, Protocol):
    """The posterior that an approximation is fitted to, with the reasons why it may lack something.

    A reason is a sentence that says what to do; None means that nothing is missing.
    """

    @property
    def why_not_expected(self) -> str | None:
        """The reason why precisions have no distributions given expected squares."""
        ...

    @property
    def why_not_curved(self) -> str | None:
        """The reason why the curvature is not known."""
        ...

    @property
    def why_not_propagated(self) -> str | None:
        """The reason why moments cannot be propagated through the network."""
        ...


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
    all of them have defaults, and numbers have limits (keys.py). `__post_init__` checks keys that depend on
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


@dataclass(frozen=True)
class StepInfo:
    """Information on one step.

    objective  (n_starts,) the objective of each start
    """

    objective: Array


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
    def step(self, state: State, streams: Streams) -> tuple[State, StepInfo]:
        """Take step streams.iteration, counted from 1, of all starts."""

    def steps(self, state: State, streams: Streams, most: int) -> tuple[State, Array]:
        """Take up to `most` steps from number streams.iteration on: a single one, unless overridden.

        Returns the state and the objectives (n_steps, n_starts). The result of a step must not depend on how
        many steps are taken at once.
        """
        state, info = self.step(state, streams)
        return state, info.objective[None]

    def is_complete(self, state: State) -> bool:
        """Return True if further steps would change nothing that matters: never, unless overridden."""
        return False

    def result(self, state: State, streams: Streams) -> dict[str, Array]:
        """Return those `results` that the method gives, after the last step."""
        return {}

    @abstractmethod
    def distribution(self, state: State) -> Distribution:
        """Return the distribution that draws are made from."""
