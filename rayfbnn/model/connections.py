"""Configured connections, sparse and shared, between two layers: as a table, or made by a generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array


@dataclass(frozen=True)
class Table:
    """Single connections: weight k leads from source unit i to destination unit j; Neal (2022) eq. 7.

    All counted from 0. A weight may be used by several connections, and a pair of units may have several,
    which add up. Of biases there are no sources.
    """

    destinations: tuple[int, ...]
    weights: tuple[int, ...]
    sources: tuple[int, ...] = ()

    @property
    def n_weights(self) -> int:
        return max(self.weights) + 1


@dataclass(frozen=True)
class Generated:
    """Dense, convolutional or pooling connections, or biases one for each channel.

    A layer's units are its channels, one after the other, each a grid of units row by row (one row in one
    dimension). Outside the grid padding is zero.

    kind            dense: all pairs, source major. convolution: each destination channel sees all source
                    channels through windows, weights by source channel, place in the window, destination
                    channel. pooling: each channel by itself, with one weight times the sum over the window.
                    channels: biases, one for each channel
    grid            rows and columns of the source's grid (dense: 1, its units)
    channels        of the source; of biases those of the layer
    filters         channels of the destination (dense: its units)
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
        n_channels = self.filters if self.kind in ("dense", "convolution") else self.channels
        return n_channels * math.prod(self.places)

    @property
    def weights_shape(self) -> tuple[int, int, int]:
        """Groups, sources of a destination (1 where all share a weight), destinations of a group."""
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
        return math.prod(self.weights_shape)

    def source_units(self) -> Array:
        """(groups, sources of a destination, places): the source unit of each, -1 for padding.

        The only source of biases is the one behind the units, here counted as 0.
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
