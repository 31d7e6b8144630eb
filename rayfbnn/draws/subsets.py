"""Views of some chains and some draws of a run: later ones, evenly spaced ones, halves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws, Source
from rayfbnn.errors import ConfigError, StoreError

_BLOCKS = 16  # that are read from a batch, however long the run is
_DRAWS = 50  # of a block, if a chunk has as many
_PICTURED = 4_000


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some chains and draws of another source.

    first_chain  number of the first chain; the others follow it
    numbers      (n_draws,) increasing numbers of the draws
    per_block    number of draws that are read together, to limit memory in addition to the result
    """

    source: Source
    first_chain: int
    numbers: Array
    per_block: int

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read the chosen draws from the other source, one block at a time."""
        chains = slice(chains.start + self.first_chain, chains.stop + self.first_chain)
        numbers = self.numbers[draws]
        if len(numbers) == 0 or numbers[-1] - numbers[0] == len(numbers) - 1:
            first = int(numbers[0]) if len(numbers) else 0
            return self.source.read(name, chains, slice(first, first + len(numbers)))
        splits = np.flatnonzero(np.diff(numbers // self.per_block)) + 1
        values: Array = None
        for first, some in zip([0, *splits], np.split(numbers, splits), strict=True):
            block = self.source.read(name, chains, slice(int(some[0]), int(some[-1]) + 1))
            if values is None:
                values = np.empty((len(block), len(numbers), *block.shape[2:]), dtype=block.dtype)
            values[:, first : first + len(some)] = block[:, some - some[0]]
        return values


def with_draws(run: Draws, numbers: Array) -> Draws:
    """Return the run with only these draws of each chain, given by their increasing numbers."""
    source = Chosen(run.source, 0, numbers, _per_block(run))
    return replace(run, source=source, n_draws=len(numbers))


def with_chains(run: Draws, first: int, end: int) -> Draws:
    """Return the chains from `first` up to before `end`."""
    source = Chosen(run.source, first, np.arange(run.n_draws), _per_block(run))
    return replace(run, source=source, n_chains=end - first)


def without_first(run: Draws, skip: int) -> Draws:
    """Return the run without the first `skip` draws of each chain; ConfigError if none would be left."""
    if skip < 0:
        raise ConfigError(f"skip: must be 0 or more, got {skip}")
    if skip == 0:
        return run
    if skip >= run.n_draws:
        raise ConfigError(f"skip: must be below {run.n_draws}, the draws per chain in {run.path}, got {skip}")
    return with_draws(run, np.arange(skip, run.n_draws))


def halves(run: Draws) -> tuple[Draws, Draws]:
    """Return the first half of the chains and the second half, to compare a run with itself.

    If there is only one chain, its draws are split. StoreError for a single draw.
    """
    if run.n_chains > 1:
        middle = run.n_chains // 2
        return with_chains(run, 0, middle), with_chains(run, middle, run.n_chains)
    if run.n_draws < 2:
        raise StoreError(f"{run.path}: has {run.n_draws} draws; a comparison needs at least 2")
    first, second = np.array_split(np.arange(run.n_draws), 2)
    return with_draws(run, first), with_draws(run, second)


def thinned(run: Draws, at_most: int) -> Draws:
    """Return at most `at_most` draws of each chain, evenly spaced in at most 16 evenly spaced blocks."""
    numbers = _draw_numbers(run.n_draws, _per_block(run), at_most)
    return run if len(numbers) == run.n_draws else with_draws(run, numbers)


def for_picture(run: Draws) -> Draws:
    """Return about 4,000 draws of all chains together, at least one of each: more would change no picture."""
    return thinned(run, max(1, _PICTURED // run.n_chains))


def first_draws(run: Draws, at_most: int) -> Draws:
    """Return the first `at_most` draws of each chain, or all if there are fewer."""
    return run if at_most >= run.n_draws else with_draws(run, np.arange(at_most))


def evenly_spaced(n: int, at_most: int) -> Array:
    """Return at most `at_most` of the numbers below n, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(at_most, n)).round().astype(int))


def spread(n_draws: int, n_wanted: int) -> Array:
    """Return the numbers of `n_wanted` of `n_draws` draws, evenly spaced, including the last draw."""
    return (n_draws - 1 - evenly_spaced(n_draws, n_wanted))[::-1]


def _per_block(run: Draws) -> int:
    return min(_DRAWS, run.draws_per_chunk)


def _draw_numbers(n_draws: int, per_block: int, at_most: int) -> Array:
    """Return the numbers of the draws to read, in order, including the last draw."""
    blocks = evenly_spaced(-(-n_draws // per_block), _BLOCKS)
    numbers = (blocks[:, None] * per_block + np.arange(per_block)).reshape(-1)
    numbers = numbers[numbers < n_draws]
    step = -(-len(numbers) // at_most)
    return numbers[::-1][::step][::-1]
