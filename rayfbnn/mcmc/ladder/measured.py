"""The measurements of a round of adaptation: whole numbers, whose sums do not depend on the batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.ladder.records import LadderInfo
from rayfbnn.mcmc.tuning.measuring import fixed_point, fixed_point_sums, ratio


@dataclass(frozen=True)
class Measured:
    """Sums over the iterations of a round. All but the counts are in units of 2**-40.

    iterations  number of iterations
    ladders     number of ladders
    rejection   (K-1,) sum over ladders of 1 - min(1, r) of each pair of levels
    accepted    (K,)   sum over ladders of the accepted trajectories of each level
    top         (n_targets,) sum over ladders of the log noise precisions at the top; () without noise
    measure     for each ladder (K,): the sum of the misfits of its states (path.py)
    squares     for each ladder (K,): the sum of its squares
    diverged    (K,) sum over ladders of the trajectories of each level that diverged; () in old stores
    """

    iterations: int
    ladders: int
    rejection: tuple[int, ...]
    accepted: tuple[int, ...]
    top: tuple[int, ...]
    measure: tuple[tuple[int, ...], ...]
    squares: tuple[tuple[int, ...], ...]
    diverged: tuple[int, ...] = ()

    @staticmethod
    def of(info: LadderInfo) -> Measured:
        """Return the sums of one iteration. A device is asked for two arrays, for any number of ladders."""
        xp, (n_ladders, n_levels) = array_namespace(info.measure), info.measure.shape
        moves = info.accepted.astype(np.float64), info.diverged.astype(np.float64)
        sums = fixed_point_sums(xp.concatenate([info.rejection, *moves, info.top], axis=1))
        rejection, accepted, diverged, top = _split(sums, n_levels - 1, n_levels, n_levels)
        rows = fixed_point(xp.concatenate([info.measure, info.measure**2], axis=1))
        return Measured(
            1,
            n_ladders,
            rejection,
            accepted,
            top,
            tuple(row[:n_levels] for row in rows),
            tuple(row[n_levels:] for row in rows),
            diverged,
        )

    def __add__(self, other: Measured) -> Measured:
        """Add further iterations of the same ladders."""
        return Measured(
            self.iterations + other.iterations,
            self.ladders,
            _added(self.rejection, other.rejection),
            _added(self.accepted, other.accepted),
            _added(self.top, other.top),
            tuple(_added(*pair) for pair in zip(self.measure, other.measure, strict=True)),
            tuple(_added(*pair) for pair in zip(self.squares, other.squares, strict=True)),
            _added(self.diverged, other.diverged) if self.diverged and other.diverged else (),
        )

    @staticmethod
    def joined(batches: Sequence[Measured]) -> Measured:
        """Join the measurements of one round of all batches, in the order of their ladders."""

        def total(name: str) -> tuple[int, ...]:
            return reduce(_added, [getattr(batch, name) for batch in batches])

        return Measured(
            batches[0].iterations,
            sum(batch.ladders for batch in batches),
            total("rejection"),
            total("accepted"),
            total("top"),
            tuple(row for batch in batches for row in batch.measure),
            tuple(row for batch in batches for row in batch.squares),
            total("diverged"),
        )

    @property
    def mean_rejection(self) -> tuple[float, ...]:
        """The mean rejection of each pair of levels, (K-1,)."""
        return self._means(self.rejection)

    @property
    def mean_accepted(self) -> tuple[float, ...]:
        """The share of accepted trajectories of each level, (K,)."""
        return self._means(self.accepted)

    @property
    def mean_diverged(self) -> tuple[float, ...]:
        """The share of trajectories of each level that diverged, (K,)."""
        return self._means(self.diverged) or (0.0,) * len(self.accepted)

    @property
    def mean_top(self) -> tuple[float, ...]:
        """The mean log noise precision of each target at the top, (n_targets,) or ()."""
        return self._means(self.top)

    @property
    def mean_measure(self) -> tuple[tuple[float, ...], ...]:
        """The mean measure of each ladder at each level, (n_ladders, K)."""
        return tuple(tuple(ratio(value, self.iterations) for value in row) for row in self.measure)

    def r_hat(self) -> tuple[float, ...]:
        """Return R-hat of the measure at each level over the ladders, (K,); 1 if nothing varies.

        R-hat**2 = ((n-1)/n W + B/n)/W, Gelman and Rubin (1992). Halves of a round are not separated.
        """
        n = self.iterations
        values = []
        for level in range(len(self.accepted)):
            means = [ratio(row[level], n) for row in self.measure]
            within = [
                max(ratio(row[level], n) - mean**2, 0.0)
                for row, mean in zip(self.squares, means, strict=True)
            ]
            w = sum(within) / len(within)
            between = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
            values.append(
                math.sqrt(((n - 1) / n * w + between) / w) if w > 0 else 1.0 if between == 0 else math.inf
            )
        return tuple(values)

    def _means(self, sums: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(ratio(value, self.iterations * self.ladders) for value in sums)


def top_sums(log_precisions: Array) -> tuple[int, ...]:
    """Sum the log noise precisions (n_chains, n_targets) of starts over chains, in units of 2**-40."""
    return fixed_point_sums(log_precisions)


def _split(values: Sequence[int], *lengths: int) -> list[tuple[int, ...]]:
    """Return the first values in pieces of these lengths, and the rest as the last piece."""
    ends = [0, *accumulate(lengths), len(values)]
    return [tuple(values[first:last]) for first, last in pairwise(ends)]


def _added(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(ours, theirs, strict=True))
