"""Batches of training cases: the cases of each chain, and the posterior given them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace
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
        """Number of batches in one pass over the cases."""
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
        """Return the number of cases in a pass before this piece."""
        return self.n_cases * piece // self.n_batches
