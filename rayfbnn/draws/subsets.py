"""Views of some chains and some draws of a run: named chains, later draws, evenly spaced ones, halves."""

from __future__ import annotations

from collections.abc import Sequence
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

    chains     (n_chains,) increasing numbers of the chains
    numbers    (n_draws,) increasing numbers of the draws
    per_batch  number of chains that are stored together
    per_block  number of draws that are read together, to limit memory in addition to the result
    """

    source: Source
    chains: Array
    numbers: Array
    per_batch: int
    per_block: int

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read the chosen draws from the other source, one batch of chains and one block at a time."""
        numbers = self.chains[chains]
        if len(numbers) == 0 or numbers[-1] - numbers[0] == len(numbers) - 1:
            first = int(numbers[0]) if len(numbers) else 0
            return self._read(name, slice(first, first + len(numbers)), draws)
        splits = np.flatnonzero(np.diff(numbers // self.per_batch)) + 1
        batches = [
            self._read(name, slice(int(some[0]), int(some[-1]) + 1), draws)[some - some[0]]
            for some in np.split(numbers, splits)
        ]
        return np.concatenate(batches)

    def _read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read the chosen draws of neighbouring chains."""
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
    source = Chosen(run.source, np.arange(run.n_chains), numbers, run.chains_per_batch, _per_block(run))
    return replace(run, source=source, n_draws=len(numbers))


def with_chains(run: Draws, numbers: Array) -> Draws:
    """Return the run with only these chains, given by their increasing numbers."""
    source = Chosen(run.source, numbers, np.arange(run.n_draws), run.chains_per_batch, _per_block(run))
    return replace(run, source=source, n_chains=len(numbers))


def chosen(
    run: Draws, *, skip: int = 0, last: int | None = None, chains: Sequence[int] | None = None
) -> Draws:
    """Return the run with some of its chains, and without the first draws of each.

    skip    number of draws to leave out at the start of each chain
    last    number of draws to keep at the end of each chain, instead of `skip`; None for all
    chains  numbers of the chains, from 0; None for all

    Raises ConfigError for chains or draws that the run does not have, and for chains of an approximation,
    whose starts are weighed together.
    """
    if last is not None:
        if skip > 0:
            raise ConfigError(f"last: give either last or skip, got {last} and {skip}")
        if not 1 <= last <= run.n_draws:
            raise ConfigError(
                f"last: must be from 1 to {run.n_draws}, the draws per chain in {run.path}, got {last}"
            )
        skip = run.n_draws - last
    if chains is not None:
        run = with_chains(run, _checked_chains(run, chains))
    return without_first(run, skip)


def _checked_chains(run: Draws, chains: Sequence[int]) -> Array:
    """Return the numbers of the chains in increasing order; ConfigError if they cannot be chosen."""
    if run.kind == "approximate":
        raise ConfigError(f"chains: {run.path} is an approximation, whose starts are chosen by their weights")
    numbers = np.unique(np.asarray(chains, dtype=int))
    if len(numbers) == 0 or len(numbers) < len(chains):
        raise ConfigError(f"chains: give different numbers, such as 0 and 2, got {list(chains)}")
    for number in numbers:
        if not 0 <= number < run.n_chains:
            raise ConfigError(
                f"chains: {run.path} has {run.n_chains} chains, numbered from 0 to {run.n_chains - 1},"
                f" got {number}"
            )
    return numbers


def without_first(run: Draws, skip: int) -> Draws:
    """Return the run without the first `skip` draws of each chain; ConfigError if none would be left."""
    if skip < 0:
        raise ConfigError(f"skip: must be 0 or more, got {skip}")
    if skip == 0:
        return run
    if skip >= run.n_draws:
        raise ConfigError(f"skip: must be below {run.n_draws}, the draws per chain in {run.path}, got {skip}")
    later = with_draws(run, np.arange(skip, run.n_draws))
    return replace(later, skipped=run.skipped + skip)


def halves(run: Draws) -> tuple[Draws, Draws]:
    """Return the first half of the chains and the second half, to compare a run with itself.

    If there is only one chain, its draws are split. StoreError for a single draw.
    """
    if run.n_chains > 1:
        middle = run.n_chains // 2
        return with_chains(run, np.arange(middle)), with_chains(run, np.arange(middle, run.n_chains))
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
