"""Records of a chain and its trajectory, and the protocols by which models, samplers and kernels meet."""

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


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Where the trajectories of a batch of chains have got to, and the stepsizes with which they move on.

    position   (n_chains, n_parameters)  float32 or float64
    momentum   (n_chains, n_parameters)  same dtype
    precisions (n_chains, n_precisions)  float64; constant along a trajectory
    stepsizes  (n_chains, n_parameters)  same dtype as position; a chain whose stepsizes are negative runs
                                         backwards
    """

    position: Array
    momentum: Array
    precisions: Array
    stepsizes: Array

    def moved(self, position: Array, momentum: Array) -> Trajectory:
        """The trajectory at another position and momentum, both of the same shape as before."""
        return Trajectory(position, momentum, self.precisions, self.stepsizes)


class Target(Protocol):
    """A density to sample from, given by its potential energy -log density, for a batch of chains."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters: the length of a position."""
        ...

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
    """Runs part of a trajectory. mcmc.leapfrog.advance does so in array code; kernels replace it."""

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps: the trajectory where it then is, and the full potential there.

        With `order` (n_chains, n_partitions) each step is a multi-leap of partial gradients. The potential is
        (n_chains,) float64, and +inf where it is not finite. The arrays of `trajectory` are left unchanged.

        With n_steps = 0 the trajectory stays where it is. An accept decision needs the potential at its start
        from the same Advance as the potential at its end, because two implementations round differently.
        """
        ...


class Kernel(Protocol):
    """One update of a batch of chains: `state, info = kernel(state, streams)`."""

    def __call__(self, state: ChainState, streams: Streams) -> tuple[ChainState, Any]:
        """Return the state after the update, and what happened."""
        ...


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


@dataclass(frozen=True)
class UncorrectedInfo:
    """What one trajectory did that is neither accepted nor rejected, one value a chain.

    energy_change (n_chains,) float64: change of the total energy, by which the bias of draws may be judged
    diverged      (n_chains,) bool: the energy at the end was not finite
    """

    energy_change: Array
    diverged: Array


@dataclass(frozen=True)
class ExcursionInfo:
    """What one excursion to other temperatures did, one value a chain.

    diverged  (n_chains,) number of inner updates that met an energy that was not finite
    """

    diverged: Array
