"""The posterior given some of the training cases: the batches of each chain, or one part of a divided run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.cases import columns_of_blocks
from rayfbnn.model.network import Buffers
from rayfbnn.model.posterior import Posterior
from rayfbnn.streams import Purpose, Streams

AnyPosterior = TypeVar("AnyPosterior", bound=Posterior)


def of_cases(posterior: AnyPosterior, cases: Array, weight: float) -> AnyPosterior:
    """Return the posterior given some cases, with their likelihood raised to the power `weight`.

    With weight = N/n and cases drawn uniformly at random, its energy and gradient are unbiased estimates of
    those of the whole posterior. Its stepsizes differ from those of the whole posterior.

    cases  (n_chains, n) integers from 0 to n_cases - 1

    If cases consist of several cells, they are padded to the same number of cells with cells of weight 0.
    """
    xp = array_namespace(posterior.inputs)
    columns, is_cell = _columns(posterior, cases)
    observed = posterior.observed
    if observed is not None:
        observed = _chosen(observed, columns)
    if is_cell is not None:
        observed = is_cell[:, None, :] * (1.0 if observed is None else observed)
    return replace(
        posterior,
        n_cases=cases.shape[1],
        # Copying rows of whole cases is faster than copying columns; products accept either order of axes.
        inputs=xp.take(posterior.rows_by_case, columns, axis=0).swapaxes(1, 2),
        targets=_chosen(posterior.targets, columns),
        observed=observed,
        starts=None,
        inverse_temperature=posterior.inverse_temperature * weight,
        blocks={},
    )


def _columns(posterior: Posterior, cases: Array) -> tuple[Array, Array | None]:
    """Return the columns of the cases, (n_chains, n), and which columns count, or None if all do."""
    if posterior.starts is None:
        return cases, None
    xp = array_namespace(cases)
    starts = xp.asarray(posterior.starts)
    first, end = starts[cases], starts[cases + 1]
    cells = first[..., None] + xp.arange(posterior.data_model.n_cells)  # (n_chains, n, n_cells)
    is_cell = (cells < end[..., None]).reshape(len(cases), -1)
    columns = xp.minimum(cells, end[..., None] - 1).reshape(len(cases), -1)
    return columns, is_cell.astype(xp.float64)


def _chosen(values: Array, columns: Array) -> Array:
    """Return columns (n_chains, n) of values (n_rows, n_columns), or of each chain's own values."""
    xp = array_namespace(values)
    if values.ndim == 2:
        return xp.ascontiguousarray(values[:, columns].swapaxes(0, 1))
    return xp.take_along_axis(values, columns[:, None, :], axis=2)


@dataclass
class Batches:
    """The batches of all chains, numbered through all passes: a random permutation for each chain and pass.

    n_cases  number of training cases
    size     the largest number of cases in a batch

    A pass has ceil(n_cases/size) batches, and their sizes differ by at most one case. Batches do not follow
    the order of the file, because a sorted file would give batches of a single class.
    """

    streams: Streams
    n_cases: int
    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.n_cases:
            raise ValueError(f"batch: must be from 1 to {self.n_cases}, the number of cases, got {self.size}")
        self._last: tuple[int, Array] | None = None  # the number of a pass, and its permutation

    @property
    def n_batches(self) -> int:
        return -(-self.n_cases // self.size)

    def batch(self, number: int) -> Array:
        """Return each chain's cases in batch `number`, counted from 0: (n_chains, n), n at most `size`."""
        number_of_pass, piece = divmod(number, self.n_batches)
        return self._order(number_of_pass)[:, self._end(piece) : self._end(piece + 1)]

    def place(self) -> tuple[int, int, int, int]:
        """Return `Streams.place` of the first pass, for compiled code that draws the permutations itself.

        The iteration increases by one with each later pass.
        """
        return self._streams_of_pass(0).place(Purpose.MINIBATCH)

    def sizes(self, first: int, n: int) -> Array:
        """Return the number of cases in each of n batches from batch `first` on: (n,) int64, on the host."""
        ends = self.n_cases * np.arange(self.n_batches + 1) // self.n_batches
        return np.diff(ends)[np.arange(first, first + n) % self.n_batches]

    def _order(self, number: int) -> Array:
        """Return the permutation of a pass, (n_chains, n_cases) int32, and keep it for the next call."""
        if self._last is None or self._last[0] != number:
            order = self._streams_of_pass(number).shuffle(self.n_cases, Purpose.MINIBATCH)
            self._last = number, order
        return self._last[1]

    def _streams_of_pass(self, number: int) -> Streams:
        return self.streams.at(iteration=number + 1, operation=self.streams.operation)

    def _end(self, piece: int) -> int:
        return self.n_cases * piece // self.n_batches


def cases_of_part(n_cases: int, part: int, n_parts: int) -> tuple[int, int]:
    """Return the first case of a part, and the case after its last. Parts are divided like blocks."""
    return n_cases * part // n_parts, n_cases * (part + 1) // n_parts


def posterior_of_chains(posterior: AnyPosterior, rows: Array) -> AnyPosterior:
    """Return the posterior of some of the chains, if chains have separate targets or temperatures.

    Otherwise return `posterior`.

    rows  the numbers of the chains among the chains of `posterior`
    """
    b, observed = posterior.inverse_temperature, posterior.observed
    has_own = posterior.targets.ndim == 3
    if not has_own and isinstance(b, float):
        return posterior
    return replace(
        posterior,
        targets=posterior.targets[rows] if has_own else posterior.targets,
        observed=observed[rows] if observed is not None and observed.ndim == 3 else observed,
        inverse_temperature=b if isinstance(b, float) else b[rows],
        blocks={},
    )


def columns_of_parts(n_columns: int, starts: Array | None, *, numbers: Sequence[int], n_parts: int) -> Array:
    """Return the columns of some parts, (n_numbers, longest) int, padded as in `posterior_of_part`."""
    n_cases = n_columns if starts is None else len(starts) - 1
    columns, _ = columns_of_blocks(n_cases, n_parts, starts=starts)
    return columns[list(numbers)]


def posterior_of_part(
    whole: AnyPosterior, part: int, n_parts: int, *, inputs: Array | None = None
) -> AnyPosterior:
    """Return the posterior given the cases of one part, with the same prior and temperature.

    With `tempered(n_parts)`, its energy and gradient have the same bits as `whole.potential_and_gradient`
    with partition = part and n_partitions = n_parts. For this, all parts have as many columns as the longest
    part: a shorter part is padded with its last column, at weight 0. The number of cases and the counts are
    those of the part. The mean squares of inputs and the typical curvature remain those of all cases.
    Stepsizes depend on all of these, and therefore need the posterior of all cases.

    inputs  inputs of the part (`columns_of_parts`), needed if `whole` does not have the inputs of all cases
    """
    xp = array_namespace(whole.inputs)
    numbers, counts = columns_of_blocks(whole.n_cases, n_parts, starts=whole.starts)
    columns, is_case = xp.asarray(numbers[part]), np.arange(numbers.shape[1]) < counts[part]
    observed = whole.observed
    if observed is not None:
        observed = xp.ascontiguousarray(observed[..., columns])
    if not is_case.all():
        full = xp.ones((whole.n_targets, len(is_case))) if observed is None else observed
        observed = full * xp.asarray(is_case)
    first, end = cases_of_part(whole.n_cases, part, n_parts)
    starts = whole.starts
    return replace(
        whole,
        n_cases=end - first,
        inputs=xp.ascontiguousarray(whole.inputs[:, columns] if inputs is None else inputs),
        targets=xp.ascontiguousarray(whole.targets[..., columns]),
        observed=observed,
        covariates=None if whole.covariates is None else whole.covariates[first:end],
        starts=None if starts is None else starts[first : end + 1] - starts[first],
        blocks={},
        buffers=Buffers(),
    )
