"""Reads the draws of a reduction in units, and keeps the first ones in memory for the next passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.fits import is_linear
from rayfbnn.draws.view import Draws
from rayfbnn.errors import StoreError
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.model.prior import noise_precisions

_COPIES = 2  # of draws while they are read, in float64 at most
KEPT_BYTES = 128e6  # of draws that the next passes of a process may use again


@dataclass(frozen=True)
class Unit:
    """Draws that one task reads: those of some chains in one chunk of a run's store.

    run            number of the run among those that are pooled
    chains, draws  slices of step 1 with both ends
    """

    run: int
    chains: tuple[int, int]
    draws: tuple[int, int]

    @property
    def n_draws(self) -> int:
        """Number of draws of all chains together."""
        return (self.chains[1] - self.chains[0]) * (self.draws[1] - self.draws[0])


@dataclass(frozen=True)
class DrawBlock:
    """Some draws in memory, one chain after the other.

    positions   (n_draws, n_parameters) in the dtype of the run, in C order
    noise       (n_draws, n_targets): the precision of the noise of each target; no targets without noise
    starts      (n_draws,): the start of each draw of an approximation that is linear about modes, else None
    """

    positions: Array
    noise: Array
    starts: Array | None

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def sigmas(self) -> Array:
        """Standard deviations of the noise, (n_draws, n_targets)."""
        return self.noise**-0.5

    def some(self, at: slice) -> DrawBlock:
        """Return the draws of a slice."""
        return DrawBlock(
            np.ascontiguousarray(self.positions[at]),
            self.noise[at],
            None if self.starts is None else self.starts[at],
        )


def units_of(runs: Sequence[Draws]) -> Iterator[Unit]:
    """Yield the units of all runs in their fixed order, which depends only on the stores."""
    for number, run in enumerate(runs):
        for chains, draws in run.chunks():
            yield Unit(number, (chains.start, chains.stop), (draws.start, draws.stop))


def first_draw(run: Draws) -> DrawBlock:
    """Return the first draw of the first chain."""
    return Reader([run]).block(Unit(0, (0, 1), (0, 1)))


def bytes_of(run: Draws) -> int:
    """Return the number of bytes that all draws of a run take in a Reader."""
    of_positions = run.parameter_layout.n_parameters * np.dtype(run.spec.dtype).itemsize
    return run.total * (of_positions + 8 * run.data.n_targets)


def _check_memory(run: Draws, unit: Unit) -> None:
    """Raise StoreError if the draws of a unit do not fit into the memory while they are read."""
    n_values = run.parameter_layout.n_parameters + run.precision_layout.n_precisions
    needed, memory = _COPIES * 8 * n_values * unit.n_draws, memory_of_machine()
    if needed > memory:
        raise StoreError(
            f"{run.path}: draws {unit.draws[0]} to {unit.draws[1] - 1} of chains {unit.chains[0]} to"
            f" {unit.chains[1] - 1} are stored together and take {bytes_text(needed)} of memory, but this"
            f" machine has {bytes_text(memory)}; use a larger one"
        )


class Reader:
    """Reads units of the runs of a reduction, and keeps as many as fit into some memory."""

    def __init__(self, runs: Sequence[Draws], *, kept_bytes: float = KEPT_BYTES) -> None:
        self.runs = runs
        self._kept: dict[Unit, DrawBlock] = {}
        self._free = kept_bytes

    def block(self, unit: Unit) -> DrawBlock:
        """Return the draws of a unit; StoreError if they do not fit into the memory of this machine."""
        if unit in self._kept:
            return self._kept[unit]
        run, at = self.runs[unit.run], (slice(*unit.chains), slice(*unit.draws))
        _check_memory(run, unit)
        positions = run.positions(*at)
        dtype = run.spec.dtype
        precisions = run.precisions(*at)
        block = DrawBlock(
            np.ascontiguousarray(positions, dtype=dtype).reshape(-1, positions.shape[-1]),
            noise_precisions(precisions.reshape(unit.n_draws, -1), run.precision_layout),
            run.starts(*at).reshape(-1) if is_linear(run) else None,
        )
        self._keep(unit, block)
        return block

    def kept_first(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units with those in memory first, so that the fewest are read again."""
        return sorted(units, key=lambda unit: unit not in self._kept)

    def _keep(self, unit: Unit, block: DrawBlock) -> None:
        """Keep a block if there is room. The next pass reads the oldest block first, so none is replaced."""
        size = block.positions.nbytes + block.noise.nbytes
        if size <= self._free:
            self._kept[unit] = block
            self._free -= size
