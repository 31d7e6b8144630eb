"""The compiled extension module _cpu, and the construction of its class Kernel from a NetworkPlan."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.network_plan import NetworkPlan, RegressionPlan
from rayfbnn.streams import Purpose, Streams

LARGE_FROM = 2000
"""Number of weights at which a matrix and the sums of its gradient no longer fit in cache together."""
BLAS_FROM = 2_000_000
"""Number of weights of a matrix from which SciPy's BLAS computes its products."""

ROWS_FROM = 16 * 2**20
"""Bytes of inputs from which a kernel reads them from the caller's array instead of copying them."""


Kernel: TypeAlias = Any
"""The extension's class Kernel: a network with the inputs of its cases."""


def load(name: str) -> tuple[Any, str]:
    """Return the compiled module of this name and "", or None and the reason why it is missing."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as exc:
        if exc.name != name:
            return None, f"{name} does not load: {exc}"
    except ImportError as exc:
        return None, f"{name} does not load: {exc}"
    package, _, stem = name.rpartition(".")
    folders = importlib.import_module(package).__path__
    for library in (path for folder in folders for path in Path(folder).glob(f"{stem}.*.so")):
        return None, f"{library.name} is not of this Python, {sys.implementation.cache_tag}"
    return None, "installed without a C++ compiler"


_cpu, why_none = load("rayfbnn.kernels.cpu._cpu")


def instruction_sets() -> tuple[str, ...]:
    """Return this processor's instruction sets that kernels were built for, best first; () if none."""
    return tuple(_cpu.instruction_sets()) if _cpu is not None else ()


def has_uniforms() -> bool:
    """Return True if the extension is installed and can draw uniform numbers."""
    return hasattr(_cpu, "write_uniforms")


def kernel_for(
    plan: NetworkPlan,
    inputs: Array,
    *,
    batch: int = 0,
    blas_from: int,
    starts: tuple[float, ...] = (0.0,),
    **options: Any,
) -> Kernel:
    """Return the kernel for a network and its inputs (n_inputs + 1, n_cases), in the dtype of the inputs.

    If `batch` is not 0, the kernel is for batches of that many cases. It then keeps no inputs and takes
    `Posterior.records` with every call. `starts` are the times when the pieces of a hazard start; for several
    pieces the kernel only reduces, and its cases are cells in the order of `reducing.in_groups`.

    options  instruction_set, n_partitions, large_from, block_bytes, and rows_from: from this many bytes on
             the kernel refers to the inputs without copying them, so they must not change
    """
    regression = plan.regression or RegressionPlan((), 0, 0, False, ())
    return _cpu.Kernel(
        units=list(plan.units),
        activations=[0, *plan.activations, 0],
        offsets=[*plan.offsets, -1],
        links=[
            (link.source, link.destination, link.start, link.n_units, link.has_biases) for link in plan.links
        ],
        segments=list(plan.segments),
        model=plan.model,
        alpha=plan.alpha,
        n_targets=plan.n_targets,
        n_rows=plan.n_rows,
        n_parameters=plan.n_parameters,
        inputs=inputs,
        batch=batch,
        gemm=_gemm(inputs.dtype, plan, blas_from),
        blas_from=blas_from,
        integrated=list(plan.integrated),
        features=list(regression.features),
        n_systems=regression.n_systems,
        n_each=regression.n_each,
        is_dual=regression.is_dual,
        moved=list(regression.moved),
        starts=list(starts),
        **options,
    )


def _gemm(dtype: Any, plan: NetworkPlan, blas_from: int) -> Any:
    """Return the pointer to SciPy's sgemm or dgemm, or None if no link is large enough for it."""
    if all(link.n_units * plan.units[link.destination] < blas_from for link in plan.links):
        return None
    from scipy.linalg import cython_blas

    return cython_blas.__pyx_capi__["sgemm" if dtype == np.float32 else "dgemm"]


@dataclass(frozen=True)
class CompiledStreams(Streams):
    """Streams that draw the numbers of `Streams`: uniforms bit for bit, single precision to rounding.

    In NumPy ten rounds of Philox take some 150 calls for any number of chains. For small tables and networks
    that is a quarter of the time of an iteration.
    """

    def uniform(
        self,
        purpose: Purpose,
        shape: tuple[int, ...] = (),
        *,
        index: int = 0,
        attempt: int = 0,
        first: int = 0,
    ) -> Array:
        """Draw the numbers of Streams.uniform bit for bit; array code draws them if `first` is not 0."""
        if first > 0:
            return super().uniform(purpose, shape, index=index, attempt=attempt, first=first)
        values = np.empty((self.n_chains, prod(shape)))
        place = self.place(purpose, index=index, attempt=attempt)
        _cpu.write_uniforms(place=place, chains=self.chains, values=values)
        return values.reshape(self.n_chains, *shape)

    def single_normal(self, purpose: Purpose, shape: tuple[int, ...] = (), *, index: int = 0) -> Array:
        """Draw the numbers of Streams.single_normal to rounding, and those of the kernels bit for bit."""
        values = np.empty((self.n_chains, prod(shape)), dtype=np.float32)
        _cpu.write_normals(place=self.place(purpose, index=index), chains=self.chains, values=values)
        return values.reshape(self.n_chains, *shape)

    def shuffle(self, n: int, purpose: Purpose) -> Array:
        """Draw the permutations of Streams.shuffle."""
        order = np.empty((self.n_chains, n), dtype=np.int32)
        _cpu.write_shuffles(place=self.place(purpose), chains=self.chains, orders=order[None])
        return order
