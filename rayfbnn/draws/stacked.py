"""The chains of several runs of one posterior as those of a single run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.same_posterior import check_independent, check_same_posterior
from rayfbnn.draws.view import STARTS, Draws


@dataclass(frozen=True, eq=False)
class _Stacked:
    """The last `n_draws` draws of all chains of several runs.

    Chains of the second store have the numbers that follow those of the first, and so on.
    """

    runs: tuple[Draws, ...]
    n_draws: int

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read the requested chains of each run, one run after another."""
        pieces, first, offset = [], 0, 0
        for run in self.runs:
            low, high = max(chains.start, first), min(chains.stop, first + run.n_chains)
            if low < high:
                skipped = run.n_draws - self.n_draws
                some = slice(draws.start + skipped, draws.stop + skipped)
                piece = run.source.read(name, slice(low - first, high - first), some)
                pieces.append(piece + offset if name == STARTS else piece)
            first, offset = first + run.n_chains, offset + run.store.n_chains
        return np.concatenate(pieces)


def stacked(runs: Sequence[Draws]) -> Draws:
    """Return all chains of several runs as one run, with as many draws of each as the shortest run has.

    The store and the configuration are those of the first run. StoreMismatchError for runs of different
    posteriors, and for runs with the same random numbers.
    """
    check_same_posterior(runs)
    check_independent(runs)
    n_draws = min(run.n_draws for run in runs)
    return replace(
        runs[0],
        source=_Stacked(tuple(runs), n_draws),
        n_chains=sum(run.n_chains for run in runs),
        n_draws=n_draws,
        chains_per_batch=min(run.chains_per_batch for run in runs),
        skipped=0,
    )
