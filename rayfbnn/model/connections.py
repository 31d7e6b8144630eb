"""Configured connections between two layers, with missing or shared weights, from a table or a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array


@dataclass(frozen=True)
class Table:
    """A list of connections. In each, weight k connects source unit i to destination unit j.

    Units and weights are counted from 0; Neal (2022) eq. 7. Several connections may share a weight. If
    several connect the same pair of units, their weights add up. Biases have no sources.
    """

    destinations: tuple[int, ...]
    weights: tuple[int, ...]
    sources: tuple[int, ...] = ()

    @property
    def n_weights(self) -> int:
        """Number of different weights."""
        return max(self.weights) + 1


@dataclass(frozen=True)
class Generated:
    """Connections that follow a rule: dense, convolution, pooling, or one bias for each channel.

    The units of a layer are its channels, one after another. Each channel is a grid of units, row by row;
    a grid in one dimension has one row. Units outside the grid (padding) are zero.

    kind      dense: every source unit with every destination unit, ordered by source unit
              convolution: a destination channel sees all source channels through windows. Its weights are
              ordered by source channel, then place in the window, then destination channel
              pooling: each channel separately; one weight multiplies the sum over the window
              channels: biases, one for each channel
    grid      rows and columns of the source's grid; for dense (1, number of source units)
    channels  number of channels of the source; for biases, of the layer
    filters   number of channels of the destination; for dense its number of units
    window, stride, padding   rows and columns
    """

    kind: Literal["dense", "convolution", "pooling", "channels"]
    grid: tuple[int, int]
    channels: int = 1
    filters: int = 1
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @property
    def n_sources(self) -> int:
        """Number of source units."""
        return self.channels * math.prod(self.grid)

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of the destination's grid."""
        if self.kind == "dense":
            return 1, 1
        if self.kind == "channels":
            return self.grid
        return (
            (self.grid[0] + 2 * self.padding[0] - self.window[0]) // self.stride[0] + 1,
            (self.grid[1] + 2 * self.padding[1] - self.window[1]) // self.stride[1] + 1,
        )

    @property
    def n_destinations(self) -> int:
        """Number of destination units."""
        n_channels = self.filters if self.kind in ("dense", "convolution") else self.channels
        return n_channels * math.prod(self.places)

    @property
    def weights_shape(self) -> tuple[int, int, int]:
        """(groups, sources of a destination (1 if all share a weight), destinations of a group)."""
        match self.kind:
            case "dense":
                return 1, self.n_sources, self.filters
            case "convolution":
                return 1, self.channels * math.prod(self.window), self.filters
            case "pooling":
                return self.channels, 1, 1
            case "channels":
                return 1, 1, self.channels

    @property
    def n_weights(self) -> int:
        """Number of different weights."""
        return math.prod(self.weights_shape)

    def source_units(self) -> Array:
        """Return the source unit of each connection, -1 for padding: (groups, sources, places).

        Biases have one source, which follows the units of a layer. This method numbers it 0.
        """
        if self.kind == "dense":
            return np.arange(self.n_sources)[None, :, None]
        if self.kind == "channels":
            return np.zeros((1, 1, math.prod(self.grid)), dtype=np.int64)
        axes = []
        for size, window, stride, padding, n in zip(
            self.grid, self.window, self.stride, self.padding, self.places, strict=True
        ):
            at = np.arange(window)[:, None] + stride * np.arange(n) - padding  # (window, places)
            axes.append(np.where((at >= 0) & (at < size), at, -1))
        rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
        inside = (rows >= 0) & (columns >= 0)
        unit = np.where(inside, rows * self.grid[1] + columns, -1)
        unit = unit.reshape(math.prod(self.window), math.prod(self.places))
        channel = np.arange(self.channels)[:, None, None] * math.prod(self.grid)
        units = np.where(unit >= 0, unit + channel, -1)  # (channels, window, places)
        return units if self.kind == "pooling" else units.reshape(1, -1, units.shape[2])


Connections = Table | Generated
