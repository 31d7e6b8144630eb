"""The posterior with the further parts that sampling needs: updates, initial states and draws."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import batches, integrated, prior
from rayfbnn.model.architecture import DISPERSION
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.likelihood.dispersed_count import Density, update_dispersion
from rayfbnn.model.network import AT_ONCE, Buffers, forward, outputs_alone
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.updates import gibbs, metropolis
from rayfbnn.state import Advance, ChainState, Marginal, ProposalsInfo, Trajectory
from rayfbnn.streams import SHARED, Purpose, Streams


@dataclass(frozen=True, eq=False)
class SampledPosterior(Posterior):
    """A posterior with the updates that belong to its model."""

    @property
    def updates(self) -> dict[str, Callable[..., tuple[ChainState, ProposalsInfo | None]]]:
        return {
            "sample-sigmas": self.sample_sigmas,
            "sample-noise": self.sample_noise,
            "random-grid": self.random_grid,
            "rescale": self.rescale,
        }

    @property
    def reversed_updates(self) -> dict[str, Callable[..., tuple[ChainState, None]]]:
        """The reversals of the Gibbs updates, which update the levels in the opposite order."""
        return {
            "sample-sigmas": partial(self.sample_sigmas, is_reversed=True),
            "sample-noise": partial(self.sample_noise, is_reversed=True),
        }

    def marginal(self, over: tuple[str, ...]) -> Marginal:
        """Return the posterior with "outputs", "precisions" or both integrated out (integrated.py)."""
        return integrated.marginal(self, over)

    def batches(self, streams: Streams, size: int) -> batches.Batches:
        return batches.Batches(streams, self.n_cases, size)

    def of_cases(self, cases: Array, weight: float) -> SampledPosterior:
        return batches.of_cases(self, cases, weight)

    def initial_state(self, streams: Streams, *, sigmas: float | None, is_shared: bool = False) -> ChainState:
        """Return the initial state of chains.

        Parameters are zero, every free sigma is `sigmas`, and adjustments are one, as with FBM's "fix". If
        `sigmas` is None, all of these are drawn from the prior instead. Each chain has its own draw or, if
        `is_shared`, all chains of the run share one draw, which depends only on the seed. The momentum of
        each chain is standard normal.
        """
        streams = streams.at(iteration=0)
        xp = array_namespace(streams.chains)
        momentum = streams.normal(Purpose.MOMENTUM, (self.n_parameters,)).astype(self.dtype)
        if sigmas is None:
            start = replace(streams, chains=xp.full_like(streams.chains, SHARED)) if is_shared else streams
            position, precisions = self._prior_draw(start)
            return ChainState(position, momentum, precisions)
        fixed = xp.empty(self.n_precisions)
        for group in self.precision_layout.groups:
            fixed[group.common] = group.mean
        free = xp.asarray(self.precision_layout.is_free)
        precisions = xp.tile(xp.where(free, sigmas**-2, fixed), (streams.n_chains, 1))
        for adjustments in self.precision_layout.adjustments:
            precisions[:, adjustments.columns] = 1.0
        return ChainState(xp.zeros_like(momentum), momentum, precisions)

    def sample_sigmas(
        self,
        state: ChainState,
        streams: Streams,
        *,
        is_reversed: bool = False,
        level: gibbs.Level | None = None,
        groups: Collection[str] | None = None,
    ) -> tuple[ChainState, None]:
        """Update all free precisions by Gibbs sampling, the shapes that govern counts by slice sampling.

        level, groups  restrict the update to the precisions of one level, or of the named groups and
                       adjustments
        """
        precisions = state.precisions
        if self.model.dispersion is not None and (groups is None or DISPERSION in groups):
            precisions = update_dispersion(
                self.density_of_targets(state.position),
                self.precision_layout.groups[-1],
                precisions,
                streams,
                is_reversed=is_reversed,
                level=level,
            )
        precisions = gibbs.update_groups(
            self.parameter_layout.views(state.position),
            precisions,
            streams,
            layout=self.precision_layout,
            noise=partial(self.noise_sums, state.position),
            is_reversed=is_reversed,
            level=level,
            groups=groups,
        )
        return ChainState(state.position, state.momentum, precisions), None

    def sample_noise(
        self,
        state: ChainState,
        streams: Streams,
        *,
        is_reversed: bool = False,
        level: gibbs.Level | None = None,
    ) -> tuple[ChainState, None]:
        """Update the precisions of the noise, or the shapes of dispersed counts, or one level of them."""
        if self.model.of_targets is None:
            return state, None
        name, _ = self.model.of_targets
        return self.sample_sigmas(state, streams, is_reversed=is_reversed, level=level, groups=(name,))

    def random_grid(
        self,
        state: ChainState,
        streams: Streams,
        *,
        stepsize: float,
        groups: Collection[str] | None = None,
    ) -> tuple[ChainState, ProposalsInfo]:
        """Update the upper-level precisions of `groups` (None: all) by random-grid Metropolis updates."""
        layout, precisions = self.precision_layout, state.precisions.copy()
        governed: list[tuple[int, PrecisionGroup, gibbs.Sums | None]] = [
            *gibbs.governed_sums(
                self.parameter_layout.views(state.position),
                precisions,
                layout,
                noise=partial(self.noise_sums, state.position),
                names=groups,
            )
        ]
        if self.model.dispersion is not None and (groups is None or DISPERSION in groups):
            governed.append((len(layout.groups) - 1, layout.groups[-1], None))
        accepted = []
        for number, group, sums in governed:
            accepted += metropolis.update_upper_levels(
                sums, group, precisions, streams, stepsize=stepsize, index=number
            )
        xp = array_namespace(precisions)
        share = (
            xp.concatenate(accepted, axis=1).mean(axis=1) if accepted else xp.full(len(precisions), xp.nan)
        )
        return replace(state, precisions=precisions), ProposalsInfo(share)

    def rescale(
        self,
        state: ChainState,
        streams: Streams,
        *,
        along: metropolis.Along,
        stepsize: float,
        advance: Advance,
    ) -> tuple[ChainState, ProposalsInfo]:
        """Scale parameters and precisions together by Metropolis updates; see metropolis.py.

        advance  computes the potential, as for the other accept decisions of a run
        """
        return metropolis.rescale(
            state,
            streams,
            orbits=metropolis.orbits_along(along, self.network, self.parameter_layout, self.precision_layout),
            potential=partial(self._potential, advance=advance),
            stepsize=stepsize,
        )

    def _potential(self, position: Array, precisions: Array, *, advance: Advance) -> Array:
        nothing = array_namespace(position).zeros_like(position)
        _, potential = advance(self, Trajectory(position, nothing, precisions, nothing), n_steps=0)
        return potential

    def residuals(self, position: Array) -> gibbs.Values:
        """Return the squared residuals (n_chains, n_targets, n_cases), and their weights: b, 0 if missing."""
        xp = array_namespace(position)
        weights = self.inverse_temperatures(n_axes=3)
        if self.observed is not None:
            weights = weights * self.observed
        squares = (self.targets - self._outputs_at(position)).astype(xp.float64) ** 2
        if not isinstance(weights, float):
            weights = xp.broadcast_to(weights, squares.shape)
        return gibbs.Values(squares, weights)

    def noise_sums(self, position: Array) -> gibbs.Sums:
        """Return the sums over the residuals of all cases for updates of the noise."""
        return self.residuals(position)

    def density_of_targets(self, position: Array) -> Density:
        """Return the function that gives each target's log density given log shapes, (n_chains, n_targets).

        The density lacks a constant, and is raised to the inverse temperature. The function must be used
        before the next pass through the network.
        """
        b = self.inverse_temperatures(n_axes=2)
        density = self.data_model.density_of_shapes(self._outputs_at(position), self.targets, self.observed)
        return lambda log_shapes: b * density(array_namespace(log_shapes).exp(log_shapes))

    def _outputs_at(self, position: Array) -> Array:
        if self.inputs.shape[-1] > AT_ONCE:
            return outputs_alone(position, self.inputs, self.wiring, buffers=self.buffers)
        return self.training_outputs(position)

    def rejection_proposal(self, streams: Streams) -> tuple[Array, Array, Array]:
        """Draw a proposal for rejection sampling: position, precisions, log acceptance probability.

        The proposal is from the prior, with noise precisions biased by prod_j tau_j**(b n_j/2), where n_j is
        the number of observed targets and b the inverse temperature. The acceptance probability is the b-th
        power of the likelihood, without the factors that the bias cancels, divided by its largest possible
        value (`DataModel.log_bound`). Neal (2022), eqs. 69, 70.
        """
        bias = self.inverse_temperature * (self.n_cases if self.observed is None else self.counts)
        position, precisions = self._prior_draw(streams, n_cases_bias=bias)
        noise = prior.noise_precisions(precisions, self.precision_layout)
        with np.errstate(all="ignore"):
            bound = self.data_model.log_bound(self.targets, self.observed)
            outputs = forward(position, self.inputs, self.wiring, buffers=self.buffers).outputs
            log_likelihood = self._terms(outputs, noise).sum(axis=(1, 2))
            log_acceptance = self.inverse_temperature * (log_likelihood - bound)
            return position, precisions, log_acceptance

    def sample_targets(self, position: Array, precisions: Array, streams: Streams) -> Array:
        """Draw targets at the training inputs, (n_chains, n_cases, n_targets) float64."""
        inputs = self._every_cell() if self.data_model.n_cells > 1 else self.inputs
        outputs = forward(position, inputs, self.wiring, buffers=Buffers()).outputs
        noise = prior.noise_precisions(precisions, self.precision_layout)
        outputs = outputs.astype(array_namespace(outputs).float64)
        return self.data_model.draw(outputs, noise, streams).swapaxes(1, 2)

    def _prior_draw(self, streams: Streams, *, n_cases_bias: Array | float = 0) -> tuple[Array, Array]:
        precisions = prior.draw_precisions(streams, self.precision_layout, n_cases_bias=n_cases_bias)
        position = prior.draw_parameters(streams, precisions, self.parameter_layout, self.precision_layout)
        with np.errstate(over="ignore"):  # values outside the range of float32 give an infinite energy
            return position.astype(self.dtype), precisions
