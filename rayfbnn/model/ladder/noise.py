"""A path over levels of Gaussian or t noise: held below the top, and integrated out there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.ladder.extended import energy_of
from rayfbnn.model.ladder.squares import Squares, alpha_of
from rayfbnn.model.ladder.t_residuals import TResiduals
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState, LadderEnds
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True, eq=False)
class NoiseEnergies:
    """The energies of states whose residuals are known.

    measure      (n_rows,) log of the residual sum of squares over all targets, or of the scale of t noise
    multipliers  (n_targets,)
    of_top       (n_rows,) energy at the top, of states that are extended by a precision if the noise has no
                 closed integral (extended.py); None if the top holds its noise too
    """

    residuals: Squares | TResiduals
    measure: Array
    multipliers: Array
    of_top: Array | None

    def at(self, x: Array) -> Array:
        """Return each state's energy at coordinate x: a log precision, or infinity for the top."""
        xp = array_namespace(x)
        held = xp.where(xp.isfinite(x), x, 0.0)[:, None] + xp.log(self.multipliers)
        energy = self.residuals.energy(held)
        return energy if self.of_top is None else xp.where(xp.isfinite(x), energy, self.of_top)

    def taken(self, rows: Array) -> NoiseEnergies:
        """Return the energies of the states in these rows."""
        return replace(
            self,
            residuals=self.residuals.taken(rows),
            measure=self.measure[rows],
            of_top=None if self.of_top is None else self.of_top[rows],
        )


@dataclass(frozen=True, eq=False)
class NoisePath:
    """The path of noise levels of real targets: a mcmc.ladder.path.Path.

    Below the top, the noise precision of target t is multipliers[t] * exp(x).
    """

    posterior: SampledPosterior
    ends: LadderEnds
    multipliers: tuple[float, ...] = ()

    @property
    def group(self) -> PrecisionGroup:
        """The noise precisions of a chain."""
        return self.posterior.precision_layout.groups[-1]

    @property
    def sigmas(self) -> tuple[str, ...]:
        """All groups and adjustments except the noise."""
        layout = self.posterior.precision_layout
        names = [*(group.name for group in layout.groups), *(part.name for part in layout.adjustments)]
        return tuple(name for name in names if name != NOISE)

    def on_device(self, values: Array) -> Array:
        """Return values of the host where the training cases are."""
        moved: Array = array_namespace(self.posterior.inputs).asarray(values)
        return moved

    def with_multipliers(self, multipliers: tuple[float, ...]) -> NoisePath:
        """Return the path with these ratios of the targets' noise precisions."""
        return replace(self, multipliers=multipliers)

    def target(self, x: Array) -> SampledPosterior:
        """Return the posterior itself, because the levels differ by their noise precisions alone."""
        return self.posterior

    def hot(self, x: float) -> SampledPosterior:
        """Return the posterior itself, for states that `placed` gave the noise of this level."""
        return self.posterior

    def placed(self, state: ChainState, x: Array) -> ChainState:
        """Return the state with held noise precisions in all rows below the top."""
        xp = array_namespace(x)
        held = xp.exp(xp.where(xp.isfinite(x), x, 0.0))[:, None] * self._ratios(xp)
        group, precisions = self.group, state.precisions.copy()
        is_held = xp.isfinite(x)
        columns = self._columns()
        if group.units is not None:
            precisions[:, group.common] = xp.where(is_held, group.mean, precisions[:, group.common])
        else:
            held = held[:, :1]
        precisions[:, columns] = xp.where(is_held[:, None], held, precisions[:, columns])
        return replace(state, precisions=precisions)

    def offered(
        self, state: ChainState, streams: Streams, *, is_below: Array
    ) -> tuple[ChainState, NoiseEnergies]:
        """Return the state with precisions drawn given the residuals in the rows below the top."""
        xp, position, group = array_namespace(state.position), state.position, self.group
        if math.isfinite(group.prior.alphas[2]):
            return self._extended(state, TResiduals.of(self.posterior, position), streams, is_below)
        squares = Squares.of(self.posterior, position)
        if self._has_two_levels:
            return self._extended(state, squares, streams, is_below)
        of_top = None if group.is_fixed else squares.energy_without_noise(group)
        energies = NoiseEnergies(squares, squares.log_total(), self._ratios(xp), of_top)
        if group.is_fixed:
            return state, energies
        # All rows are drawn: to choose some, the host would have to wait for a device.
        drawn, columns, precisions = self._drawn(squares, streams), self._columns(), state.precisions.copy()
        precisions[:, columns] = xp.where(is_below[:, None], drawn, precisions[:, columns])
        return replace(state, precisions=precisions), energies

    def _extended(
        self, state: ChainState, residuals: Squares | TResiduals, streams: Streams, is_below: Array
    ) -> tuple[ChainState, NoiseEnergies]:
        """Return the state with proposed precisions in some rows, and the energies of the extended states.

        Of two free levels the state is extended by the common one, and those of targets are drawn given it.
        """
        group, xp = self.group, array_namespace(state.position)
        is_common = group.units is None or self._has_two_levels
        columns = slice(group.common, group.common + 1) if is_common else group.units
        purpose = Purpose.NOISE_COMMON if is_common else Purpose.NOISE_TARGET
        joint = residuals.joint(group)
        proposal, precisions, is_new = joint.proposal(), state.precisions.copy(), is_below[:, None]
        proposed = xp.exp(proposal.drawn(streams, purpose))
        precisions[:, columns] = xp.where(is_new, proposed, precisions[:, columns])
        of_top = energy_of(joint, proposal, xp.log(precisions[:, columns]))
        if isinstance(residuals, Squares):
            measure, of_targets = residuals.log_total(), precisions[:, group.units]
            drawn = self._drawn(residuals, streams, mean=precisions[:, columns])
            precisions[:, group.units] = xp.where(is_new, drawn, of_targets)
        else:
            measure = proposal.log_scale()
        energies = NoiseEnergies(residuals, measure, self._ratios(xp), of_top)
        return replace(state, precisions=precisions), energies

    def _drawn(self, squares: Squares, streams: Streams, *, mean: Array | None = None) -> Array:
        """Draw the precisions of every row from their conditional distribution, as sample-noise does.

        mean  (n_rows, 1) the common precisions, if they are free too
        """
        group = self.group
        part = squares.total() if group.units is None else squares
        xp = array_namespace(part.sums)
        log_precisions = gibbs.log_precision_over_values(
            xp.where(xp.isfinite(part.sums), part.sums, 1.0),  # a state that overflows stays
            part.counts,
            alpha_of(group),
            xp.full((len(part.sums), 1), group.mean) if mean is None else mean,
            streams,
            index=0,
            purpose=Purpose.NOISE_COMMON if group.units is None else Purpose.NOISE_TARGET,
        )
        return xp.exp(log_precisions)

    def log_precisions(self, precisions: Array) -> Array:
        """Return the logs of the targets' noise precisions, (n_rows, n_targets)."""
        return array_namespace(precisions).log(noise_precisions(precisions, self.posterior.precision_layout))

    def prior_draw(self, streams: Streams) -> ChainState:
        """Return a draw from the prior for each row."""
        return self.posterior.initial_state(streams, sigmas=None)

    @property
    def _has_two_levels(self) -> bool:
        """True if the common precision and those of targets are free."""
        return all(math.isfinite(alpha) for alpha in self.group.prior.alphas[:2])

    def _columns(self) -> slice:
        group = self.group
        return slice(group.common, group.common + 1) if group.units is None else group.units

    def _ratios(self, xp: Any) -> Array:
        ratios: Array = xp.asarray(self.multipliers or (1.0,) * self.posterior.n_targets)
        return ratios
