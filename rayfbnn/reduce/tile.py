"""Blocks of draws, read in units of the store, and sums over them at a tile of cases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.fits import modes, outputs_about_modes
from rayfbnn.draws.outputs import activation_bytes, network_outputs, posterior_of
from rayfbnn.draws.view import Draws
from rayfbnn.errors import StoreError
from rayfbnn.kernels.backend import Reducer
from rayfbnn.kernels.choose import reducer_for
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.model.prior import noise_precisions

_COPIES_READ = 2  # of draws while they are read, in float64 at most
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
    needed, memory = _COPIES_READ * 8 * n_values * unit.n_draws, memory_of_machine()
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
            run.starts(*at).reshape(-1) if run.is_linear else None,
        )
        self._keep(unit, block)
        return block

    def _keep(self, unit: Unit, block: DrawBlock) -> None:
        """Keep a block if there is room. The next pass reads the oldest block first, so none is replaced."""
        size = block.positions.nbytes + block.noise.nbytes
        if size <= self._free:
            self._kept[unit] = block
            self._free -= size


_MEMORY_BYTES = 16e6  # at most: larger blocks only wait for memory
_COPIES = 6  # of a block's outputs, in float64, held at once


class Tile:
    """One run's networks at some cases; its sums are over the draws of a block."""

    def __init__(
        self, run: Draws, inputs: Array, *, memory_bytes: float = _MEMORY_BYTES, device: str = "cpu"
    ) -> None:
        """Take standardised inputs, (n_cases, n_inputs), and the memory for networks at work.

        device  "cpu" or "gpu", where compiled sums are computed
        """
        self._run, self._posterior = run, posterior_of(run)
        self._modes = modes(run) if run.is_linear else None
        self.model, self.n_cases = run.spec.data_model, len(inputs)
        self._inputs = self.model.cell_inputs(inputs)
        self._compiled = (
            reducer_for(self._posterior, self._inputs, device=device) if self._modes is None else None
        )
        of_layers = activation_bytes(run.spec.network, run.spec.dtype)
        of_outputs = 8 * _COPIES * run.spec.network.outputs
        self._memory_bytes = min(memory_bytes, _MEMORY_BYTES)
        self._draws_at_once = max(1, int(self._memory_bytes / (len(self._inputs) * (of_layers + of_outputs))))

    def outputs(self, block: DrawBlock) -> Array:
        """Return the outputs of each draw, (n_draws, n_cases, n_outputs), or (..., n_cells) for cells."""
        if self._compiled is not None:
            outputs = self._compiled.outputs(block.positions).swapaxes(1, 2)
        elif self._modes is None:
            outputs = network_outputs(
                self._posterior, block.positions[None], self._inputs, self._memory_bytes
            )
        else:
            assert block.starts is not None
            starts, positions = block.starts[None], block.positions[None]
            outputs = outputs_about_modes(self._posterior, self._modes, starts, positions, self._inputs)
        return outputs.reshape(len(block), self.n_cases, -1)

    def parts(self, block: DrawBlock) -> Iterator[tuple[slice, DrawBlock, Array]]:
        """Yield draws of a block in bounded memory, with their outputs."""
        for first in range(0, len(block), self._draws_at_once):
            at = slice(first, min(first + self._draws_at_once, len(block)))
            some = block.some(at)
            yield at, some, self.outputs(some)

    def finite_parts(self, block: DrawBlock) -> Iterator[tuple[slice, DrawBlock, Array]]:
        """Yield what `parts` does; StoreError if an output is not finite."""
        for at, some, outputs in self.parts(block):
            self._check_finite(outputs)
            yield at, some, outputs

    def add_moments(
        self, block: DrawBlock, pieces: Array, shift: Array, sums: tuple[Array, Array, Array]
    ) -> None:
        """Add the mean m and the variance u of each target given each draw.

        Parameters
        ----------
        pieces : (n_draws,)    numbers of the pieces that the draws belong to, below n_pieces
        shift : (n_values, n_cases)
        sums                   of m - shift by piece, (n_pieces, n_values, n_cases), and of (m - shift)**2 and
                               u, (n_values, n_cases) each
        """
        if self._compiled is not None and self._add_compiled_moments(block, pieces, shift, sums):
            return
        for at, some, outputs in self.finite_parts(block):
            with np.errstate(over="ignore", invalid="ignore"):
                moments = self.model.target_moments(*by_draw(outputs, some))
                add_excess(moments, pieces[at], shift, sums)

    def _add_compiled_moments(
        self, block: DrawBlock, pieces: Array, shift: Array, sums: tuple[Array, Array, Array]
    ) -> bool:
        """Add the moments by compiled code, and return True; False if an output is not finite."""
        assert self._compiled is not None
        by_piece, squares, variances = (np.zeros_like(part) for part in sums)
        self._compiled.add_moments(
            block.positions, block.sigmas, pieces, shift, (by_piece, squares, variances)
        )
        excess, n = by_piece.sum(axis=0), len(block)
        if not np.isfinite(excess).all() or np.isnan(variances).any():
            return False
        if self.model.has_noise:
            means = np.zeros((1, block.noise.shape[1], n))
            variances += self.model.target_moments(means, block.sigmas.T[None])[1].sum(axis=2).T
        elif self.model.has_labels:  # p - p**2
            variances += (excess + n * shift) - (squares + 2 * shift * excess + n * shift**2)
        elif self.model.has_modes:
            variances += excess + n * shift
        for total, part in zip(sums, (by_piece, squares, variances), strict=True):
            total += part
        return True

    def add_scores(self, block: DrawBlock, targets: Array, maxima: Array, scaled: Array) -> None:
        """Add the joint density of each case's targets: log sum = maxima + log(scaled), (n_cases,) each.

        targets  (n_cases, n_targets), standardised
        """
        if self._compiled is not None:
            self._compiled.add_scores(block.positions, block.noise, targets, maxima, scaled)
            return
        for _, some, outputs in self.parts(block):
            density = self.model.log_density(outputs, targets, some.noise)
            largest = np.maximum(maxima, density.max(axis=0))
            with np.errstate(invalid="ignore"):
                before = np.where(np.isneginf(maxima), 0.0, np.exp(maxima - largest))
                added = np.where(np.isneginf(largest), 0.0, np.exp(density - largest).sum(axis=0))
            scaled *= before
            scaled += added
            maxima[...] = largest

    def add_distribution(self, block: DrawBlock, guesses: Array, sums: Array) -> None:
        """Add F, f and f' at guesses (n_guesses, n_cases, n_targets) to sums, (3, *guesses.shape)."""
        if self._compiled is not None:
            added = np.zeros(np.swapaxes(sums, 2, 3).shape)
            self._compiled.add_distribution(block.positions, block.sigmas, guesses.swapaxes(1, 2), added)
            if self.model.has_modes:
                added[2] = np.nan
            sums += added.swapaxes(2, 3)
            return
        for _, some, outputs in self.parts(block):
            given = by_draw(outputs, some)
            for number, values in enumerate(guesses):
                sums[:, number] += self.model.distribution(*given, values)

    def add_mass(self, block: DrawBlock, counts: Array, sums: Array) -> None:
        """Add the probabilities of counts (n_counts, n_cases, n_targets) to sums of the same shape."""
        if self._compiled is not None:
            added = np.zeros(np.swapaxes(sums, 1, 2).shape)
            self._compiled.add_mass(block.positions, block.sigmas, counts.swapaxes(1, 2), added)
            sums += added.swapaxes(1, 2)
            return
        for _, some, outputs in self.parts(block):
            given = by_draw(outputs, some)
            for number, values in enumerate(counts):
                sums[number] += self.model.mass(*given, values)

    def curves(self, block: DrawBlock) -> dict[str, Array]:
        """Return sums over draws of the data model's further columns, by name, (n_cases,) each."""
        if not self.model.has_curves:
            return {}
        if self._compiled is not None and isinstance(self.model, SurvivalTargets):
            return self._compiled_curve(block, self._compiled, self.model)
        total: dict[str, Array] = {}
        for _, some, outputs in self.parts(block):
            for name, sums in self.model.curves(by_draw(outputs, some)[0], self._run.data.targets).items():
                total[name] = total.get(name, 0.0) + sums
        return total

    def _compiled_curve(
        self, block: DrawBlock, compiled: Reducer, model: SurvivalTargets
    ) -> dict[str, Array]:
        times = model.curve_times(self._run.data.targets)
        sums = np.zeros((3, len(times), 1, self.n_cases))
        guesses = np.broadcast_to(times[:, None, None], sums.shape[1:])
        compiled.add_distribution(block.positions, block.sigmas, guesses, sums)
        return dict(zip(model.curve_names(times), len(block) - sums[0, :, 0], strict=True))

    def _check_finite(self, outputs: Array) -> None:
        if math.isfinite(float(np.abs(outputs).sum(dtype=np.float64))):
            return
        n_bad, dtype = int((~np.isfinite(outputs).all(axis=(1, 2))).sum()), self._run.spec.dtype
        if n_bad == 0:
            return
        better = "sample with dtype = float64 or " if dtype == "float32" else "sample with "
        raise StoreError(
            f"{self._run.path}: at least {n_bad} of the draws have outputs that are not finite in {dtype};"
            f" {better}less vague priors (larger alphas, smaller widths)"
        )


def add_excess(
    moments: Sequence[Array], pieces: Array, shift: Array, sums: tuple[Array, Array, Array]
) -> None:
    """Add means and variances given each draw, as `Tile.add_moments` does.

    moments  means and variances, (n_cases, n_values, n_draws) each
    """
    mean, variance = moments
    by_piece, squares, variances = sums
    excess = np.asarray(np.moveaxis(mean, 2, 0), dtype=np.float64).swapaxes(1, 2) - shift
    starts = np.flatnonzero(np.diff(pieces, prepend=-1))
    np.add.at(by_piece, pieces[starts], np.add.reduceat(excess, starts, axis=0))
    squares += np.square(excess).sum(axis=0)
    variances += variance.sum(axis=2, dtype=np.float64).T


def by_draw(outputs: Array, block: DrawBlock) -> tuple[Array, Array]:
    """Return outputs (n_cases, n_outputs, n_draws), and sigmas of the noise (1, n_targets, n_draws)."""
    return np.moveaxis(outputs, 0, 2), np.ascontiguousarray(block.sigmas.T)[None]
