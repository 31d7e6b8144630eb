"""Tiles: some of a posterior's cases on a device, in the form that the kernels of a pass read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.checks import stride


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile of n cases.

    inputs   (n_inputs + 1, n); or (n_chains, n_inputs + 1, n) if each chain has its own
    targets  (..., n_outputs, n_cases); the tile's targets start at case number `begin`
    weights  weights of the targets, (..., n_targets, n_cases), or None
    """

    inputs: Array
    targets: Array
    weights: Array | None
    begin: int

    @property
    def n(self) -> int:
        """Number of cases in the tile."""
        return int(self.inputs.shape[-1])


def output_arguments(position: Array, noise: Array, tile: Tile) -> tuple[Any, ...]:
    """Return the arguments that OUTPUT_ARGUMENTS of layers.cuh declares."""
    xp = array_namespace(tile.inputs)
    weights = xp.empty(0) if tile.weights is None else tile.weights
    return (
        position,
        noise,
        xp.ascontiguousarray(tile.targets, dtype=position.dtype),
        tile.targets,
        weights,
        np.int64(stride(tile.targets)),
        np.int64(stride(weights)),
        np.int32(len(position)),
        np.int32(tile.targets.shape[-1]),
        np.int32(tile.begin),
        np.int32(tile.n),
    )
