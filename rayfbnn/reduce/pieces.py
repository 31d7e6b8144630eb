"""Sums over pieces of chains: Monte Carlo errors of means, and moments on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import TargetUnits
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.effective import MIN_DRAWS, mcse_mean
from rayfbnn.reduce.passes import Passes, PassJob
from rayfbnn.reduce.tile import DrawBlock, Reader, Tile, Unit, add_excess, by_draw

_ALL_CHAINS = 1024  # pieces of all chains together, where chains have more than the least number
_LEAST = 16  # pieces of a chain with as many draws
_MOST = 64
_ENOUGH = 64  # chains that give the error by themselves, to about 9 %
_GROUPS = 128  # of chains, about; more would only take memory


@dataclass(frozen=True)
class Pieces:
    """The division of all chains of all runs into pieces, over which draws are summed.

    Few chains are cut into pieces of successive draws. The pieces of a run end with its last draw and have
    the same length in all runs; only the first piece of a chain may be shorter. Means over pieces keep the
    correlation between distant draws, and the disagreement between chains. From them the error of the mean is
    estimated as it would be from the draws.

    From 64 chains on, a chain is one piece, or a group of chains is. Their means are independent, and their
    spread is the error, however slowly the chains mix.

    length    draws of a piece
    n_draws   draws of a chain, for each run
    n_chains  for each run
    n_groups  of chains, for each run
    """

    length: int
    n_draws: tuple[int, ...]
    n_chains: tuple[int, ...]
    n_groups: tuple[int, ...]

    @classmethod
    def of_runs(cls, runs: Sequence[Draws]) -> Pieces:
        """Return groups of many chains, or pieces of few: at least 16 of a chain that has as many draws."""
        n_draws, n_chains = (tuple(getattr(run, name) for run in runs) for name in ("n_draws", "n_chains"))
        total = sum(n_chains)
        if total >= _ENOUGH:
            of_group = -(-total // _GROUPS)
            return cls(max(n_draws), n_draws, n_chains, tuple(-(-n // of_group) for n in n_chains))
        per_chain = min(max(_ALL_CHAINS // total, _LEAST), _MOST)
        return cls(max(1, min(n_draws) // per_chain), n_draws, n_chains, n_chains)

    @property
    def _per_chain(self) -> list[int]:
        return [-(-n // self.length) for n in self.n_draws]

    @property
    def n_pieces(self) -> int:
        """Number of pieces of all chains."""
        return sum(n * pieces for n, pieces in zip(self.n_groups, self._per_chain, strict=True))

    def numbers_of(self, unit: Unit) -> Array:
        """Return the number of the piece of each draw of a unit, (n_draws,)."""
        before = sum(n * m for n, m in list(zip(self.n_groups, self._per_chain, strict=True))[: unit.run])
        of_chain, n_draws = self._per_chain[unit.run], self.n_draws[unit.run]
        group, draws = self._group(unit.run)[slice(*unit.chains), None], np.arange(*unit.draws)
        piece = of_chain - 1 - (n_draws - 1 - draws) // self.length
        return (before + group * of_chain + piece).reshape(-1)

    def _group(self, run: int) -> Array:
        """Return the number of the group of each chain of a run, (n_chains,)."""
        return np.arange(self.n_chains[run]) * self.n_groups[run] // self.n_chains[run]

    def rows_of(self, unit: Unit) -> Array:
        """Return the numbers of the pieces that a unit has draws of, in order."""
        return np.unique(self.numbers_of(unit))

    def mcse_of_mean(self, sums: Array) -> Array:
        """Return the Monte Carlo standard error of means over all draws.

        It is NaN below 4 draws of each of fewer than 64 chains. Such chains of all runs are taken together,
        each cut to its last pieces, as many as the shortest run has. Runs that disagree therefore make the
        error larger. The draws left out are assumed to be like the others.

        sums  (n_pieces, ...) over the draws of each piece
        """
        if sum(self.n_chains) >= _ENOUGH:
            return self._spread_of_groups(sums)
        n_common = min(self.n_draws) // self.length
        if n_common < MIN_DRAWS:
            return np.full(sums.shape[1:], math.nan)
        chains, first = [], 0
        for n_chains, of_chain in zip(self.n_chains, self._per_chain, strict=True):
            of_run = sums[first : first + n_chains * of_chain]
            chains.append(of_run.reshape(n_chains, of_chain, *sums.shape[1:])[:, of_chain - n_common :])
            first += n_chains * of_chain
        means = np.concatenate(chains) if len(chains) > 1 else chains[0]
        total = sum(n * m for n, m in zip(self.n_chains, self.n_draws, strict=True))
        share = sum(self.n_chains) * n_common * self.length / total
        values = np.moveaxis(means, (0, 1), (-2, -1)) / self.length
        return np.asarray(mcse_mean(np.ascontiguousarray(values)) * math.sqrt(share))

    def _spread_of_groups(self, sums: Array) -> Array:
        """Return the error of a mean over G independent groups with shares w of the draws.

        Its square is G / (G - 1) sum w**2 (m - sum w m)**2, where m are the means of the groups.
        """
        sizes = np.concatenate(
            [np.bincount(self._group(run)) * n_draws for run, n_draws in enumerate(self.n_draws)]
        ).reshape(-1, *(1 for _ in sums.shape[1:]))
        shares = sizes / sizes.sum()
        means = sums / sizes
        deviations = shares * (means - (shares * means).sum(axis=0))
        n = len(sums)
        return np.asarray(np.sqrt(n / (n - 1) * np.square(deviations).sum(axis=0)))


def exponential_moments(passes: Passes, pieces: Pieces, units: TargetUnits, mean: Array) -> dict[str, Array]:
    """Return "mean", "sd" and "mcse" of each target in the units of the data file, (n_cases, n_targets).

    Given a draw, log y is Gaussian with mean m and variance u on the scale of logarithms, so y has the mean
    exp(m + u/2), and its variance is the square of the mean times exp(u) - 1. The result is NaN for targets
    that are not on a log scale, and for all targets if y has no mean given a draw, as with t noise.

    The mean of a case's logarithms is subtracted first, which saves digits and prevents overflow.

    mean  (n_cases, n_targets): means over all draws on the network's scale
    """
    model, n = passes.runs[0].spec.data_model, passes.n_draws
    if not model.has_exponential_moments:
        return dict.fromkeys(("mean", "sd", "mcse"), np.full(mean.shape, np.nan))
    n_cases, n_targets = mean.shape
    by_piece = np.zeros((pieces.n_pieces, n_targets, n_cases))
    squares, variances = (np.zeros((n_targets, n_cases)) for _ in range(2))
    for unit, at, part in passes.map(_exponential_sums, lambda at: (mean[at], pieces, units.scale)):
        by_piece[pieces.rows_of(unit), :, at] += part[0]
        squares[:, at] += part[1]
        variances[:, at] += part[2]
    with np.errstate(over="ignore", invalid="ignore"):
        excess = by_piece.sum(axis=0) / n
        variance = np.maximum(squares / n - excess**2, 0) + variances / n
        middle = np.exp(mean * units.scale + units.center)
        relative = {"mean": 1 + excess, "sd": np.sqrt(variance), "mcse": pieces.mcse_of_mean(by_piece)}
        return {name: np.where(units.is_log, middle * values.T, np.nan) for name, values in relative.items()}


def moments_by_draw(tile: Tile, outputs: Array, block: DrawBlock, scale: Array, mean: Array) -> list[Array]:
    """Return mean and variance of y / exp(middle) given each draw, (n_cases, n_targets, n_draws) each.

    mean  (n_cases, n_targets): the middle on the network's scale
    """
    means, variances = tile.model.target_moments(*by_draw(outputs, block))
    factor = scale[:, None]
    u = factor**2 * np.asarray(variances, dtype=np.float64)
    relative = np.exp(factor * (means - mean[:, :, None]) + u / 2)
    return [relative, np.square(relative) * np.expm1(u)]


def _exponential_sums(reader: Reader, job: PassJob) -> tuple[Array, Array, Array]:
    """Return the sums of `Tile.add_moments` for the moments of `moments_by_draw`, with a shift of one."""
    mean, pieces, scale = job.arguments
    tile, block = job.read(reader)
    rows = pieces.rows_of(job.unit)
    numbers = np.searchsorted(rows, pieces.numbers_of(job.unit))
    sums = np.zeros((len(rows), *mean.T.shape)), np.zeros(mean.T.shape), np.zeros(mean.T.shape)
    for at, some, outputs in tile.finite_parts(block):
        with np.errstate(over="ignore", invalid="ignore"):
            moments = moments_by_draw(tile, outputs, some, scale, mean)
            add_excess(moments, numbers[at], np.ones(mean.T.shape), sums)
    return sums
