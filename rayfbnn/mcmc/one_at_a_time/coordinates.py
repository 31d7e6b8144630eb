"""The order of updates of single parameters, and the potential along one parameter."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.state import Target
from rayfbnn.streams import Purpose, Streams


def turns(streams: Streams, n_parameters: int, *, random: bool) -> Array:
    """Return the parameter that each chain updates at each turn, (n_turns, n_chains) int64.

    Every parameter has one turn, in order. With `random` there is a single turn, and each chain updates a
    parameter chosen at random.
    """
    xp = array_namespace(streams.chains)
    if random:
        return streams.integers(n_parameters, Purpose.COORDINATE)[None, :]
    return xp.broadcast_to(xp.arange(n_parameters)[:, None], (n_parameters, streams.n_chains))


def describe_turns(random: bool) -> str:
    """Say in a few words which parameters have turns."""
    return "one parameter at random" if random else "each parameter in turn"


@dataclass(frozen=True)
class Line:
    """The potential along one parameter of each chain; the others keep their values in `position`."""

    target: Target
    position: Array
    precisions: Array
    parameter: Array  # (n_chains,) int64

    @property
    def value(self) -> Array:
        """The current value of the parameter, (n_chains,)."""
        return self.position[self._places]

    def at(self, value: Array) -> tuple[Array, Array]:
        """Return the position with the parameter set to `value` (n_chains,), and its potential.

        The potential is (n_chains,), and +inf where it is not finite.
        """
        moved = self.position.copy()
        moved[self._places] = value
        return moved, finite_or_infinite(self.target.potential(moved, self.precisions))

    @property
    def _places(self) -> tuple[Array, Array]:
        xp = array_namespace(self.position)
        return xp.arange(len(self.position)), self.parameter
