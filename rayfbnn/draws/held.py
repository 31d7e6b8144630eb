"""Chosen draws of a run, held in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.fits import is_linear
from rayfbnn.draws.subsets import with_draws
from rayfbnn.draws.view import POSITIONS, PRECISIONS, STARTS, Draws, Source

_CHAINS_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class Held:
    """Arrays (n_chains, n_draws, ...) in memory by name; all others are read from the source."""

    source: Source
    arrays: Mapping[str, Array]

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Return a view of an array in memory, or read it from the source."""
        if name in self.arrays:
            return self.arrays[name][chains, draws]
        return self.source.read(name, chains, draws)


def hold(run: Draws, numbers: Array, *, dtype: str | None = None) -> Draws:
    """Return the run with only some draws, with their positions and precisions in memory.

    numbers  increasing numbers of the draws of each chain to hold
    dtype    type for the evaluation of networks; None for that of the run
    """
    some = with_draws(run, numbers)
    names = (POSITIONS, PRECISIONS, STARTS) if is_linear(run) else (POSITIONS, PRECISIONS)
    arrays = {name: _read(run, name, numbers) for name in names}
    # The last two only limit how many networks are evaluated at once, since nothing is read in parts.
    return replace(
        some,
        source=Held(some.source, arrays),
        spec=run.spec.model_copy(update={"dtype": dtype or run.spec.dtype}),
        chains_per_batch=min(run.n_chains, _CHAINS_AT_ONCE),
        draws_per_chunk=some.n_draws,
    )


def _read(run: Draws, name: str, numbers: Array) -> Array:
    """Return some draws of all chains, (n_chains, n_numbers, ...), with each chunk of the store read once."""
    found: Array = None
    for chains, draws in run.chunks():
        at = slice(*np.searchsorted(numbers, (draws.start, draws.stop)))
        if at.start == at.stop:
            continue
        first, last = int(numbers[at.start]), int(numbers[at.stop - 1])
        values = run.source.read(name, chains, slice(first, last + 1))[:, numbers[at] - first]
        if found is None:
            found = np.empty((run.n_chains, len(numbers), *values.shape[2:]), dtype=values.dtype)
        found[chains, at] = values
    return found
