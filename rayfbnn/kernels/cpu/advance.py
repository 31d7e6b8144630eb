"""Trajectories of networks on a CPU by compiled code, in place of `mcmc.leapfrog.advance`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import marginal_plan as marginal
from rayfbnn.kernels.plan import ChainNumbers, Program, prior_of
from rayfbnn.model.marginal.targets import OutputMarginal, WithoutOutputs, WithoutPrecisions
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Target, Trajectory


def loaded(name: str) -> tuple[Any, str]:
    """A compiled module and "", or None and in words why there is none."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as exc:
        if exc.name != name:
            return None, f"{name} does not load: {exc}"
    except ImportError as exc:
        return None, f"{name} does not load: {exc}"
    folder, _, stem = name.rpartition(".")
    folders = importlib.import_module(folder).__path__
    for found in (path for each in folders for path in Path(each).glob(f"{stem}.*.so")):
        return None, f"{found.name} is not of this Python, {sys.implementation.cache_tag}"
    return None, "installed without a C++ compiler"


_cpu, why_none = loaded("rayfbnn.kernels.cpu._cpu")

LARGE_FROM = 2000
"""Weights of the smallest matrix that does not stay in cache with the sums of its gradient."""
BLAS_FROM = 2_000_000
"""Weights of the smallest matrix whose products are left to SciPy's BLAS."""


def instruction_sets() -> tuple[str, ...]:
    """Those that this processor has and kernels were made for, the best first; () without any."""
    return tuple(_cpu.instruction_sets()) if _cpu is not None else ()


class Compiled(Protocol):
    """The extension's class Kernel: a program with the inputs of its cases laid out for it."""

    def advance(self, **arrays: Any) -> None: ...


@dataclass
class CompiledAdvance:
    """An `Advance` for posteriors of one network, whatever their targets and temperature.

    instruction_set  one of `instruction_sets()`
    block_bytes      memory that the values of a block of cases take; 0 leaves the choice to the kernel
    """

    program: Program
    instruction_set: str
    large_from: int = LARGE_FROM
    blas_from: int = BLAS_FROM
    block_bytes: int = 0
    # By the identity of the inputs, which are kept beside so that no other array can take it over.
    kernels: dict[tuple[int, int], tuple[Array, Compiled]] = field(default_factory=dict)
    known: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        posterior = self._checked(target)
        kernel = self._kernel(posterior, 1 if order is None else order.shape[1])
        numbers = prior_of(posterior, trajectory.precisions)
        arrays = _of_chains(posterior, numbers)
        return _advanced(kernel, numbers, trajectory, arrays, n_steps=n_steps, order=order)

    def _checked(self, target: Target) -> Posterior:
        if isinstance(target, Posterior):
            # What is tempered or given other targets shares these with the posterior that it comes from.
            parts = (target.wiring, target.model, target.parameter_layout)
            known = self.known.get(id(target.wiring), ())
            if len(known) == len(parts) and all(a is b for a, b in zip(known, parts, strict=True)):
                return target
            if Program.of(target) == self.program:
                self.known[id(target.wiring)] = parts
                return target
        raise TypeError("target: must be a posterior of the network that the kernel was made for")

    def _kernel(self, posterior: Posterior, n_partitions: int) -> Compiled:
        key = (id(posterior.inputs), n_partitions)
        if key not in self.kernels:
            made = compiled(
                self.program,
                posterior.inputs,
                instruction_set=self.instruction_set,
                n_partitions=n_partitions,
                large_from=self.large_from,
                blas_from=self.blas_from,
                block_bytes=self.block_bytes,
            )
            self.kernels[key] = (posterior.inputs, made)
        return self.kernels[key][1]


@dataclass
class CompiledMarginalAdvance:
    """An `Advance` for what is left of posteriors once outputs or common precisions are integrated out.

    instruction_set  one of `instruction_sets()`
    """

    instruction_set: str
    large_from: int = LARGE_FROM
    blas_from: int = BLAS_FROM
    # By number of partitions; None where the kernels do not cover what is left.
    kernels: WeakKeyDictionary[OutputMarginal | WithoutPrecisions, dict[int, Compiled | None]] = field(
        default_factory=WeakKeyDictionary
    )

    def covers(self, target: Target) -> bool:
        """Whether it is such a target, of a network that the kernels cover."""
        if not isinstance(target, WithoutOutputs | WithoutPrecisions):
            return False
        return self._kernel(target, 1) is not None

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        kernel, target = self._checked(target, 1 if order is None else order.shape[1])
        numbers = marginal.numbers_of(target, trajectory.precisions)
        arrays = _of_marginal_chains(target, numbers)
        return _advanced(kernel, numbers, trajectory, arrays, n_steps=n_steps, order=order)

    def _checked(
        self, target: Target, n_partitions: int
    ) -> tuple[Compiled, WithoutOutputs | WithoutPrecisions]:
        assert isinstance(target, WithoutOutputs | WithoutPrecisions)
        kernel = self._kernel(target, n_partitions)
        assert kernel is not None
        return kernel, target

    def _kernel(self, target: WithoutOutputs | WithoutPrecisions, n_partitions: int) -> Compiled | None:
        made = target.marginal if isinstance(target, WithoutOutputs) else target
        known = self.kernels.setdefault(made, {})
        if n_partitions not in known:
            program = marginal.program_of(made)
            known[n_partitions] = None
            if not isinstance(program, str):
                known[n_partitions] = compiled(
                    program,
                    made.posterior.inputs,
                    instruction_set=self.instruction_set,
                    n_partitions=n_partitions,
                    large_from=self.large_from,
                    blas_from=self.blas_from,
                    block_bytes=0,
                )
        return known[n_partitions]


def _advanced(
    kernel: Compiled,
    numbers: ChainNumbers | marginal.MarginalNumbers,
    trajectory: Trajectory,
    arrays: dict[str, Any],
    *,
    n_steps: int,
    order: Array | None,
) -> tuple[Trajectory, Array]:
    position = trajectory.position
    moved, kicked = np.empty_like(position, order="C"), np.empty_like(position, order="C")
    energy, terms = np.empty(len(position)), np.empty(len(position))
    kernel.advance(
        position=position,
        momentum=trajectory.momentum,
        stepsizes=trajectory.stepsizes,
        order=order if order is None else np.ascontiguousarray(order, dtype=np.int64),
        n_steps=n_steps,
        new_position=moved,
        new_momentum=kicked,
        prior_energy=energy,
        terms=terms,
        **arrays,
    )
    with np.errstate(all="ignore"):
        potential = numbers.potential(energy, terms)
    return trajectory.moved(moved, kicked), np.where(np.isfinite(potential), potential, np.inf)


def advance_for(posterior: Posterior, *, instruction_set: str | None = None) -> CompiledAdvance:
    """The compiled Advance for a posterior that `Program.of` covers, on its arrays on the host."""
    program = Program.of(posterior)
    if isinstance(program, str):
        raise TypeError(f"target: the compiled kernels do not cover {program}")
    return CompiledAdvance(program, instruction_set or instruction_sets()[0])


def compiled(
    program: Program,
    inputs: Array,
    *,
    instruction_set: str,
    n_partitions: int,
    large_from: int,
    blas_from: int,
    block_bytes: int,
) -> Compiled:
    """The extension's kernel for a program and inputs (n_inputs + 1, n_cases) of either dtype."""
    outputs = program.regression
    made = _cpu.Kernel(
        instruction_set=instruction_set,
        units=list(program.units),
        activations=[0, *program.activations, 0],
        offsets=[*program.offsets, -1],
        links=[
            (link.source, link.destination, link.start, link.n_units, link.has_biases)
            for link in program.links
        ],
        segments=[(each.start, each.stop, each.alpha) for each in program.segments],
        model=program.model,
        alpha=program.alpha,
        n_targets=program.n_targets,
        n_parameters=program.n_parameters,
        inputs=inputs,
        n_partitions=n_partitions,
        gemm=_gemm(inputs.dtype, program, blas_from),
        large_from=large_from,
        blas_from=blas_from,
        block_bytes=block_bytes,
        integrated=[(each.start, each.stop, each.shape, each.rate) for each in program.integrated],
        features=[] if outputs is None else list(outputs.features),
        n_systems=0 if outputs is None else outputs.n_systems,
        n_each=0 if outputs is None else outputs.n_each,
        is_dual=outputs is not None and outputs.is_dual,
        moved=[]
        if outputs is None
        else [(each.first, each.stop, each.half, each.mean) for each in outputs.moved],
    )
    return cast(Compiled, made)


def _gemm(dtype: Any, program: Program, blas_from: int) -> Any:
    """The function pointer of SciPy's sgemm or dgemm, or None where no link uses it."""
    if all(link.n_units * program.units[link.destination] < blas_from for link in program.links):
        return None
    from scipy.linalg import cython_blas

    return cython_blas.__pyx_capi__["sgemm" if dtype == np.float32 else "dgemm"]


def _of_chains(posterior: Posterior, numbers: ChainNumbers) -> dict[str, Any]:
    return {
        "precisions": numbers.precisions,
        "noise": numbers.noise,
        "powers": numbers.inverse_temperature,
        "targets": posterior.targets,
        "weights": posterior.observed,
        "prior": None,
    }


def _of_marginal_chains(
    target: WithoutOutputs | WithoutPrecisions, numbers: ChainNumbers | marginal.MarginalNumbers
) -> dict[str, Any]:
    if isinstance(target, WithoutPrecisions):
        assert isinstance(numbers, ChainNumbers)
        return _of_chains(target.posterior, numbers)
    given = target.regression
    return {
        "precisions": numbers.precisions,
        "noise": np.ascontiguousarray(given.noise),
        "powers": np.ones(len(numbers.precisions)),
        "targets": np.ascontiguousarray(given.targets),
        "weights": None,
        "prior": np.ascontiguousarray(given.prior),
    }
