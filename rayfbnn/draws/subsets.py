"""Chosen draws: chains, draws, several runs together, weighed ones, draws in memory; runs that match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import names_that_differ, unshuffled
from rayfbnn.draws.fits import fit_summary
from rayfbnn.draws.view import POSITIONS, PRECISIONS, STARTS, Draws, Source
from rayfbnn.errors import ConfigError, StoreError, StoreMismatchError, at_most_ten
from rayfbnn.spec import differences

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.store.storage.places import Place
    from rayfbnn.store.store import Store


_BLOCKS = 16  # that are read from a batch, however long the run is
_DRAWS = 50  # of a block, if a chunk has as many
_PICTURED = 4_000
_CHAINS_AT_ONCE = 16  # of draws in memory


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
        batches = _neighbours(self.chains[chains], self.per_batch)
        rows = [self._read(name, batch, self.numbers[draws]) for batch in batches]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _read(self, name: str, chains: Array, numbers: Array) -> Array:
        values: Array = None
        first, blocks = 0, _neighbours(numbers, self.per_block)
        for block in blocks:
            part = self.source.read(name, _span(chains), _span(block))[_places(chains)][:, _places(block)]
            if len(blocks) == 1:
                return part
            if values is None:
                values = np.empty((len(part), len(numbers), *part.shape[2:]), dtype=part.dtype)
            values[:, first : first + len(block)] = part
            first += len(block)
        return values


def _neighbours(numbers: Array, together: int) -> list[Array]:
    """Divide increasing numbers into those of each group of `together`, unless none is left out."""
    if _is_gapless(numbers):
        return [numbers]
    return np.split(numbers, np.flatnonzero(np.diff(numbers // together)) + 1)


def _is_gapless(numbers: Array) -> bool:
    return len(numbers) == 0 or bool(numbers[-1] - numbers[0] == len(numbers) - 1)


def _span(numbers: Array) -> slice:
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else slice(0, 0)


def _places(numbers: Array) -> Array | slice:
    """Return the places of increasing numbers in their span."""
    return slice(None) if _is_gapless(numbers) else numbers - numbers[0]


@dataclass(frozen=True, eq=False)
class _Joined:
    """The draws of several views, one after another.

    parts    the views, which have as many draws each (axis 0), or one chain each (axis 1)
    offsets  of the numbers of their chains, one for each part
    axis     0 for further chains, 1 for further draws of one chain
    """

    parts: tuple[Draws, ...]
    offsets: tuple[int, ...]
    axis: int

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read the requested chains or draws of each part."""
        pieces, first, wanted = [], 0, (chains, draws)[self.axis]
        for part, offset in zip(self.parts, self.offsets, strict=True):
            n = (part.n_chains, part.n_draws)[self.axis]
            low, high = max(wanted.start, first), min(wanted.stop, first + n)
            if low < high:
                some = slice(low - first, high - first)
                at = (some, draws) if self.axis == 0 else (chains, some)
                piece = part.source.read(name, *at)
                pieces.append(piece + offset if name == STARTS and offset else piece)
            first += n
        return np.concatenate(pieces, axis=self.axis)


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
    if skip < 0:
        raise ConfigError(f"skip: must be 0 or more, got {skip}")
    if skip >= run.n_draws:
        raise ConfigError(f"skip: must be below {run.n_draws}, the draws per chain in {run.path}, got {skip}")
    if skip == 0:
        return run
    return replace(with_draws(run, np.arange(skip, run.n_draws)), skipped=run.skipped + skip)


def _checked_chains(run: Draws, chains: Sequence[int]) -> Array:
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


def with_members(run: Draws) -> Draws:
    """Return the draws of an approximation that count, as one chain; see `weighed`.

    A run that is not an approximation is returned unchanged.
    """
    return weighed(run, fit_summary(run.store).weight) if run.kind == "approximate" else run


def weighed(run: Draws, weight: Array) -> Draws:
    """Return one chain with a number from the first draws of each chain in proportion to its weight.

    The chain with the largest weight keeps all its draws. A run with equal weights is returned unchanged.

    weight  (n_chains,)
    """
    counts = np.floor(run.n_draws * weight / weight.max() + 1e-9).astype(int)
    if (counts == run.n_draws).all():
        return run
    of_chains = (with_chains(run, np.array([chain])) for chain in np.flatnonzero(counts))
    parts = tuple(first_draws(one, n) for one, n in zip(of_chains, counts[counts > 0].tolist(), strict=True))
    source = _Joined(parts, (0,) * len(parts), axis=1)
    return replace(run, source=source, n_chains=1, n_draws=int(counts.sum()), chains_per_batch=1)


def stacked(runs: Sequence[Draws]) -> Draws:
    """Return all chains of several runs as one run, with as many last draws of each as the shortest run has.

    The store and the configuration are those of the first run. Chains of the second store have the numbers
    that follow those of the first, and so on. StoreMismatchError for runs of different posteriors, and for
    runs with the same random numbers.
    """
    check_same_posterior(runs)
    check_independent(runs)
    n_draws = min(run.n_draws for run in runs)
    parts = tuple(with_draws(run, np.arange(run.n_draws - n_draws, run.n_draws)) for run in runs)
    offsets = np.cumsum([0, *(run.store.n_chains for run in runs[:-1])])
    return replace(
        runs[0],
        source=_Joined(parts, tuple(offsets.tolist()), axis=0),
        n_chains=sum(run.n_chains for run in runs),
        n_draws=n_draws,
        chains_per_batch=min(run.chains_per_batch for run in runs),
        skipped=0,
    )


def hold(run: Draws, numbers: Array, *, dtype: str | None = None) -> Draws:
    """Return the run with only some draws, with their positions and precisions in memory.

    numbers  increasing numbers of the draws of each chain to hold
    dtype    type for the evaluation of networks; None for that of the run
    """
    some = with_draws(run, numbers)
    about_modes = (STARTS,) if run.is_linear else ()
    names = (POSITIONS, PRECISIONS, *about_modes)
    # The last two only limit how many networks are evaluated at once, since nothing is read in parts.
    return replace(
        some,
        source=Held(some.source, {name: _all_of(run, name, numbers) for name in names}),
        spec=run.spec.model_copy(update={"dtype": dtype or run.spec.dtype}),
        chains_per_batch=min(run.n_chains, _CHAINS_AT_ONCE),
        draws_per_chunk=some.n_draws,
    )


def _all_of(run: Draws, name: str, numbers: Array) -> Array:
    """Return some draws of all chains, (n_chains, n_numbers, ...), with each chunk of the store read once."""
    found: Array = None
    for chains, draws in run.chunks():
        at = slice(*np.searchsorted(numbers, (draws.start, draws.stop)))
        if at.start == at.stop:
            continue
        part = run.source.read(name, chains, _span(numbers[at]))[:, _places(numbers[at])]
        if found is None:
            found = np.empty((run.n_chains, len(numbers), *part.shape[2:]), dtype=part.dtype)
        found[chains, at] = part
    return found


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


# The posterior, apart from the data.
_SAME = ("data.standardize", "data.transform", "model", "network", "temperature")


def check_same_posterior(
    runs: Sequence[Draws], *, is_prior_allowed: bool = False, is_approximation_allowed: bool = False
) -> None:
    """Raise StoreMismatchError unless all runs have draws of one posterior.

    If allowed, some may be from its prior, or from approximations of it.
    """
    first = runs[0]
    for other in runs[1:]:
        reasons = [
            difference for difference in differences(first.spec, other.spec) if difference.startswith(_SAME)
        ]
        if (first.kind == "prior") != (other.kind == "prior") and not is_prior_allowed:
            reasons.append(f"kind: {first.kind} and {other.kind} draws, of the prior and of the posterior")
        is_mixed = (first.kind == "approximate") != (other.kind == "approximate")
        if is_mixed and not is_approximation_allowed:
            reasons.append(
                f"kind: {first.kind} and {other.kind} draws; use `compare` to compare an approximation"
                " with the posterior"
            )
        if labels_of(first) != labels_of(other):
            reasons.append("data: the labels of the targets differ")
        if first.data.hash != other.data.hash:
            reasons.append("data: the training cases differ")
        if reasons:
            raise StoreMismatchError(
                f"{other.path}: is not from the posterior of {first.path}: {'; '.join(at_most_ten(reasons))}"
            )


def labels_of(run: Draws) -> dict[str, tuple[str, ...]]:
    """Return the labels of each target that has labels, by its name."""
    return {} if run.spec.encoding is None else run.spec.encoding.labels


def check_independent(runs: Sequence[Draws]) -> None:
    """Raise StoreMismatchError if two of the runs were sampled with the same random numbers."""
    seen: dict[tuple[str, int], Draws] = {}
    for run in runs:
        key = (run.kind, run.spec.seed)
        if key in seen:
            raise StoreMismatchError(
                f"{run.path}: has the same seed ({run.spec.seed}) as {seen[key].path}, so their draws are not"
                " independent and cannot be pooled; sample one of the two with another seed"
            )
        seen[key] = run


def check_given_once(paths: Sequence[Place]) -> None:
    """Raise ConfigError if a store is given twice, also by a link or by another spelling of its path."""
    seen = set()
    for path in paths:
        place = path.resolve() if isinstance(path, Path) else path
        if place in seen:
            raise ConfigError(f"path: {path} is given twice; give each store once")
        seen.add(place)


def check_distinct(stores: Sequence[Store]) -> None:
    """Raise an error unless all stores have their own draws: ConfigError for a store that is given twice.

    StoreMismatchError for a copy of a store, which may have been lengthened since.
    """
    check_given_once([store.path for store in stores])
    seen: dict[str, Store] = {}
    for store in stores:
        before = seen.setdefault(store.root.identity, store)
        if before is not store:
            raise StoreMismatchError(
                f"{store.path}: is a copy of {before.path} and has the same draws; give only one of the two"
            )


def check_same_targets(runs: Sequence[Draws]) -> None:
    """Raise StoreMismatchError unless all runs have densities of the same targets of the same cases.

    Everything else may differ: a comparison with and without some inputs is a usual question.
    """
    first = runs[0]
    for other in runs[1:]:
        if reason := _difference_of_targets(first, other):
            raise StoreMismatchError(f"{other.path}: cannot be compared with {first.path}: {reason}")


def _difference_of_targets(first: Draws, other: Draws) -> str:
    data, other_data = _in_order_of_table(first), _in_order_of_table(other)
    if data.target_names != other_data.target_names:
        names = names_that_differ(data.target_names, other_data.target_names)
        return f"the targets differ: {' and '.join(names)}"
    if data.n_cases != other_data.n_cases:
        return f"the numbers of training cases differ: {data.n_cases:,} and {other_data.n_cases:,}"
    if labels_of(first) != labels_of(other):
        return "the labels of the targets differ"
    if not np.array_equal(data.targets, other_data.targets, equal_nan=True):
        return "the targets of the training cases differ, or are in another order"
    if _has_densities(first) != _has_densities(other):
        return "one has densities of its targets, the other probabilities"
    return ""


def _in_order_of_table(run: Draws) -> Dataset:
    return unshuffled(run.data) if run.spec.data.shuffle else run.data


def _has_densities(run: Draws) -> bool:
    model = run.spec.data_model
    return model.is_real or model.are_times
