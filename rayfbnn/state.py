"""Records of a chain and its trajectory, and the protocols between models, samplers and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rayfbnn.arrays import Array
from rayfbnn.streams import Streams


@dataclass(frozen=True)
class ChainState:
    """The state of a batch of chains. It caches no energy, which a Gibbs update would make stale.

    position   (n_chains, n_parameters)  float32 or float64
    momentum   (n_chains, n_parameters)  same dtype; unit mass in coordinates scaled by the stepsizes
    precisions (n_chains, n_precisions)  float64; 1/sigma**2 of every explicit level of every group
    """

    position: Array
    momentum: Array
    precisions: Array

    def of_chains(self, chosen: Array) -> ChainState:
        """Return the state of the chains that a mask or numbers of rows select."""
        return ChainState(self.position[chosen], self.momentum[chosen], self.precisions[chosen])

    def with_chains(self, part: ChainState, chosen: Array) -> ChainState:
        """Return a copy with the chains that `chosen` selects replaced by the chains of `part`."""
        whole = ChainState(self.position.copy(), self.momentum.copy(), self.precisions.copy())
        for name in ("position", "momentum", "precisions"):
            getattr(whole, name)[chosen] = getattr(part, name)
        return whole


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The current point of a batch of trajectories, and their stepsizes.

    position   (n_chains, n_parameters)  float32 or float64
    momentum   (n_chains, n_parameters)  same dtype
    precisions (n_chains, n_precisions)  float64; constant along a trajectory
    stepsizes  (n_chains, n_parameters)  same dtype; a chain with negative stepsizes runs backwards
    """

    position: Array
    momentum: Array
    precisions: Array
    stepsizes: Array

    def moved(self, position: Array, momentum: Array) -> Trajectory:
        """Return the trajectory at another position and momentum, both of the same shape as before."""
        return Trajectory(position, momentum, self.precisions, self.stepsizes)


class Target(Protocol):
    """A density to sample from, given by its potential energy -log density, for a batch of chains."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters: the length of a position."""

    def potential_and_gradient(
        self,
        position: Array,
        precisions: Array,
        *,
        partition: Array | None = None,
        n_partitions: int = 1,
    ) -> tuple[Array, Array]:
        """Return the potential (n_chains,) in float64, and its gradient in the position's dtype.

        The gradient is (n_chains, n_parameters). With `partition`, (n_chains,) of integers from 0 to
        n_partitions - 1, both belong to each chain's own approximation E_k = prior + n_partitions * (data
        terms of block k), Neal (1996) eq. 3.37.
        """

    def potential(self, position: Array, precisions: Array) -> Array:
        """Return the potential alone, (n_chains,) float64."""

    def stepsizes(self, precisions: Array) -> Array:
        """Return a stepsize for each parameter, (n_chains, n_parameters), from the precisions alone."""


class Advance(Protocol):
    """A function that runs part of a trajectory: mcmc.leapfrog.advance in array code, or a kernel."""

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps, and return the trajectory at their end and the full potential there.

        With `order` (n_chains, n_partitions) each step is a multi-leap of partial gradients. The potential is
        (n_chains,) float64, and +inf where it is not finite. The arrays of `trajectory` are left unchanged.

        With n_steps = 0 the trajectory stays where it is. An accept decision needs the potential at its start
        from the same Advance as the potential at its end, because two implementations round differently.
        """


class Kick(Protocol):
    """A function that kicks momenta by a gradient: mcmc.leapfrog.kick in array code, or a kernel."""

    def __call__(self, target: Target, trajectory: Trajectory, *, share: float) -> Array:
        """Return p - share * s dE/dq, (n_chains, n_parameters), with momentum p and stepsizes s.

        It takes one gradient and computes no potential. The arrays of `trajectory` are left unchanged.
        """


class Update(Protocol):
    """One update of a batch of chains: `state, info = update(state, streams)`."""

    def __call__(self, state: ChainState, streams: Streams) -> tuple[ChainState, Any]:
        """Return the state after the update, and what happened."""


class TemperedTarget(Target, Protocol):
    """A target whose potential is the sum of a fixed part and of data_energy, which tempering scales.

    It provides the updates of its model, because these depend on the temperature too.
    """

    def data_energy(self, position: Array, precisions: Array) -> Array:
        """Return the part of the potential that tempering scales, (n_chains,) float64."""

    def tempered(self, factor: float | Array) -> TemperedTarget:
        """Return this target with data_energy multiplied by `factor`, a number or one for each chain."""

    @property
    def updates(self) -> Mapping[str, Callable[..., tuple[ChainState, Any]]]:
        """Updates by the names of their operations. Some take the settings of their operation."""

    @property
    def reversed_updates(self) -> Mapping[str, Callable[..., tuple[ChainState, Any]]]:
        """The reverse of each update; a reversible update reverses itself."""


class CaseBatches(Protocol):
    """The batches of all chains, numbered from 0 through all passes.

    For each pass, each chain draws a random permutation of all cases and cuts it into batches.
    """

    @property
    def size(self) -> int:
        """The largest number of cases in a batch."""

    def batch(self, number: int) -> Array:
        """Return the cases of a batch, (n_chains, n)."""

    def place(self) -> tuple[int, int, int, int]:
        """Return the `Streams.place` of the first pass, where compiled code starts to draw the permutations.

        The iteration increases by one for each later pass. With n batches in a pass, batch k of it begins at
        floor(n_cases k/n).
        """

    def sizes(self, first: int, n: int) -> Array:
        """Return the number of cases in each of n batches from batch `first` on: (n,) int64, on the host."""


class MinibatchTarget(Target, Protocol):
    """A target of a prior times one factor for each case, which can be restricted to some of the cases."""

    @property
    def n_cases(self) -> int:
        """Number of cases."""

    def batches(self, streams: Streams, size: int) -> CaseBatches:
        """Return the batches of each chain, which have at most `size` cases."""

    def of_cases(self, cases: Array, weight: float) -> Target:
        """Return the target of some cases: the whole prior, and `weight` times the data terms of the cases.

        cases  (n_chains, n) integers, different for each chain
        """


class ConditionalTarget(Target, Protocol):
    """The density of some coordinates of a state, with the others integrated out.

    It may depend on auxiliary variables that were drawn for it. Its coordinates are parameters, and may be
    logarithms of precisions.
    """

    def start(self, state: ChainState, streams: Streams) -> ChainState:
        """Return these coordinates and their momentum, which is drawn for coordinates that have none."""

    def complete(self, state: ChainState, moved: ChainState, streams: Streams) -> ChainState:
        """Put the moved coordinates back into the state, and draw everything that is integrated out."""


class Marginal(Protocol):
    """A target with some variables integrated out, before any auxiliary variables are drawn."""

    def given(self, state: ChainState, streams: Streams) -> ConditionalTarget:
        """Draw the auxiliary variables given the state, and return the density given them.

        The density and its stepsizes may depend on the variables that are integrated out only through the
        auxiliary variables.
        """


@dataclass(frozen=True)
class LadderEnds:
    """The quantity that differs between levels of a ladder, and where the ladder ends.

    kind  "noise": the coordinate x of a level is the log of a noise precision, which is held there; the top
          has the noise integrated out. "powers": x is the log of the power of the likelihood
    top   the coordinate of the posterior: infinite if its noise is free
    """

    kind: Literal["noise", "powers"]
    top: float


@dataclass(frozen=True)
class ExpectedPrecisions:
    """The distributions q(tau) of all precisions, given the expected squares of the values they govern.

    mean   (n_chains, n_precisions)  E tau; fixed precisions keep their values
    shape, rate  (n_chains, n_precisions)  parameters of each Gamma distribution. NaN if q(tau) is not a
                 Gamma distribution: for fixed precisions, for rectified Gaussian priors, and for common
                 precisions above the precisions of units
    bound  (n_chains,)  the change of a bound on log p(data) at the precisions E tau when the precisions
           become variables: the sum of (E log tau - log E tau)/2 over the Gaussian values, minus the
           divergences from q(tau) to the prior
    """

    mean: Array
    shape: Array
    rate: Array
    bound: Array


@dataclass(frozen=True)
class Reestimated:
    """Precisions after an update, and the term that integrating over them adds to the log evidence.

    precisions  (n_chains, n_precisions)
    log_width   (n_chains,): log prior density of the log precisions plus the log width of the peak, at the
                precisions before the update
    """

    precisions: Array
    log_width: Array


@dataclass(frozen=True)
class ProposalsInfo:
    """Information on an update that makes several Metropolis proposals.

    accepted  (n_chains,) share of the proposals that were accepted; NaN if there were none
    """

    accepted: Array


@dataclass(frozen=True)
class HMCInfo:
    """Information on one hybrid Monte Carlo or Metropolis update, one value for each chain.

    accepted      (n_chains,) bool; or the share of the parameters, where they are updated one at a time
    energy_change (n_chains,) float64: the change in total energy (free energy of the windows) that was tested
    diverged      (n_chains,) bool: whether an energy on the trajectory was not finite
    """

    accepted: Array
    energy_change: Array
    diverged: Array


@dataclass(frozen=True)
class UncorrectedInfo:
    """Information on a trajectory that is neither accepted nor rejected, one value for each chain.

    energy_change (n_chains,) float64: change of the total energy, which indicates the bias of the draws
    diverged      (n_chains,) bool: the energy at the end was not finite
    """

    energy_change: Array
    diverged: Array
