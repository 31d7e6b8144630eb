"""A path over levels of Gaussian noise, whose precision is held below the top and integrated out there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.ladder.squares import Squares, alpha_of
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState, LadderEnds
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True, eq=False)
class NoiseEnergies:
    """The energies of states whose residual sums of squares are known.

    multipliers  (n_targets,)
    """

    squares: Squares
    group: PrecisionGroup
    multipliers: Array

    @property
    def measure(self) -> Array:
        """The log of the residual sum of squares over all targets, (n_rows,)."""
        return self.squares.log_total()

    def at(self, x: Array) -> Array:
        """Return each state's energy at coordinate x: a log precision, or infinity for the top."""
        xp = array_namespace(x)
        held = xp.where(xp.isfinite(x), x, 0.0)[:, None] + xp.log(self.multipliers)
        energy = self.squares.energy(held)
        if self.group.is_fixed:
            return energy
        return xp.where(xp.isfinite(x), energy, self.squares.energy_without_noise(self.group))

    def taken(self, rows: Array) -> NoiseEnergies:
        """Return the energies of the states in these rows."""
        return replace(self, squares=self.squares.taken(rows))


@dataclass(frozen=True, eq=False)
class NoisePath:
    """The path of noise levels of real targets with Gaussian noise: a mcmc.ladder.path.Path.

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
        xp = array_namespace(state.position)
        squares = Squares.of(self.posterior, state.position)
        energies = NoiseEnergies(squares, self.group, self._ratios(xp))
        if self.group.is_fixed:
            return state, energies
        # Of all rows, because a device would have to be asked how many there are below the top.
        drawn, columns = self._drawn(squares, streams), self._columns()
        precisions = state.precisions.copy()
        precisions[:, columns] = xp.where(is_below[:, None], drawn, precisions[:, columns])
        return replace(state, precisions=precisions), energies

    def _drawn(self, squares: Squares, streams: Streams) -> Array:
        """Draw the precisions of every row from their conditional distribution, as sample-noise does."""
        group = self.group
        part = squares.total() if group.units is None else squares
        xp = array_namespace(part.sums)
        log_precisions = gibbs.log_precision_over_values(
            xp.where(xp.isfinite(part.sums), part.sums, 1.0),  # a state that overflows stays
            part.counts,
            alpha_of(group),
            xp.full((len(part.sums), 1), group.mean),
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

    def _columns(self) -> slice:
        group = self.group
        return slice(group.common, group.common + 1) if group.units is None else group.units

    def _ratios(self, xp: Any) -> Array:
        ratios: Array = xp.asarray(self.multipliers or (1.0,) * self.posterior.n_targets)
        return ratios
