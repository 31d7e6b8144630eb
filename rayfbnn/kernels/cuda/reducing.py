"""Sums over draws on a device: the kernels of reduce.cu.

The kernels evaluate networks of few parameters themselves. The networks of draws with more parameters are
evaluated by products, some draws at a time, and the kernels read the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda.build import Build, SourceFunctions, build_once
from rayfbnn.kernels.cuda.checks import check
from rayfbnn.kernels.cuda.forward import Forward
from rayfbnn.kernels.cuda.generate import reduction_constants
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.cuda.pass_kernels import PassKernels
from rayfbnn.kernels.network_plan import NetworkPlan, hazard_starts, plan_of_predictions
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.network import input_rows
from rayfbnn.model.posterior import Posterior

_THREADS = 128
_SHARED_BYTES = 16 * 1024  # for the parameters of some draws, so that several blocks fit on a multiprocessor
_MOST_FUSED = 4096  # the loops over the weights of these networks are unrolled
_TILE_BYTES = 2**30  # far more than it takes to fill a device
_BLOCKS = 4096  # in a launch, if there are enough draws: several for each place on a device
_LEAST_DRAWS = 32  # of a segment
_MOST_GUESSES = 5  # at once, because a thread has the sums of all guesses in registers
_MOST_SUMS = 10  # guesses at once, times targets


@dataclass(frozen=True, eq=False)
class DeviceReducer:
    """The networks of a posterior at some cases; the methods are those of `Reducer`.

    starts   times when the pieces of a hazard start; one number for other data models
    forward  passes by products; None if the kernels evaluate the networks
    inputs   (n_inputs + 1, n_cases * n_pieces) on the device: the first pieces of all cases first
    xp       the module of the device's arrays
    """

    model: DataModel
    n_cases: int
    _starts: tuple[float, ...]
    _network: NetworkPlan
    _plan: LaunchPlan
    _dtype: str
    _forward: Forward | None
    _inputs: Array
    _build: Build
    _xp: Any
    _functions: dict[int, SourceFunctions] = field(default_factory=dict)

    def outputs(self, positions: Array) -> Array:
        shape = len(positions), self._network.units[-1], self.n_cases * len(self._starts)
        outputs = np.empty(shape, dtype=self._dtype)
        for draws in self._evaluated(positions):
            part = self._xp.empty((len(draws.position), *shape[1:]), dtype=self._dtype)
            self._launch("outputs_of_draws", draws, part)
            outputs[draws.at] = to_host(part)
        return outputs

    def add_moments(
        self,
        positions: Array,
        sigmas: Array,
        pieces: Array,
        shift: Array,
        sums: tuple[Array, Array, Array],
    ) -> None:
        pieces = np.asarray(pieces, dtype=np.int32)
        if len(pieces) and not (0 <= pieces.min() and pieces.max() < len(sums[0])):
            raise ValueError(f"pieces: must be numbers of sums, below {len(sums[0])}")
        check("shift", np.ascontiguousarray(shift), np.dtype(np.float64), sums[1].shape)
        totals, by = [self._there(part) for part in sums], self._there(shift)
        for draws in self._evaluated(positions, pieces):
            parts = self._xp.empty((draws.n_segments, 3, shift.size))
            self._launch("moments_of_draws", draws, by, self._of_targets(sigmas[draws.at]), parts)
            self._add(parts, 0, totals[0], rows=pieces[draws.at][draws.starts[:-1]])
            self._add(parts, 1, totals[1])
            self._add(parts, 2, totals[2])
        for part, total in zip(sums, totals, strict=True):
            part[...] = to_host(total)

    def add_scores(
        self, positions: Array, noise: Array, targets: Array, maxima: Array, scaled: Array
    ) -> None:
        model, n_targets = self.model, targets.shape[1]
        normalisers = np.zeros((len(positions), n_targets)) + model.log_normalisers(noise)
        weights = model.observed(targets)
        rows = self._there(_first_cells_first(model.target_rows(targets), len(self._starts)))
        of_cases = rows, self._there(np.empty(0) if weights is None else weights)
        there = self._there(maxima), self._there(scaled)
        for draws in self._evaluated(positions):
            parts = self._xp.empty((draws.n_segments, 2, self.n_cases))
            of_draws = self._there(model.bounded(noise[draws.at])), self._there(normalisers[draws.at])
            is_weighted = weights is not None
            self._launch("scores_of_draws", draws, *of_cases, *of_draws, parts, is_weighted=is_weighted)
            counts = np.int32(draws.n_segments), np.int32(self.n_cases)
            self._of(1).launch("merge_scores", -(-self.n_cases // _THREADS), parts, *there, *counts)
        maxima[...], scaled[...] = map(to_host, there)

    def add_distribution(self, positions: Array, sigmas: Array, guesses: Array, sums: Array) -> None:
        check("sums", sums, np.dtype(np.float64), (3, *guesses.shape))
        cubics, rate = np.zeros((1, 4)), 0.0
        if self.model.compiled_name == "t":
            # Imported here because sampling does not need SciPy.
            from rayfbnn.model.likelihood.real import t_tail_cubics

            cubics, rate = t_tail_cubics(self._network.alpha)
        numbers = np.float64(rate), np.int32(len(cubics))
        groups, total = list(self._groups(guesses, cubics)), self._there(sums)
        for draws in self._evaluated(positions):
            there = self._of_targets(sigmas[draws.at])
            for at, some, table in groups:
                parts = self._xp.empty((draws.n_segments, 3, some.size))
                arguments = some, table, parts, there, *numbers
                self._launch("distribution_of_draws", draws, *arguments, n_guesses=len(some))
                for number in range(3):
                    self._add(parts, number, total[number, at])
        sums[...] = to_host(total)

    def add_mass(self, positions: Array, sigmas: Array, counts: Array, sums: Array) -> None:
        check("sums", sums, np.dtype(np.float64), counts.shape)
        groups, total = list(self._groups(counts)), self._there(sums)
        for draws in self._evaluated(positions):
            shapes = self._of_targets(sigmas[draws.at])
            for at, some, constants in groups:
                parts = self._xp.empty((draws.n_segments, 1, some.size))
                self._launch("mass_of_draws", draws, some, constants, shapes, parts, n_guesses=len(some))
                self._add(parts, 0, total[at])
        sums[...] = to_host(total)

    def _of_targets(self, sigmas: Array) -> Array:
        """Return on the device the sigmas of the noise, or what kernels need of the shapes of counts."""
        shapes = self.model.compiled_shapes(sigmas)
        return self._there(sigmas if shapes is None else shapes)

    def _groups(self, guesses: Array, table: Array | None = None) -> Iterator[tuple[slice, Array, Array]]:
        """Yield some guesses at a time: which ones, and on the device the guesses and the kernel's table.

        table  the same for all; of counts the table has their constants
        """
        most = min(_MOST_GUESSES, max(1, _MOST_SUMS // guesses.shape[1]))
        for first in range(0, len(guesses), most):
            at = slice(first, first + most)
            if self.model.has_modes:
                # Imported here because sampling does not need SciPy.
                from rayfbnn.model.likelihood.count import count_constants

                table = count_constants(guesses[at])
            yield at, self._there(guesses[at]), self._there(table)

    def _evaluated(self, positions: Array, pieces: Array | None = None) -> Iterator[_Draws]:
        """Yield all draws, or some at a time if products evaluate the networks.

        pieces  numbers of pieces, (n_draws,); no segment has draws of two of them
        """
        check("positions", positions, np.dtype(self._dtype), (len(positions), self._network.n_parameters))
        forward, n_columns = self._forward, self.n_cases * len(self._starts)
        most = max(1, len(positions)) if forward is None else forward.networks_at_once(n_columns)
        for first in range(0, len(positions), most):
            at = slice(first, min(first + most, len(positions)))
            position = self._there(positions[at], self._dtype)
            values = self._inputs if forward is None else forward.outputs(position, self._inputs)
            ends = () if pieces is None else np.flatnonzero(np.diff(pieces[at])) + 1
            yield _Draws(at, position, values, self._segments(len(position), ends))

    def _segments(self, n_draws: int, ends: Array | tuple[int, ...]) -> Array:
        """Return where segments of draws start, and the end, (n_segments + 1,) int32.

        ends  numbers of draws where a segment must start
        """
        n_wanted = max(1, _BLOCKS // -(-self.n_cases // _THREADS))
        length = max(_LEAST_DRAWS, -(-n_draws // n_wanted))
        return np.unique([0, *range(0, n_draws, length), *ends, n_draws]).astype(np.int32)

    def _launch(
        self, name: str, draws: _Draws, *arguments: Any, n_guesses: int = 1, is_weighted: bool = False
    ) -> None:
        """Launch a kernel with a block for each segment of draws and _THREADS cases."""
        counts = np.int32(draws.n_segments), np.int32(self.n_cases)
        given = draws.position, draws.values, self._there(draws.starts, np.int32), *counts
        n_blocks = draws.n_segments * -(-self.n_cases // _THREADS)
        self._of(n_guesses).launch(name, n_blocks, *given, *arguments, is_weighted=is_weighted)

    def _add(self, parts: Array, number: int, total: Array, *, rows: Array | None = None) -> None:
        """Add the sums `number` of all segments to their rows of a total; to its only row unless given."""
        n_segments, n_kinds, size = parts.shape
        numbers = np.int32(n_segments), np.int64(n_kinds * size), np.int64(number * size), np.int64(size)
        there = self._there(np.zeros(n_segments) if rows is None else rows, np.int32)
        self._of(1).launch("add_parts", -(-size // _THREADS), parts, there, total, *numbers)

    def _there(self, values: Array, dtype: Any = np.float64) -> Array:
        """Return a copy on the device, in C order."""
        return self._xp.array(values, dtype=dtype, order="C")

    def _of(self, n_guesses: int) -> SourceFunctions:
        """Return the functions compiled for a number of guesses, which most of them do not use."""
        if n_guesses not in self._functions:
            constants = reduction_constants(
                n_guesses=n_guesses, starts=self._starts, is_fused=self._forward is None
            )
            self._functions[n_guesses] = SourceFunctions(
                self._network, self._plan, self._dtype, self._build, constants
            )
        return self._functions[n_guesses]


@dataclass(frozen=True)
class _Draws:
    """Draws that a launch adds up.

    at        which of all draws they are
    position  (n_draws, n_parameters) on the device
    values    what draws.cuh reads on the device: the inputs, or the outputs of these draws
    starts    where segments start, and the end, (n_segments + 1,) int32
    """

    at: slice
    position: Array
    values: Array
    starts: Array

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return len(self.starts) - 1


def reducer(
    posterior: Posterior,
    inputs: Array,
    *,
    build: Build = build_once,
    xp: Any = None,
    most_fused: int = _MOST_FUSED,
    tile_bytes: int = _TILE_BYTES,
) -> DeviceReducer | None:
    """Return the sums on the current device for a posterior's networks, or None without a kernel.

    inputs      standardised, on the host: (n_cases, n_inputs), or of all cells (n_cases * n_cells, n_inputs)
    xp          the module of the device's arrays; CuPy unless given
    most_fused  parameters of networks that the kernels evaluate; products evaluate larger ones
    tile_bytes  for the units that products compute at once
    """
    network = plan_of_predictions(posterior)
    if isinstance(network, NotCovered):
        return None
    if xp is None:
        import cupy

        xp = cupy
    dtype, starts, forward = posterior.dtype, hazard_starts(posterior), None
    if network.n_parameters > most_fused:
        forward = Forward(PassKernels.of(network, dtype, build), tile_bytes)
    rows = input_rows(np.asarray(inputs, dtype=np.float64), dtype)
    return DeviceReducer(
        posterior.data_model,
        n_cases=len(inputs) // len(starts),
        _starts=starts,
        _network=network,
        _plan=reduction_plan(network, dtype, is_fused=forward is None),
        _dtype=dtype,
        _forward=forward,
        _inputs=xp.array(_first_cells_first(rows, len(starts)), order="C"),
        _build=build,
        _xp=xp,
    )


def _first_cells_first(rows: Array, n_cells: int) -> Array:
    """Return rows (n_rows, n_cases * n_cells) with the first cells of all cases before their second cells."""
    return rows.reshape(len(rows), -1, n_cells).swapaxes(1, 2).reshape(len(rows), -1)


def reduction_plan(network: NetworkPlan, dtype: str, *, is_fused: bool) -> LaunchPlan:
    """Return the plan of reduce.cu; if `is_fused` is True, the kernels evaluate the networks themselves."""
    if not is_fused:
        return LaunchPlan("reduce", _THREADS, tile=1, shared_bytes=0)
    of_draw = network.n_parameters * np.dtype(dtype).itemsize
    at_once = max(1, math.floor(_SHARED_BYTES / of_draw))
    return LaunchPlan("reduce", _THREADS, tile=at_once, shared_bytes=at_once * of_draw)
