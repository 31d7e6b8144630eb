"""Configured connections between two layers, with missing or shared weights, from a table or a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace


@dataclass(frozen=True)
class ConnectionTable:
    """A list of connections. In each, weight k connects source unit i to destination unit j.

    Units and weights are counted from 0; Neal (2022) eq. 7. Several connections may share a weight. If
    several connect the same pair of units, their weights add up. Biases have no sources.
    """

    destinations: tuple[int, ...]
    weights: tuple[int, ...]
    sources: tuple[int, ...] = ()

    @property
    def n_weights(self) -> int:
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


Connections = ConnectionTable | Generated


class Configured(Protocol):
    """The map u = W(w) v with weights w, and its derivatives.

    weights (n_chains, n_weights); v (..., n_units + 1, n_cases), the last row ones; u (n_chains,
    n_destinations, n_cases)
    """

    def forward(self, weights: Array, v: Array) -> Array:
        """Return u = W(w) v."""

    def weight_gradient(self, v: Array, du: Array) -> Array:
        """Return the sum of du_j v_i over cases and each weight's connections, (n_chains, n_weights)."""

    def source_gradient(self, weights: Array, du: Array) -> Array:
        """Return the sum of w_k du_j over the connections of each unit, eqs. 44, 45.

        The result is (n_chains, n_units, n_cases).
        """


def configured(connections: Connections, n_units: int, n_destinations: int, xp: ModuleType) -> Configured:
    """Return the connections between two layers, with their tables on the device of `xp`."""
    if isinstance(connections, ConnectionTable):
        return _Sparse.from_table(connections, n_units, n_destinations, xp)
    return _Patches.from_generated(connections, n_units, xp)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of items by bin, as a gather from a table with one row for each bin.

    A scatter-add is unsuitable because its order of summation on a device varies.

    items    (n_bins, longest bin): the items of each bin, padded with item 0
    is_item  the same shape, 0 for padding; None without padding
    """

    items: Array
    is_item: Array | None

    @staticmethod
    def from_bins(bins: Array, n_bins: int, xp: ModuleType) -> _Sums:
        """Prepare sums from the bin of each item, (n_items,); a negative bin means that it has none."""
        order = np.argsort(bins, kind="stable")
        order = order[bins[order] >= 0]
        counts = np.bincount(bins[order], minlength=n_bins)
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        items = np.zeros((n_bins, max(int(counts.max(initial=0)), 1)), dtype=np.int64)
        items[bins[order], place] = order
        is_item = np.arange(items.shape[1]) < counts[:, None]
        return _Sums(xp.asarray(items), None if is_item.all() else xp.asarray(is_item))

    def __call__(self, values: Array) -> Array:
        """Sum values (n_chains, n_items, n) to (n_chains, n_bins, n)."""
        if self.items.shape[1] == 1:
            chosen = values[:, self.items[:, 0]]
            return chosen if self.is_item is None else chosen * self.is_item
        chosen = values[:, self.items]  # (n_chains, n_bins, longest, n)
        if self.is_item is not None:
            chosen *= self.is_item[:, :, None]
        return chosen.sum(axis=2)


@dataclass(frozen=True, eq=False)
class _Sparse:
    """Connections of a table, as a matrix with zeros for pairs of units that are not connected.

    rows        rows of the source that the matrix multiplies: its units, or only the ones for biases
    n_columns   number of units of the destination
    cells       (n_cells,) places in the flat matrix that have connections
    weights_of  the weight of each connection
    cells_of    the cell of each connection
    to_cells    sums the weights of the connections by cell
    to_weights  sums the cells of the connections by weight
    """

    rows: slice
    n_columns: int
    cells: Array
    weights_of: Array
    cells_of: Array
    to_cells: _Sums
    to_weights: _Sums

    @staticmethod
    def from_table(table: ConnectionTable, n_units: int, n_destinations: int, xp: ModuleType) -> _Sparse:
        is_bias = not table.sources
        weights, destinations = np.array(table.weights), np.array(table.destinations)
        sources = np.zeros_like(destinations) if is_bias else np.array(table.sources)
        places = sources * n_destinations + destinations
        cells, cell_of = np.unique(places, return_inverse=True)
        return _Sparse(
            rows=slice(n_units, n_units + 1) if is_bias else slice(0, n_units),
            n_columns=n_destinations,
            cells=xp.asarray(cells),
            weights_of=xp.asarray(weights),
            cells_of=xp.asarray(places),
            to_cells=_Sums.from_bins(cell_of.reshape(-1), len(cells), xp),
            to_weights=_Sums.from_bins(weights, table.n_weights, xp),
        )

    def _matrix(self, weights: Array) -> Array:
        """Return the weights as a matrix (n_chains, n_rows, n_destinations)."""
        xp = array_namespace(weights)
        n_rows = self.rows.stop - self.rows.start
        flat = xp.zeros((len(weights), n_rows * self.n_columns), dtype=weights.dtype)
        flat[:, self.cells] = self.to_cells(weights[:, self.weights_of, None])[:, :, 0]
        return flat.reshape(len(weights), n_rows, self.n_columns)

    def forward(self, weights: Array, v: Array) -> Array:
        xp = array_namespace(weights)
        return xp.matmul(self._matrix(weights).swapaxes(1, 2), v[..., self.rows, :])

    def weight_gradient(self, v: Array, du: Array) -> Array:
        xp = array_namespace(du)
        full = xp.matmul(v[..., self.rows, :], du.swapaxes(1, 2)).reshape(len(du), -1)
        return self.to_weights(full[:, self.cells_of, None])[:, :, 0]

    def source_gradient(self, weights: Array, du: Array) -> Array:
        return array_namespace(du).matmul(self._matrix(weights), du)


@dataclass(frozen=True, eq=False)
class _Patches:
    """Generated connections: gather the sources of every destination, then take one product for each group.

    units    (n_groups * n_sources * n_places,) rows of the source; padding refers to the first row
    inside   (n_groups, n_sources, n_places, 1) 0 for padding; None without padding
    shape    groups, sources of a destination, places
    weights  groups, sources of a destination (1 if all share a weight), destinations of a group
    to_units sums the derivatives of everything that each unit is a source of
    """

    units: Array
    inside: Array | None
    shape: tuple[int, int, int]
    weights: tuple[int, int, int]
    to_units: _Sums

    @staticmethod
    def from_generated(generated: Generated, n_units: int, xp: ModuleType) -> _Patches:
        units = generated.source_units() + (n_units if generated.kind == "channels" else 0)
        n_groups, n_sources, n_places = units.shape
        inside = units >= 0
        bins = np.where(units < n_units, units, -1)
        if generated.weights_shape[1] < n_sources:
            # All sources of a destination share a weight, and so they share a derivative, kept by place.
            by_place = np.broadcast_to(
                np.arange(n_groups)[:, None, None] * n_places + np.arange(n_places), units.shape
            )
            to_units = _Sums.from_bins(bins.reshape(-1), n_units, xp)
            to_units = _Sums(xp.asarray(by_place.reshape(-1))[to_units.items], to_units.is_item)
        else:
            to_units = _Sums.from_bins(bins.reshape(-1), n_units, xp)
        return _Patches(
            units=xp.asarray(np.where(inside, units, 0).reshape(-1)),
            inside=None if inside.all() else xp.asarray(inside[..., None]),
            shape=(n_groups, n_sources, n_places),
            weights=generated.weights_shape,
            to_units=to_units,
        )

    def _patches(self, v: Array) -> Array:
        """Return the sources of each place, (..., n_groups, n_sources or 1, n_places * n_cases)."""
        n_cases = v.shape[-1]
        gathered = v[..., self.units, :].reshape(*v.shape[:-2], *self.shape, n_cases)
        if self.inside is not None:
            gathered *= self.inside
        gathered = gathered.reshape(*gathered.shape[:-2], -1)
        return gathered if self.weights[1] == self.shape[1] else gathered.sum(axis=-2, keepdims=True)

    def forward(self, weights: Array, v: Array) -> Array:
        xp = array_namespace(weights)
        matrix = weights.reshape(len(weights), *self.weights).swapaxes(2, 3)
        return xp.matmul(matrix, self._patches(v)).reshape(len(weights), -1, v.shape[-1])

    def weight_gradient(self, v: Array, du: Array) -> Array:
        xp = array_namespace(du)
        product = xp.matmul(self._patches(v), self._by_group(du).swapaxes(2, 3))
        return product.reshape(len(du), -1)

    def source_gradient(self, weights: Array, du: Array) -> Array:
        xp = array_namespace(du)
        matrix = weights.reshape(len(weights), *self.weights)
        product = xp.matmul(
            matrix, self._by_group(du)
        )  # (n_chains, n_groups, n_sources or 1, n_places * n_cases)
        return self.to_units(product.reshape(len(du), -1, du.shape[-1]))

    def _by_group(self, du: Array) -> Array:
        """Reshape to (n_chains, n_groups, destinations of a group, n_places * n_cases)."""
        return du.reshape(len(du), self.weights[0], self.weights[2], -1)
