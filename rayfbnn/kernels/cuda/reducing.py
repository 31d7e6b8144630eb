"""Sums over draws on a device, fused with the networks' forward pass: the kernels of reduce.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda.build import Build, build_once
from rayfbnn.kernels.cuda.checks import check
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.cuda.source_functions import Functions
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.kernels.planning import plan_of
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.network import input_rows
from rayfbnn.model.posterior import Posterior

_THREADS = 128
_SHARED_BYTES = 16 * 1024  # for the parameters of some draws, so that several blocks fit on a multiprocessor
_MOST_PARAMETERS = 4096  # the loops over a network's weights are unrolled
_BLOCKS = 4096  # in a launch, if there are enough draws: several for each place on a device
_LEAST_DRAWS = 32  # of a segment
_MOST_GUESSES = 5  # at once, because a thread has the sums of all guesses in registers


@dataclass(frozen=True, eq=False)
class DeviceReducer:
    """The networks of a posterior at some cases; the methods are those of `Reducer`.

    xp  the module of the device's arrays
    """

    model: DataModel
    has_moments: bool
    has_distribution: bool
    n_cases: int
    n_outputs: int
    _network: NetworkPlan
    _plan: LaunchPlan
    _dtype: str
    _inputs: Array
    _build: Build
    _xp: Any
    _functions: dict[int, Functions] = field(default_factory=dict)

    def outputs(self, positions: Array) -> Array:
        """Return the outputs of each draw, (n_draws, n_outputs, n_cases)."""
        outputs = self._xp.empty((len(positions), self.n_outputs, self.n_cases), dtype=self._dtype)
        self._launch("outputs_of_draws", positions, self._segments(len(positions)), outputs)
        return to_host(outputs)

    def add_moments(
        self, positions: Array, pieces: Array, shift: Array, sums: tuple[Array, Array, Array]
    ) -> None:
        """Add the mean m of each value given each draw."""
        by_piece, squares, variances = sums
        pieces = np.asarray(pieces, dtype=np.int32)
        if len(pieces) and not (0 <= pieces.min() and pieces.max() < len(by_piece)):
            raise ValueError(f"pieces: must be numbers of sums, below {len(by_piece)}")
        check("shift", np.ascontiguousarray(shift), np.dtype(np.float64), squares.shape)
        starts = self._segments(len(positions), np.flatnonzero(np.diff(pieces)) + 1)
        size, n_segments = squares.size, len(starts) - 1
        parts = self._xp.empty((n_segments, 3, size))
        self._launch("moments_of_draws", positions, starts, self._there(shift), parts)
        rows = pieces[starts[:-1]] if n_segments else pieces
        self._add(parts, rows, by_piece, 0)
        for number, total in ((1, squares), (2, variances)):
            self._add(parts, np.zeros_like(rows), total[None], number)

    def add_scores(
        self, positions: Array, noise: Array, targets: Array, maxima: Array, scaled: Array
    ) -> None:
        """Add the joint density of each case's targets."""
        model, n_targets = self.model, targets.shape[1]
        normalisers = np.zeros((len(positions), n_targets)) + model.log_normalisers(noise)
        weights = model.observed(targets)
        starts = self._segments(len(positions))
        n_segments = len(starts) - 1
        parts = self._xp.empty((n_segments, 2, self.n_cases))
        arguments = (
            self._there(model.target_rows(targets)),
            self._there(np.empty(0) if weights is None else weights),
            self._there(noise),
            self._there(normalisers),
            parts,
        )
        self._launch("scores_of_draws", positions, starts, *arguments, is_weighted=weights is not None)
        there = self._there(maxima), self._there(scaled)
        counts = np.int32(n_segments), np.int32(self.n_cases)
        self._of(1).launch("merge_scores", -(-self.n_cases // _THREADS), parts, *there, *counts)
        maxima[...], scaled[...] = map(to_host, there)

    def add_distribution(self, positions: Array, sigmas: Array, guesses: Array, sums: Array) -> None:
        """Add F, f and f' at guesses."""
        # Imported here because sampling does not need SciPy.
        from rayfbnn.model.mixtures.gaussian import t_tail_cubics

        check("sums", sums, np.dtype(np.float64), (3, *guesses.shape))
        cubics, rate = np.zeros((1, 4)), 0.0
        if self.model.compiled_name == "t":
            cubics, rate = t_tail_cubics(self._network.alpha)
        starts = self._segments(len(positions))
        table = self._there(cubics), np.float64(rate), np.int32(len(cubics))
        sigmas = self._there(sigmas)
        for first in range(0, len(guesses), _MOST_GUESSES):
            some = guesses[first : first + _MOST_GUESSES]
            parts = self._xp.empty((len(starts) - 1, 3, some.size))
            arguments = self._there(some), sigmas, *table, parts
            self._launch("distribution_of_draws", positions, starts, *arguments, n_guesses=len(some))
            rows = np.zeros(len(starts) - 1, dtype=np.int32)
            for number in range(3):
                total = np.ascontiguousarray(sums[number, first : first + len(some)])
                self._add(parts, rows, total[None], number)
                sums[number, first : first + len(some)] = total

    def add_mass(self, positions: Array, counts: Array, sums: Array) -> None:
        """Never called, because `has_distribution` is False for counts."""
        raise NotImplementedError("probabilities of counts are left to the host")

    def _segments(self, n_draws: int, ends: Array | tuple[int, ...] = ()) -> Array:
        """Return where segments of draws start, and the end, (n_segments + 1,) int32.

        ends  numbers of draws where a segment must start
        """
        n_wanted = max(1, _BLOCKS // -(-self.n_cases // _THREADS))
        length = max(_LEAST_DRAWS, -(-n_draws // n_wanted))
        return np.unique([0, *range(0, n_draws, length), *ends, n_draws]).astype(np.int32)

    def _launch(
        self,
        name: str,
        positions: Array,
        starts: Array,
        *arguments: Any,
        n_guesses: int = 1,
        is_weighted: bool = False,
    ) -> None:
        """Launch a kernel with a block for each segment of draws and _THREADS cases."""
        n_segments = len(starts) - 1
        check("positions", positions, np.dtype(self._dtype), (len(positions), self._network.n_parameters))
        given = self._there(positions, self._dtype), self._inputs, self._there(starts, np.int32)
        counts = np.int32(n_segments), np.int32(self.n_cases)
        n_blocks = n_segments * -(-self.n_cases // _THREADS)
        functions = self._of(n_guesses)
        functions.launch(name, n_blocks, *given, *counts, *arguments, is_weighted=is_weighted)

    def _add(self, parts: Array, rows: Array, sums: Array, number: int) -> None:
        """Add the sums `number` of all segments to rows of the sums, (n_rows, ...)."""
        n_segments, n_kinds, size = parts.shape
        there = self._there(sums.reshape(len(sums), -1))
        counts = np.int32(n_segments), np.int64(n_kinds * size), np.int64(number * size), np.int64(size)
        rows = self._there(rows, np.int32)
        self._of(1).launch("add_parts", -(-size // _THREADS), parts, rows, there, *counts)
        sums[...] = to_host(there).reshape(sums.shape)

    def _there(self, values: Array, dtype: Any = np.float64) -> Array:
        """Return a copy on the device, in C order."""
        return self._xp.array(values, dtype=dtype, order="C")

    def _of(self, n_guesses: int) -> Functions:
        """Return the functions compiled for a number of guesses, which most of them do not use."""
        if n_guesses not in self._functions:
            constants = guess_constants(n_guesses)
            self._functions[n_guesses] = Functions(
                self._network, self._plan, self._dtype, self._build, more_constants=constants
            )
        return self._functions[n_guesses]


def reducer(
    posterior: Posterior, inputs: Array, *, build: Build = build_once, xp: Any = None
) -> DeviceReducer | NotCovered:
    """Return the sums on the current device for a posterior's networks at standardised inputs.

    inputs  (n_cases, n_inputs), on the host
    xp      the module of the device's arrays; CuPy unless given
    """
    network = plan_of(posterior)
    if isinstance(network, NotCovered):
        return network
    plan = reduction_plan(network, posterior.dtype)
    if isinstance(plan, NotCovered):
        return plan
    if xp is None:
        import cupy

        xp = cupy
    rows = input_rows(np.asarray(inputs, dtype=np.float64), posterior.dtype)[: network.units[0]]
    name = posterior.data_model.compiled_name
    return DeviceReducer(
        posterior.data_model,
        has_moments=name != "survival",
        has_distribution=name in ("gaussian", "t", "heteroscedastic"),
        n_cases=len(inputs),
        n_outputs=posterior.network.outputs,
        _network=network,
        _plan=plan,
        _dtype=posterior.dtype,
        _inputs=xp.array(rows, order="C"),
        _build=build,
        _xp=xp,
    )


def guess_constants(n_guesses: int) -> tuple[str, ...]:
    """Return the constants of reduce.cu besides those of the network."""
    return (f"constexpr int N_GUESSES = {n_guesses};",)


def reduction_plan(network: NetworkPlan, dtype: str) -> LaunchPlan | NotCovered:
    """Return the plan of reduce.cu, or why it does not cover a network."""
    if network.n_parameters > _MOST_PARAMETERS:
        return NotCovered(f"networks of more than {_MOST_PARAMETERS:,} parameters")
    of_draw = network.n_parameters * np.dtype(dtype).itemsize
    at_once = max(1, math.floor(_SHARED_BYTES / of_draw))
    return LaunchPlan("reduce", _THREADS, tile=at_once, shared_bytes=at_once * of_draw)
