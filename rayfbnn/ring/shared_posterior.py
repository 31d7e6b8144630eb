"""The posterior of a run with training cases divided into parts, as its home sees it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Never, Self

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.model import stepsize
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.integrated import WithoutPrecisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import dispersion, gibbs, noise_sums, random_grid
from rayfbnn.ring.message import DataEnergy, SquaredResiduals, TargetDensities, TDensities, TPrecisions
from rayfbnn.ring.rounds import Ring
from rayfbnn.state import ChainState, Marginal, Target, Trajectory
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

    def potential(self, position: Array, precisions: Array) -> Array:
        """Return the potential alone, (n_chains,) float64."""
        return self.prior_energy(position, precisions) + self.data_energy(position, precisions)

    def data_energy(self, position: Array, precisions: Array) -> Array:
        """Return -b log likelihood, (n_chains,) float64: the energies of the parts, added in their order."""
        return self.ring.ask(DataEnergy(), position, precisions)

    def log_likelihood(self, position: Array, precisions: Array) -> Array:
        """Return the log likelihood of the training cases with all its constants, (n_chains,) float64."""
        return -self.data_energy(position, precisions) / self.inverse_temperature

    def sample_sigmas(
        self,
        state: ChainState,
        streams: Streams,
        *,
        is_reversed: bool = False,
        level: gibbs.Level | None = None,
        groups: Collection[str] | None = None,
    ) -> tuple[ChainState, None]:
        """Update the noise precisions from sums over the parts, then the others."""
        if self.model.noise is not None and (groups is None or NOISE in groups):
            state, _ = self.sample_noise(state, streams, is_reversed=is_reversed, level=level)
        layout = self.precision_layout
        names = {*(group.name for group in layout.groups), *(part.name for part in layout.adjustments)}
        others = (names if groups is None else names.intersection(groups)) - {NOISE}
        return super().sample_sigmas(state, streams, is_reversed=is_reversed, level=level, groups=others)

    def sample_noise(
        self,
        state: ChainState,
        streams: Streams,
        *,
        is_reversed: bool = False,
        level: gibbs.Level | None = None,
    ) -> tuple[ChainState, None]:
        """Update the precisions of the noise, or the shapes of dispersed counts, or one level of them."""
        if self.model.noise is None:
            return super().sample_noise(state, streams, is_reversed=is_reversed, level=level)
        precisions = noise_sums.update_noise(
            _SumsOfParts(self, state.position, state.precisions),
            self.precision_layout.groups[-1],
            state.precisions,
            streams,
            is_reversed=is_reversed,
            level=level,
        )
        return ChainState(state.position, state.momentum, precisions), None

    def grid_of_noise(
        self, position: Array, precisions: Array, streams: Streams, *, stepsize: float
    ) -> list[Array]:
        """Update the upper-level precisions of the noise in place; return which proposals were accepted."""
        number = len(self.precision_layout.groups) - 1
        group = self.precision_layout.groups[number]
        assert group.name == NOISE
        sums, has_units = _SumsOfParts(self, position, precisions), group.units is not None

        def t_density(x: Array) -> Array:
            of_targets = x if has_units else np.repeat(x, self.n_targets, axis=1)
            densities = sums.t_densities(of_targets, group.prior.alphas[2])
            return densities if has_units else densities.sum(axis=1, keepdims=True)

        return random_grid.update_levels(
            t_density, group, precisions, streams, stepsize=stepsize, index=number
        )

    def density_of_targets(self, position: Array) -> dispersion.Density:
        """Return the function that gives each target's log density given log shapes."""
        nothing = np.zeros((len(position), self.n_precisions))  # the question has the shapes
        return lambda x: self.ring.ask(TargetDensities(x), position, nothing)

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
    """The sums over all cases that updates of the noise need, from the answers of every part."""

    posterior: SharedPosterior
    position: Array
    precisions: Array

    @property
    def counts(self) -> Array:
        """The sum of the weights of each target, (n_chains, n_targets)."""
        shape = len(self.position), self.posterior.n_targets
        power = np.reshape(self.posterior.inverse_temperature, (-1, 1))
        return np.broadcast_to(power * self.posterior.counts, shape)

    def squares(self) -> Array:
        """Return the sums of squared residuals."""
        return self.posterior.ring.ask(SquaredResiduals(), self.position, self.precisions)

    def t_precisions(self, current: Array, alpha: float, streams: Streams) -> Array:
        """Return the sums of precisions of single cases, which the parts draw."""
        question = TPrecisions(current, alpha, streams)
        return self.posterior.ring.ask(question, self.position, self.precisions)

    def t_densities(self, x: Array, alpha: float) -> Array:
        """Return the sums of log densities, given the logs x of precisions."""
        return self.posterior.ring.ask(TDensities(x, alpha), self.position, self.precisions)


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
