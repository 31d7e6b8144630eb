"""Sums over draws in compiled code, fused with the networks' forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cpu.compiled_module import BLAS_FROM, LARGE_FROM, kernel_for
from rayfbnn.kernels.planning import plan_of
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.real import RealTargets
from rayfbnn.model.network import input_rows
from rayfbnn.model.posterior import Posterior

_BLOCK_BYTES = (
    24576  # for the layers of a block of cases, so that they and the sums stay in the nearest cache
)
_NEVER = 2**62  # bytes: the kernel always has its own copy of the inputs


@dataclass(frozen=True)
class CompiledReducer:
    """The networks of a posterior at some cases.

    In all methods positions are (n_draws, n_parameters) in the dtype of the posterior and in C order, and the
    sums over draws are added to the last arguments.

    has_moments, has_distribution  whether the data model has `add_moments` and `add_distribution`
    """

    model: DataModel
    has_moments: bool
    has_distribution: bool
    n_cases: int
    n_outputs: int
    _kernel: Any
    _dtype: str

    def outputs(self, positions: Array) -> Array:
        """Return the outputs of each draw, (n_draws, n_outputs, n_cases)."""
        outputs = np.empty((len(positions), self.n_outputs, self.n_cases), dtype=self._dtype)
        self._kernel.outputs(positions=positions, outputs=outputs)
        return outputs

    def add_moments(
        self, positions: Array, pieces: Array, shift: Array, sums: tuple[Array, Array, Array]
    ) -> None:
        """Add the mean m of each value given each draw.

        Parameters
        ----------
        pieces : (n_draws,)              numbers of pieces; successive draws of one piece are added fast
        shift : (n_values, n_cases)
        sums                             of m - shift by piece (n_pieces, n_values, n_cases), of its square
                                         (n_values, n_cases), and of the variance of heteroscedastic noise

        For other data models the last sums become NaN if an output is not finite.
        """
        by_piece, squares, variances = sums
        self._kernel.add_moments(
            positions=positions,
            pieces=np.ascontiguousarray(pieces, dtype=np.int32),
            shift=np.ascontiguousarray(shift),
            sums=by_piece,
            squares=squares,
            variances=variances,
        )

    def add_scores(
        self, positions: Array, noise: Array, targets: Array, maxima: Array, scaled: Array
    ) -> None:
        """Add the joint density of each case's targets: log sum = maxima + log(scaled), (n_cases,) each.

        noise    (n_draws, n_targets) precisions; no targets without noise
        targets  (n_cases, n_targets), standardised
        """
        model = self.model
        n_targets = targets.shape[1]
        normalisers = np.zeros((len(positions), n_targets)) + model.log_normalisers(noise)
        weights = model.observed(targets)
        self._kernel.add_scores(
            positions=positions,
            noise=np.ascontiguousarray(noise, dtype=np.float64) if noise.shape[1] else None,
            normalisers=normalisers,
            targets=np.ascontiguousarray(model.target_rows(targets), dtype=np.float64),
            weights=None if weights is None else np.ascontiguousarray(weights, dtype=np.float64),
            maxima=maxima,
            scaled=scaled,
        )

    def add_distribution(self, positions: Array, sigmas: Array, guesses: Array, sums: Array) -> None:
        """Add F, f and f' at guesses (n_guesses, n_targets, n_cases) to (3, n_guesses, n_targets, n_cases).

        sigmas  (n_draws, n_targets) of the noise; no targets for heteroscedastic noise
        """
        # Imported here because sampling does not need SciPy.
        from rayfbnn.model.mixtures.gaussian import normal_tail_cubics, t_tail_cubics

        cubics, rate = None, 0.0
        if isinstance(self.model, RealTargets) and math.isfinite(self.model.alpha):
            cubics, rate = t_tail_cubics(self.model.alpha)
        elif self._dtype == "float64":
            cubics, rate = normal_tail_cubics()
        self._kernel.add_distribution(
            positions=positions,
            sigmas=np.ascontiguousarray(sigmas, dtype=np.float64) if sigmas.shape[1] else None,
            guesses=np.ascontiguousarray(guesses, dtype=self._dtype),
            table=cubics,
            table_rate=rate,
            sums=sums,
        )


def reducer(posterior: Posterior, inputs: Array, instruction_set: str) -> CompiledReducer | NotCovered:
    """Return the compiled sums for the networks of a posterior at standardised inputs (n_cases, n_inputs)."""
    plan = plan_of(posterior)
    if isinstance(plan, NotCovered):
        return plan
    kernel = kernel_for(
        plan,
        input_rows(np.asarray(inputs, dtype=np.float64), posterior.dtype),
        instruction_set=instruction_set,
        n_partitions=1,
        large_from=LARGE_FROM,
        blas_from=BLAS_FROM,
        block_bytes=_BLOCK_BYTES,
        rows_from=_NEVER,
    )
    model = posterior.data_model
    name = model.compiled_name
    return CompiledReducer(
        model,
        has_moments=name != "survival",
        has_distribution=name in ("gaussian", "t", "heteroscedastic"),
        n_cases=len(inputs),
        n_outputs=posterior.network.outputs,
        _kernel=kernel,
        _dtype=posterior.dtype,
    )
