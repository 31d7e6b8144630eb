"""The levels of ladders at the draws of a run: how they fit, and the energies between neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.store.catalogue import FAMILIES, FORWARD, REPLICA, REVERSE, ROUND_TRIPS, measure_name
from rayfbnn.store.rounds import value_of_level


@dataclass(frozen=True, eq=False)
class LadderLevels:
    """The K levels of R ladders; the last level is the posterior.

    kind     what levels hold: noise, or a power of the likelihood
    held     (K-1,) the noise in standard deviations of the targets, or the power, of each level but the last
    ladders  (R,) numbers of the ladders in the store
    """

    kind: Literal["noise", "powers"]
    held: tuple[float, ...]
    ladders: tuple[int, ...]

    def name_of(self, level: int) -> str:
        """Return a level in words, such as "noise 0.05", or "the posterior" for the last."""
        if level == len(self.held):
            return "the posterior"
        return f"{'noise' if self.kind == 'noise' else 'power'} {self.held[level]:.2g}"


@dataclass(frozen=True, eq=False)
class LadderDraws(LadderLevels):
    """The levels of ladders at n draws.

    families  (R,) the side that each ladder started from: "chains" or "prior"
    measured  the name of the measure in the store
    measure   (R, n, K) log of the residual sum of squares or of its scale, or the energy of the data
    forward   (R, n, K-1) energy of level k+1 less that of level k, at the state of level k
    reverse   (R, n, K-1) energy of level k less that of level k+1, at the state of level k+1
    replica   (R, n) number of the replica at the last level
    trips     (R,) round trips between both ends in these draws
    """

    families: tuple[str, ...]
    measured: str
    measure: Array
    forward: Array
    reverse: Array
    replica: Array
    trips: Array

    @property
    def n_levels(self) -> int:
        """K, the number of levels."""
        return len(self.held) + 1

    @property
    def rejection(self) -> Array:
        """The mean probability that neighbours do not exchange, (R, K-1)."""
        # Ladder by ladder, because hundreds of them together would take hundreds of MB.
        return np.stack([_rejection(*pair) for pair in zip(self.forward, self.reverse, strict=True)])


def _rejection(forward: Array, reverse: Array) -> Array:
    """Return the mean rejection of each pair of levels of one ladder, given the differences (n, K-1)."""
    with np.errstate(over="ignore", invalid="ignore"):
        accepted = np.exp(np.minimum(0.0, -(forward.astype(float) + reverse)))
    return 1 - np.nan_to_num(accepted).mean(axis=0)


def ladder_draws(run: Draws) -> LadderDraws:
    """Read the levels of ladders at the draws of a run."""
    settings = run.store.tuning.ladder_rounds()[-1].settings
    n_levels, spec = settings.n_levels, run.spec
    measured = measure_name(spec)
    measure = run.of_ladder(measured)[..., :n_levels]
    forward, reverse = (run.of_ladder(name)[..., : n_levels - 1] for name in (FORWARD, REVERSE))
    trips = run.of_ladder(ROUND_TRIPS)
    return LadderDraws(
        kind=spec.ladder_ends.kind,
        held=tuple(value_of_level(spec, x) for x in settings.levels),
        ladders=run.chain_numbers,
        families=tuple(FAMILIES[number % 2] for number in run.chain_numbers),
        measured=measured,
        measure=measure,
        forward=forward,
        reverse=reverse,
        replica=run.of_ladder(REPLICA),
        trips=(trips[:, -1] - trips[:, 0]).astype(int),
    )
