"""What a chain is made of, and the two protocols by which models and samplers meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rayfbnn.arrays import Array
from rayfbnn.streams import Streams


@dataclass(frozen=True)
class ChainState:
    """The state of a batch of chains. Nothing is cached: an energy kept across a Gibbs update is stale.

    position   (n_chains, n_parameters)  float32 or float64
    momentum   (n_chains, n_parameters)  same dtype; unit mass in coordinates scaled by the stepsizes
    precisions (n_chains, n_precisions)  float64; 1/sigma**2 of every explicit level of every group
    """

    position: Array
    momentum: Array
    precisions: Array


class Target(Protocol):
    """A density to sample from, given by its potential energy -log density, for a batch of chains."""

    @property
    def n_parameters(self) -> int: ...

    def potential_and_gradient(
        self,
        position: Array,
        precisions: Array,
        *,
        partition: Array | None = None,
        n_partitions: int = 1,
    ) -> tuple[Array, Array]:
        """Potential (n_chains,) in float64 and its gradient (n_chains, n_parameters) in position's dtype.

        With `partition` (n_chains,) of integers in 0 .. n_partitions - 1, each chain gets the gradient of
        its own approximation E_k = prior + n_partitions * (data terms of block k), Neal (1996) eq. 3.37;
        the potential returned is then E_k's.
        """
        ...

    def potential(self, position: Array, precisions: Array) -> Array:
        """Potential alone, (n_chains,) float64."""
        ...

    def stepsizes(self, precisions: Array) -> Array:
        """A stepsize for each parameter, (n_chains, n_parameters), from the precisions alone."""
        ...


class Advance(Protocol):
    """Runs part of a trajectory: the plain one is mcmc.leapfrog.advance, compiled ones replace it."""

    def __call__(
        self,
        target: Target,
        position: Array,
        momentum: Array,
        precisions: Array,
        stepsizes: Array,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """n_steps leapfrog steps (multi-leaps if `order` (n_chains, n_partitions) is given), or none at all.

        An accept decision compares potentials of one Advance: those of another round differently. So with
        n_steps = 0 there is the potential where the trajectory begins, beside what was given.

        Returns position, momentum, and the full potential (n_chains,) float64 at the end; +inf where it is
        not finite. A chain whose stepsizes are negative runs backwards.
        """
        ...


class Kernel(Protocol):
    """One update of a batch of chains: `state, info = kernel(state, streams)`."""

    def __call__(self, state: ChainState, streams: Streams) -> tuple[ChainState, Any]: ...


class TemperedTarget(Target, Protocol):
    """A target whose potential is a part that stays plus data_energy, the part that tempering scales.

    It comes with the updates that belong to its model, which depend on the temperature too.
    """

    def data_energy(self, position: Array, precisions: Array) -> Array:
        """The part of the potential that tempering scales, (n_chains,) float64."""
        ...

    def tempered(self, factor: float | Array) -> TemperedTarget:
        """The same with data_energy multiplied by `factor`, a number or (n_chains,) of them."""
        ...

    @property
    def updates(self) -> Mapping[str, Callable[..., tuple[ChainState, Any]]]:
        """By the names of their operations: kernels, or what becomes one with an operation's settings."""
        ...

    @property
    def reversed_updates(self) -> Mapping[str, Callable[..., tuple[ChainState, Any]]]:
        """The reversals of the updates, of those that are not reversible in themselves too."""
        ...


class ConditionalTarget(Target, Protocol):
    """The density of some of a state's coordinates, others integrated out, given what was drawn for it.

    Its coordinates are parameters, and may be logarithms of precisions.
    """

    def start(self, state: ChainState, streams: Streams) -> ChainState:
        """These coordinates of the state, and their momentum: the state's, drawn where it has none."""
        ...

    def complete(self, state: ChainState, moved: ChainState, streams: Streams) -> ChainState:
        """The state with `moved` in place of what `start` took, and a draw of all that is integrated out."""
        ...


class Marginal(Protocol):
    """What is integrated out of a target, whatever the state."""

    def given(self, state: ChainState, streams: Streams) -> ConditionalTarget:
        """The density of what is kept, given auxiliary variables drawn from their conditional distribution.

        Neither it nor its stepsizes may depend on what it integrates out but through these.
        """
        ...


class MarginalizableTarget(Target, Protocol):
    """A target of which some variables can be integrated out."""

    def marginal(self, over: tuple[str, ...]) -> Marginal:
        """Without "outputs" or "precisions" (operations.HybridMarginal); ConfigError where that cannot be."""
        ...


@dataclass(frozen=True)
class ProposalsInfo:
    """What an update of several Metropolis proposals did: the share accepted, (n_chains,), NaN of none."""

    accepted: Array


@dataclass(frozen=True)
class HMCInfo:
    """What one hybrid Monte Carlo or Metropolis update did, one value a chain.

    accepted      (n_chains,) bool; where parameters are updated one at a time, the share of them
    energy_change (n_chains,) float64: the change in total energy (free energy of the windows) that was tested
    diverged      (n_chains,) bool: an energy on the trajectory was not finite
    """

    accepted: Array
    energy_change: Array
    diverged: Array
