"""A fifth approximation, as one file of approximate/ would have it: a point mass at a given place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rayfbnn.approximate.approximation import (
    DRAWS,
    Approximation,
    Fit,
    Limits,
    State,
    key,
)
from rayfbnn.approximate.distributions import Points
from rayfbnn.approximate.target_protocols import FitTarget
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.state import Advance
from rayfbnn.streams import Streams

_PLACE = Limits("a number from -10 to 10, such as 0.5", least=-10, most=10)
_MOST_CASES = 100


@dataclass(frozen=True)
class PointMass(Approximation):
    """One network for each start; all of its parameters have the same value.

    place  the value of every parameter of the first start; each further start has half of the one before
    """

    draws: int = key(3, DRAWS)
    place: float = key(0.5, _PLACE)

    name: ClassVar[str] = "point"
    title: ClassVar[str] = "a point mass at a given place"
    objective: ClassVar[str] = "log density at the place"
    has_density: ClassVar[bool] = False

    @property
    def n_steps(self) -> int:
        """One step, which evaluates the density."""
        return 1

    def check_covers(self, target: FitTarget, *, n_together: int) -> None:
        """Refuse more than 100 cases."""
        if target.n_cases > _MOST_CASES:
            self.refuse(f"covers at most {_MOST_CASES} cases, got {target.n_cases}")

    def build(self, target: FitTarget, advance: Callable[[], Advance]) -> PointMassFit:
        """Build the fit, which is array code."""
        return PointMassFit(target, self)

    def gradients(self, state: State, *, n_cases: int, n_outputs: int) -> float:
        """Count none: the fit takes densities only."""
        return 0.0


@dataclass(frozen=True)
class PointMassFit(Fit):
    """The fit of point masses.

    The state has position (n_starts, n_parameters) and precisions (n_starts, n_precisions).
    """

    target: FitTarget
    settings: PointMass

    def initial(self, streams: Streams) -> State:
        """Return the places, and precisions at their prior means."""
        xp = array_namespace(streams.chains)
        position, precisions = self.target.start(streams)
        places = self.settings.place * 0.5 ** streams.chains.astype(xp.float64)
        return {"position": xp.ones(position.shape) * places[:, None], "precisions": precisions}

    def step(self, state: State, streams: Streams) -> tuple[State, Array]:
        """Evaluate the density at the places."""
        position = state["position"].astype(self.target.dtype)
        return state, self.target.log_joint(position, state["precisions"])

    def distribution(self, state: State) -> Points:
        """Return the places."""
        return Points(state["position"], state["precisions"])
