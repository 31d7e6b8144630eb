"""The draws of an approximation that count: a number from each start in proportion to its weight.

Ladders that sit in phases of different weight are treated in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.stored_fit import fit_summary
from rayfbnn.draws.view import Draws, Source


@dataclass(frozen=True, eq=False)
class _Joined:
    """One chain made of the first draws of each start, one start after the other.

    ends  (n_starts,) number of draws up to the end of each start
    """

    source: Source
    ends: Array

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read the requested draws of each start, one start after the other."""
        pieces = []
        for start, end in enumerate(self.ends):
            begin = self.ends[start - 1] if start else 0
            low, high = max(draws.start, begin), min(draws.stop, end)
            if low < high:
                some = slice(int(low - begin), int(high - begin))
                pieces.append(self.source.read(name, slice(start, start + 1), some))
        return np.concatenate(pieces, axis=1)[chains]


def with_members(run: Draws) -> Draws:
    """Return the draws of an approximation that count, as one chain.

    They are the first n_c draws of each start c, where n_c is proportional to the weight of the start; the
    start with the largest weight keeps all its draws. A run with equal weights is returned unchanged, and so
    is one that is not an approximation.
    """
    if run.kind != "approximate":
        return run
    return weighed(run, fit_summary(run.store).weight)


def weighed(run: Draws, weight: Array) -> Draws:
    """Return one chain with a number from the first draws of each chain in proportion to its weight.

    The chain with the largest weight keeps all its draws. A run with equal weights is returned unchanged.

    weight  (n_chains,)
    """
    counts = np.floor(run.n_draws * weight / weight.max() + 1e-9).astype(int)
    if (counts == run.n_draws).all():
        return run
    ends = np.cumsum(counts)
    return replace(
        run, source=_Joined(run.source, ends), n_chains=1, n_draws=int(ends[-1]), chains_per_batch=1
    )
