"""The stepsizes of the updates that led to the draws of a run, computed again from their random numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc.trajectories import last_stepsizes
from rayfbnn.streams import Purpose, Streams

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

STEPSIZE = "stepsize"  # the name that views of draws read these stepsizes by
_AT_ONCE = 50_000  # numbers of chains times draws


@dataclass(frozen=True)
class _Rows(Streams):
    """Streams whose rows are chains at iterations of their own.

    iterations  (n_rows,) uint64
    """

    iterations: Array = None

    def of_some(self, rows: Array) -> Streams:
        """Return some of the rows."""
        return replace(self, chains=self.chains[rows], iterations=self.iterations[rows])

    def _counter(
        self, purpose: Purpose, index: int, attempt: int, *, blocks: range
    ) -> tuple[Array, Array, Array, Array]:
        block, use, operation, _ = super()._counter(purpose, index, attempt, blocks=blocks)
        return block, use, operation, self.iterations[:, None]


def stepsizes_of_draws(store: Store, chains: slice, draws: slice) -> Array:
    """Return the stepsize behind the `energy_change` of each draw, (n_chains, n_draws) float64.

    It is the factor on the heuristic stepsizes, with its jitter (trajectories.last_stepsizes), and NaN for
    draws without one, and for those of ladders. Nothing is read but the settings that tuning has found.

    chains, draws  slices of step 1 with both ends
    """
    values = np.full((chains.stop - chains.start, draws.stop - draws.start), np.nan)
    first_iteration, first_draw = 1, 0
    for phase in store.spec.phase if store.kind == "mcmc" and store.spec.ladder is None else ():
        end = first_draw + phase.iterations if phase.keep is True else first_draw
        low, high = max(first_draw, draws.start), min(end, draws.stop)
        at_once = max(1, _AT_ONCE // max(1, len(values)))
        for first in range(low, high, at_once):
            some = np.arange(first, min(first + at_once, high))
            streams = _rows(store.spec.seed, chains, some - first_draw + first_iteration)
            factors = last_stepsizes(phase.operations, store.tuning.at(first_iteration), streams)
            if factors is not None:
                values[:, some - draws.start] = factors.reshape(len(values), -1)
        first_iteration, first_draw = first_iteration + phase.iterations, end
    return values


def _rows(seed: int, chains: slice, iterations: Array) -> Streams:
    """Return streams with a row for each chain and iteration, chain after chain."""
    numbers = np.arange(chains.start, chains.stop, dtype=np.uint64)
    return _Rows(
        seed,
        np.repeat(numbers, len(iterations)),
        iterations=np.tile(iterations.astype(np.uint64), len(numbers)),
    )
