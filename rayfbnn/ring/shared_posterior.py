"""The posterior of a run with training cases divided into parts, as its home sees it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Never, Self

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.model import stepsize
from rayfbnn.model.integrated import WithoutPrecisions
from rayfbnn.model.likelihood.dispersed_count import Density
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.ring.message import Question
from rayfbnn.ring.parts import Part
from rayfbnn.ring.rounds import Ring
from rayfbnn.state import Marginal, Target, Trajectory
from rayfbnn.streams import Streams


@dataclass(frozen=True, eq=False, kw_only=True)
class SharedPosterior(SampledPosterior):
    """A posterior without training cases, which asks the parts for everything that depends on them.

    Its inputs and targets are those of a few cases that tuning uses (`quantities`). It keeps the constants of
    all cases: their number, the number of observed targets, the scale of the targets, and the mean squares of
    the inputs and the typical curvature, which determine stepsizes.

    ring         the parts of the training cases
    all_counts   `counts` of all cases
    scale_of_all `target_scale` of all cases
    """

    ring: Ring
    all_counts: Array | int
    scale_of_all: float

    @classmethod
    def from_whole(cls, whole: SampledPosterior, ring: Ring, *, inputs: Array | None = None) -> Self:
        """Return the shared posterior of a whole one, with the constants of its cases.

        inputs  the inputs of the few cases, needed if `whole` does not have those of all cases
        """
        columns = stepsize.some_columns(whole.targets.shape[-1])
        values = {field.name: getattr(whole, field.name) for field in fields(whole) if field.init}
        kept: dict[str, Any] = {
            "inputs": np.ascontiguousarray(whole.inputs[:, columns] if inputs is None else inputs),
            "targets": np.ascontiguousarray(whole.targets[..., columns]),
            "observed": None if whole.observed is None else whole.observed[..., columns],
            "covariates": None,
            "starts": None,
            "blocks": {},
        }
        return cls(**(values | kept), ring=ring, all_counts=whole.counts, scale_of_all=whole.target_scale)

    @property
    def counts(self) -> Array | int:
        """Number of cases; if targets are missing, one for each target, (n_chains or 1, n_targets)."""
        return self.all_counts

    @property
    def target_scale(self) -> float:
        """The standard deviation of real targets, or 1 for other targets."""
        return self.scale_of_all

    def potential_and_gradient(
        self,
        position: Array,
        precisions: Array,
        *,
        partition: Array | None = None,
        n_partitions: int = 1,
    ) -> tuple[Array, Array]:
        """Return the potential and its gradient; `RingAdvance` handles partial gradients."""
        assert partition is None, "parts compute partial gradients"
        data_energy, gradient = self.ring.gradient(position, precisions)
        return self.prior_energy(position, precisions) + data_energy, gradient

    def data_energy(self, position: Array, precisions: Array) -> Array:
        """Return -b log likelihood, (n_chains,) float64: the energies of the parts, added in their order."""
        return self.ring.ask(Part.data_energy, position, precisions)

    def log_likelihood(self, position: Array, precisions: Array) -> Array:
        """Return the log likelihood of the training cases with all its constants, (n_chains,) float64."""
        return -self.data_energy(position, precisions) / self.inverse_temperature

    def noise_sums(self, position: Array) -> gibbs.Sums:
        """Return the sums over the residuals of all cases, which the parts compute."""
        return _SumsOfParts(self, position)

    def density_of_targets(self, position: Array) -> Density:
        """Return the function that gives each target's log density given log shapes."""
        nothing = np.zeros((len(position), self.n_precisions))  # the question has the shapes
        return lambda x: self.ring.ask(partial(Part.target_densities, x=x), position, nothing)

    # These methods need all cases in one place; with the few cases here they would give a wrong answer.

    def marginal(self, over: tuple[str, ...]) -> Marginal:
        """Integrate common precisions out, which needs no cases; refuse to integrate the outputs out."""
        if "outputs" in over:
            _needs_a_whole("integrating the outputs out")
        return super().marginal(over)

    def batches(self, streams: Streams, size: int) -> Never:
        """Refuse: batches are drawn from all cases."""
        _needs_a_whole("a batch")

    def of_cases(self, cases: Array, weight: float) -> Never:
        """Refuse: the cases are elsewhere."""
        _needs_a_whole("a batch")

    def residuals(self, position: Array) -> Never:
        """Refuse: `_SumsOfParts` asks the parts for sums of residuals."""
        _needs_a_whole("a residual of each case")

    def rejection_proposal(self, streams: Streams) -> Never:
        """Refuse: the likelihood of all cases decides whether a proposal is accepted."""
        _needs_a_whole("rejection sampling")

    def sample_targets(self, position: Array, precisions: Array, streams: Streams) -> Never:
        """Refuse: targets are drawn at the inputs of all cases."""
        _needs_a_whole("drawing targets")

    def with_targets(self, targets: Array) -> Never:
        """Refuse: the targets are with the parts."""
        _needs_a_whole("a change of the targets")


def _needs_a_whole(what: str) -> Never:
    raise SamplingError(f"{what} needs all training cases in one place, but they are divided into parts")


@dataclass(frozen=True, eq=False)
class _SumsOfParts:
    """The sums over all cases that updates of the noise need, from the answers of every part.

    is_together  whether all targets are one unit
    """

    posterior: SharedPosterior
    position: Array
    is_together: bool = False

    @property
    def counts(self) -> Array:
        """The sum of the weights, (n_chains, n_units)."""
        power = np.reshape(self.posterior.inverse_temperature, (-1, 1))
        return self._of_units(np.broadcast_to(power * self.posterior.counts, self._shape))

    def sum_of_squares(self) -> Array:
        """Return the sums of squared residuals."""
        return self._asked(Part.squared_residuals)

    def sum_of_t_precisions(self, current: Array, alpha: float, streams: Streams) -> Array:
        """Return the sums of precisions of single cases, which the parts draw."""
        current = np.array(np.broadcast_to(current, self._shape))
        return self._asked(partial(Part.t_precisions, current=current, alpha=alpha, streams=streams))

    def sum_of_t_densities(self, x: Array, alpha: float) -> Array:
        """Return the sums of log densities, given the logs x of precisions."""
        x = np.array(np.broadcast_to(x, self._shape))
        return self._asked(partial(Part.t_densities, x=x, alpha=alpha))

    def together(self) -> Self:
        """Return the sums over all targets."""
        return replace(self, is_together=True)

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.position), self.posterior.n_targets

    def _asked(self, question: Question) -> Array:
        nothing = np.zeros((len(self.position), self.posterior.n_precisions))  # the question has its own
        return self._of_units(self.posterior.ring.ask(question, self.position, nothing))

    def _of_units(self, of_targets: Array) -> Array:
        return of_targets.sum(axis=1, keepdims=True) if self.is_together else of_targets


@dataclass(frozen=True)
class RingAdvance:
    """An `Advance` for shared posteriors, with or without common precisions integrated out."""

    def __call__(
        self, target: Target, trajectory: Trajectory, *, n_steps: int, order: Array | None = None
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        over: tuple[str, ...] = ()
        posterior = target
        if isinstance(target, WithoutPrecisions):
            over, posterior = ("precisions",), target.posterior
        assert isinstance(posterior, SharedPosterior)
        assert isinstance(target, SharedPosterior | WithoutPrecisions)
        if n_steps == 0:
            end = trajectory
            data_energy = posterior.data_energy(trajectory.position, trajectory.precisions)
        else:
            end, data_energy = posterior.ring.travel(trajectory, n_steps=n_steps, order=order, over=over)
        with np.errstate(all="ignore"):
            potential = target.prior_energy(end.position, end.precisions) + data_energy
            return end, finite_or_infinite(potential)
