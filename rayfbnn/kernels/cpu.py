"""Trajectories of networks on a CPU by compiled code, in place of `mcmc.leapfrog.advance`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.program import ChainNumbers, Program, prior_of
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Target

try:
    from rayfbnn.kernels import _cpu  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # installed without a compiler
    _cpu = None

BLAS_FROM = 16384
"""Weights of the smallest matrix whose products are left to BLAS."""


def instruction_sets() -> tuple[str, ...]:
    """Those that this processor has and kernels were made for, the best first; () without any."""
    return tuple(_cpu.instruction_sets()) if _cpu is not None else ()


class Compiled(Protocol):
    """The extension's class Kernel: a program with the inputs of its cases laid out for it."""

    def advance(self, **arrays: Any) -> None: ...

    def potential_and_gradient(self, **arrays: Any) -> None: ...


@dataclass
class CompiledAdvance:
    """An `Advance` for posteriors of one network, whatever their targets and temperature.

    instruction_set  one of `instruction_sets()`
    block_bytes      memory that the values of a block of cases take; 0 leaves the choice to the kernel
    """

    program: Program
    instruction_set: str
    blas_from: int = BLAS_FROM
    block_bytes: int = 0
    # By the identity of the inputs, which are kept beside so that no other array can take it over.
    kernels: dict[tuple[int, int], tuple[Array, Compiled]] = field(default_factory=dict)
    known: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def __call__(
        self,
        target: Target,
        position: Array,
        momentum: Array,
        precisions: Array,
        stepsizes: Array,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """As `mcmc.leapfrog.advance`: position, momentum and potential after n_steps steps of every chain."""
        posterior = self._checked(target)
        kernel = self._kernel(posterior, 1 if order is None else order.shape[1])
        numbers = prior_of(posterior, precisions)
        moved, kicked = np.empty_like(position, order="C"), np.empty_like(position, order="C")
        energy, terms = np.empty(len(position)), np.empty(len(position))
        kernel.advance(
            position=position,
            momentum=momentum,
            stepsizes=stepsizes,
            order=order if order is None else np.ascontiguousarray(order, dtype=np.int64),
            n_steps=n_steps,
            new_position=moved,
            new_momentum=kicked,
            prior_energy=energy,
            terms=terms,
            **_of_chains(posterior, numbers),
        )
        with np.errstate(all="ignore"):
            potential = numbers.potential(energy, terms)
        return moved, kicked, np.where(np.isfinite(potential), potential, np.inf)

    def potential_and_gradient(
        self, target: Target, position: Array, precisions: Array
    ) -> tuple[Array, Array]:
        """As `Posterior.potential_and_gradient`, of all cases."""
        posterior = self._checked(target)
        numbers = prior_of(posterior, precisions)
        gradient = np.empty_like(position, order="C")
        energy, terms = np.empty(len(position)), np.empty(len(position))
        self._kernel(posterior, 1).potential_and_gradient(
            position=position,
            gradient=gradient,
            prior_energy=energy,
            terms=terms,
            **_of_chains(posterior, numbers),
        )
        with np.errstate(all="ignore"):
            return numbers.potential(energy, terms), gradient

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
                blas_from=self.blas_from,
                block_bytes=self.block_bytes,
            )
            self.kernels[key] = (posterior.inputs, made)
        return self.kernels[key][1]


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
    blas_from: int,
    block_bytes: int,
) -> Compiled:
    """The extension's kernel for a program and inputs (n_inputs + 1, n_cases) of either dtype."""
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
        blas_from=blas_from,
        block_bytes=block_bytes,
    )
    return cast(Compiled, made)


def _gemm(dtype: Any, program: Program, blas_from: int) -> Any:
    """The function pointer of SciPy's sgemm or dgemm, or None where no link is large."""
    if all(link.n_units * program.units[link.destination] < blas_from for link in program.links):
        return None
    from scipy.linalg import cython_blas

    return cython_blas.__pyx_capi__["sgemm" if dtype == np.float32 else "dgemm"]


def _of_chains(posterior: Posterior, numbers: ChainNumbers) -> dict[str, Array]:
    return {
        "precisions": numbers.precisions,
        "noise": numbers.noise,
        "powers": numbers.inverse_temperature,
        "targets": posterior.targets,
        "weights": posterior.observed,
    }
