"""The protocol between a model and a ladder: a path of densities from a hot level to the posterior."""

from __future__ import annotations

from typing import Protocol

from rayfbnn.arrays import Array
from rayfbnn.state import ChainState, LadderEnds, TemperedTarget
from rayfbnn.streams import Streams


class Energies(Protocol):
    """The energies of the data of some states at any level, with all constants of the likelihood."""

    @property
    def measure(self) -> Array:
        """The misfit of each state, (n_rows,), which does not depend on its level.

        It is the log of the residual sum of squares, the log of the scale of t noise that fits the residuals
        best, or -log likelihood.
        """
        ...

    def at(self, x: Array) -> Array:
        """Return each state's energy at the level with coordinate x, both (n_rows,) float64.

        If the noise has no closed integral, this is the energy at the top of a state with a precision.
        """
        ...

    def taken(self, rows: Array) -> Energies:
        """Return the energies of the states in these rows, (n,)."""
        ...


class Path(Protocol):
    """A path of densities prior * exp(-E_x); the coordinate x rises from the hot level to the posterior."""

    @property
    def ends(self) -> LadderEnds:
        """The quantity that differs between levels, and the coordinate of the posterior."""
        ...

    def on_device(self, values: Array) -> Array:
        """Return values of the host where the arrays of the chains are."""
        ...

    def with_multipliers(self, multipliers: tuple[float, ...]) -> Path:
        """Return the path on which the noise precision of target t is multipliers[t] * exp(x)."""
        ...

    def target(self, x: Array) -> TemperedTarget:
        """Return the density of rows at coordinates x (n_rows,), given their noise precisions."""
        ...

    def hot(self, x: float) -> TemperedTarget:
        """Return the density of all rows at one coordinate below the top, given the precisions held there."""
        ...

    def placed(self, state: ChainState, x: Array) -> ChainState:
        """Return the state with the noise precisions that the coordinates x (n_rows,) hold."""
        ...

    def offered(self, state: ChainState, streams: Streams, *, is_below: Array) -> tuple[ChainState, Energies]:
        """Return the state as it may exchange, and its energies, from one pass through the network.

        A row below the top, which `is_below` (n_rows,) selects, has noise precisions drawn for the top. It
        keeps them if it goes there.
        """
        ...

    def log_precisions(self, precisions: Array) -> Array:
        """Return the logs of the targets' noise precisions, (n_rows, n_targets), or (n_rows, 0)."""
        ...

    def prior_draw(self, streams: Streams) -> ChainState:
        """Return a draw from the prior for each row, with a momentum."""
        ...

    @property
    def sigmas(self) -> tuple[str, ...] | None:
        """The groups whose sigmas a held level draws; None for all."""
        ...
