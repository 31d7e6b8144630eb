"""Moments of targets on a log scale in the units of the data file: those of exponentials of mixtures."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.transforms import TargetUnits
from rayfbnn.reduce.blocks import Block, Reader
from rayfbnn.reduce.passes import Job, Passes
from rayfbnn.reduce.pieces import Pieces
from rayfbnn.reduce.tile import Tile, add_excess, by_draw


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


def moments_by_draw(tile: Tile, outputs: Array, block: Block, scale: Array, mean: Array) -> list[Array]:
    """Return mean and variance of y / exp(middle) given each draw, (n_cases, n_targets, n_draws) each.

    mean  (n_cases, n_targets): the middle on the network's scale
    """
    means, variances = tile.model.target_moments(*by_draw(outputs, block))
    factor = scale[:, None]
    u = factor**2 * np.asarray(variances, dtype=np.float64)
    relative = np.exp(factor * (means - mean[:, :, None]) + u / 2)
    return [relative, np.square(relative) * np.expm1(u)]


def _exponential_sums(reader: Reader, job: Job) -> tuple[Array, Array, Array]:
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
