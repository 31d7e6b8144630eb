"""Sums over draws in compiled code, fused with the networks' forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cpu.compiled_module import BLAS_FROM, LARGE_FROM, kernel_for
from rayfbnn.kernels.network_plan import hazard_starts, plan_of_predictions
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.real import RealTargets
from rayfbnn.model.network import input_rows
from rayfbnn.model.posterior import Posterior

_BLOCK_BYTES = 24576  # for the layers of a block of cases: with the sums they stay in the nearest cache
_NEVER = 2**62  # bytes: the kernel always has its own copy of the inputs
_GROUP = 16  # cases with their cells together, as Reduction in trajectory.hpp describes


@dataclass(frozen=True)
class CompiledReducer:
    """The networks of a posterior at some cases; the methods are those of `Reducer`.

    n_cells  of a case: the pieces of a hazard, otherwise 1
    """

    model: DataModel
    n_cases: int
    n_cells: int
    n_outputs: int
    _kernel: Any
    _dtype: str

    def outputs(self, positions: Array) -> Array:
        n_draws, n_columns = len(positions), self._width * self.n_cells
        outputs = np.empty((n_draws, self.n_outputs, n_columns), dtype=self._dtype)
        self._kernel.outputs(positions=positions, outputs=outputs)
        if self.n_cells == 1:
            return outputs
        by_case = outputs.reshape(n_draws, -1, self.n_cells, _GROUP).swapaxes(2, 3)
        return by_case.reshape(n_draws, 1, n_columns)[..., : self.n_cases * self.n_cells]

    def add_moments(
        self,
        positions: Array,
        sigmas: Array,
        pieces: Array,
        shift: Array,
        sums: tuple[Array, Array, Array],
    ) -> None:
        by_piece, squares, variances = wide = [self._widened(part) for part in sums]
        self._kernel.add_moments(
            positions=positions,
            shapes=self.model.compiled_shapes(sigmas),
            pieces=np.ascontiguousarray(pieces, dtype=np.int32),
            shift=np.ascontiguousarray(self._widened(shift)),
            sums=by_piece,
            squares=squares,
            variances=variances,
        )
        self._narrow(wide, sums)

    def add_scores(
        self, positions: Array, noise: Array, targets: Array, maxima: Array, scaled: Array
    ) -> None:
        model = self.model
        n_targets = targets.shape[1]
        normalisers = np.zeros((len(positions), n_targets)) + model.log_normalisers(noise)
        weights = model.observed(targets)
        rows = in_groups(model.target_rows(targets).T, self.n_cells).T
        wide = [self._widened(maxima), self._widened(scaled)]
        self._kernel.add_scores(
            positions=positions,
            noise=np.ascontiguousarray(model.bounded(noise), dtype=np.float64) if noise.shape[1] else None,
            normalisers=normalisers,
            targets=np.ascontiguousarray(rows, dtype=np.float64),
            weights=None if weights is None else np.ascontiguousarray(weights, dtype=np.float64),
            maxima=wide[0],
            scaled=wide[1],
        )
        self._narrow(wide, (maxima, scaled))

    def add_distribution(self, positions: Array, sigmas: Array, guesses: Array, sums: Array) -> None:
        cubics, rate = None, 0.0
        if isinstance(self.model, RealTargets) and math.isfinite(self.model.alpha):
            # Imported here because sampling does not need SciPy.
            from rayfbnn.model.likelihood.real import t_tail_cubics

            cubics, rate = t_tail_cubics(self.model.alpha)
        dtype = self._dtype if self.model.quantile_scale == "linear" else "float64"
        wide, shapes = self._widened(sums), self.model.compiled_shapes(sigmas)
        are_given = shapes is None and sigmas.shape[1] > 0
        self._kernel.add_distribution(
            positions=positions,
            sigmas=np.ascontiguousarray(sigmas, dtype=np.float64) if are_given else None,
            shapes=shapes,
            guesses=np.ascontiguousarray(self._widened(guesses), dtype=dtype),
            constants=self._constants(guesses),
            table=cubics,
            table_rate=rate,
            sums=wide,
        )
        self._narrow((wide,), (sums,))

    def add_mass(self, positions: Array, sigmas: Array, counts: Array, sums: Array) -> None:
        self._kernel.add_mass(
            positions=positions,
            shapes=self.model.compiled_shapes(sigmas),
            counts=np.ascontiguousarray(counts, dtype=np.float64),
            constants=self._constants(counts),
            sums=sums,
        )

    def _constants(self, counts: Array) -> Array | None:
        if not self.model.has_modes:
            return None
        from rayfbnn.model.likelihood.count import count_constants

        return np.ascontiguousarray(count_constants(counts))

    @property
    def _width(self) -> int:
        """Number of cases in the kernel: with cells, whole groups."""
        return self.n_cases if self.n_cells == 1 else -(-self.n_cases // _GROUP) * _GROUP

    def _widened(self, values: Array) -> Array:
        """Return values (..., n_cases), with copies of the last case where the kernel has more cases."""
        missing = self._width - values.shape[-1]
        if self.n_cells == 1 or missing <= 0:
            return values
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], mode="edge")

    def _narrow(self, wide: Sequence[Array], given: Sequence[Array]) -> None:
        for total, part in zip(given, wide, strict=True):
            if part is not total:
                total[...] = part[..., : total.shape[-1]]


def in_groups(rows: Array, n_cells: int) -> Array:
    """Return rows of cells, (n_cases * n_cells, ...), in the order that kernels want.

    Sixteen cases are together: the first cells of all of them, then their second cells, and so on. The last
    case is repeated until its group is full. One cell for each case changes nothing.
    """
    if n_cells == 1:
        return rows
    cells = rows.reshape(-1, n_cells, *rows.shape[1:])
    cells = np.concatenate([cells, np.repeat(cells[-1:], -len(cells) % _GROUP, axis=0)])
    groups = cells.reshape(-1, _GROUP, n_cells, *rows.shape[1:]).swapaxes(1, 2)
    return groups.reshape(-1, *rows.shape[1:])


def reducer(posterior: Posterior, inputs: Array, instruction_set: str) -> CompiledReducer | None:
    """Return the compiled sums for the networks of a posterior at inputs, or None without a kernel.

    inputs  standardised (n_cases, n_inputs), or of all cells of each case, (n_cases * n_cells, n_inputs)
    """
    plan = plan_of_predictions(posterior)
    if isinstance(plan, NotCovered):
        return None
    model = posterior.data_model
    starts = hazard_starts(posterior)
    cells = in_groups(np.asarray(inputs, dtype=np.float64), len(starts))
    kernel = kernel_for(
        plan,
        input_rows(cells, posterior.dtype),
        instruction_set=instruction_set,
        n_partitions=1,
        large_from=LARGE_FROM,
        blas_from=BLAS_FROM,
        block_bytes=_BLOCK_BYTES,
        rows_from=_NEVER,
        starts=starts,
    )
    return CompiledReducer(
        model,
        n_cases=len(inputs) // len(starts),
        n_cells=len(starts),
        n_outputs=posterior.network.outputs,
        _kernel=kernel,
        _dtype=posterior.dtype,
    )
