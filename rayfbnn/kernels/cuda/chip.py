"""Trajectories on a CUDA device: whole ones in a single launch, for networks whose state fits on the chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.plan import ChainNumbers, Program, prior_of
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Trajectory

_SOURCES = Path(__file__).parent / "source"
_SHARED = Path(__file__).parent.parent / "shared"
WARP = 32
# Of 255 registers a thread, what a case's units and the gradient may take in the kernel of one warp a chain.
_MAX_WARP_WORDS = 176
QUAD = 4  # of cuda_tiles.cuh
TILES = (64, 32, 16)  # cases; the first that fits


class Kernel(Protocol):
    """A compiled function, called as CuPy calls one."""

    def __call__(
        self, grid: tuple[int], block: tuple[int], arguments: Sequence[Any], *, shared_mem: int = 0
    ) -> Any: ...


Build = Callable[[str, str, int], Kernel]
"""What makes a kernel of a source text, the function's name, and the bytes of shared memory it asks for."""


@dataclass(frozen=True)
class Plan:
    """Which kernel runs a network, and how it is divided.

    threads  of a block
    tile     cases that a block holds at a time; 1 in the kernel of one warp a chain
    shared_bytes  of dynamic shared memory
    """

    kernel: Literal["warp", "block", "marginal", "marginal dual", "wide"]
    threads: int
    tile: int
    shared_bytes: int

    def n_blocks(self, n_chains: int) -> int:
        is_of_block = self.kernel not in ("warp", "wide")
        return n_chains if is_of_block else -(-n_chains * WARP // self.threads)


# What a kernel is made of: behind arithmetic.hpp, network.hpp and cuda.cuh, in this order.
_REGRESSION = ("tiles.cuh", "steps.cuh", "cholesky.cuh", "regression.cuh")
_FILES = {
    "warp": ("warp.cu",),
    "block": ("tiles.cuh", "steps.cuh", "block.cu"),
    "marginal": (*_REGRESSION, "marginal.cu"),
    "marginal dual": (*_REGRESSION, "marginal_dual.cu"),
    "wide": ("products.cu",),
}

# Of the element-wise kernels between the products of wide_pass.py.
wide_plan = Plan("wide", threads=256, tile=1, shared_bytes=0)


def plan_of(program: Program, *, dtype: str, max_shared_bytes: int) -> Plan | str:
    """The plan for a network, or in words why its state does not fit on the chip."""
    size = np.dtype(dtype).itemsize
    own = -(-program.n_parameters // WARP)
    words = (own * WARP + 2 * sum(program.units) + 5 * own) * size // 4
    if words <= _MAX_WARP_WORDS and not program.integrated:
        return Plan("warp", threads=4 * WARP, tile=1, shared_bytes=0)
    threads = threads_for(program.n_parameters)
    for tile in TILES:
        shared_bytes = block_bytes(program, tile, threads, size)
        if shared_bytes <= max_shared_bytes:
            return Plan("block", threads, tile, shared_bytes)
    return does_not_fit(f"{program.n_parameters} parameters", shared_bytes, max_shared_bytes)


def threads_for(n_numbers: int) -> int:
    """Of a block: more than it has numbers to hold would wait, and with fewer registers run out."""
    return 64 if n_numbers <= 512 else 128 if n_numbers <= 2048 else 256


def does_not_fit(what: str, shared_bytes: int, max_shared_bytes: int) -> str:
    return (
        f"{what}: their state takes {shared_bytes // 1024} KiB, and a block has"
        f" {max_shared_bytes // 1024} KiB of shared memory"
    )


def block_bytes(program: Program, tile: int, threads: int, size: int) -> int:
    """Shared memory of cuda_block.cu, with reals of `size` bytes: END_OF_SQUARES, checked against this."""
    rounded = -(-program.n_parameters // QUAD) * QUAD
    with_offsets = sum(n for n, start in zip(program.units, program.offsets, strict=False) if start >= 0)
    rows = sum(program.units[:-1]) + sum(program.units[1:]) + with_offsets
    reals = 2 * rounded + rows * (tile + QUAD)
    squares = len(program.integrated) * threads // WARP
    return max(8 * (-(-reals * size // 8) + squares), 16 * threads)


@cache
def source_of(
    program: Program, plan: Plan, *, dtype: str, is_weighted: bool, constants_besides: tuple[str, ...] = ()
) -> str:
    """CUDA C++ of a network's kernel: its sizes as constants, and the sources that they are for."""
    ends = [segment.stop for segment in program.segments]
    alphas = [_finite(segment.alpha) for segment in program.segments]
    choices = "".join(
        f"parameter < {end} ? {alpha!r} : " for end, alpha in zip(ends[:-1], alphas[:-1], strict=True)
    )
    constants = {
        "N_LAYERS": len(program.units),
        "N_LINKS": len(program.links),
        "N_PARAMETERS": program.n_parameters,
        "N_INTEGRATED": len(program.integrated),
        "N_TARGETS": program.n_targets,
        "MODEL": program.model,
        "THREADS": plan.threads,
        "TILE": plan.tile,
        "SHARED_BYTES": plan.shared_bytes,
    }
    links, integrated = program.links, program.integrated
    lines = [
        f"typedef {'float' if dtype == 'float32' else 'double'} real;",
        *(f"constexpr int {name} = {value};" for name, value in constants.items()),
        f"constexpr bool IS_WEIGHTED = {str(is_weighted).lower()};",
        f"constexpr double NOISE_ALPHA = {_finite(program.alpha)!r};",
        table("units_of", program.units),
        table("activation_of", (0, *program.activations, 0)),
        table("offset_of", (*program.offsets, -1)),
        table("link_source", [link.source for link in links]),
        table("link_destination", [link.destination for link in links]),
        table("link_start", [link.start for link in links]),
        table("link_units", [link.n_units for link in links]),
        table("link_rows", [link.n_rows for link in links]),
        table("integrated_start", [each.start for each in integrated]),
        table("integrated_stop", [each.stop for each in integrated]),
        table("integrated_shape", [each.shape for each in integrated], "double"),
        table("integrated_rate", [each.rate for each in integrated], "double"),
        f"__device__ inline double prior_alpha_of(int parameter) {{ return {choices}{alphas[-1]!r}; }}",
        *constants_besides,
    ]
    files = [_SHARED / "arithmetic.hpp", _SHARED / "network.hpp"]
    files += [_SOURCES / name for name in ("cuda.cuh", *_FILES[plan.kernel])]
    return "\n".join([*lines, *(file.read_text() for file in files)])


def _finite(alpha: float) -> float:
    """What C++ can write; arithmetic.hpp takes it for infinite."""
    return min(alpha, 1e308)


def table(name: str, values: Sequence[float], kind: str = "int") -> str:
    """A constexpr function from a place to a number; a table of its own would not be seen by the device."""
    numbers = [float(value) if kind == "double" else value for value in values]
    choices = "".join(f"place == {place} ? {value!r} : " for place, value in enumerate(numbers))
    return f"__host__ __device__ constexpr {kind} {name}(int place) {{ return {choices}0; }}"


def advance(
    target: Posterior,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    program: Program,
    plan: Plan,
    build: Build,
) -> tuple[Trajectory, Array]:
    """What mcmc.leapfrog.advance does, to rounding, in one launch; forces use the device's fast functions.

    The potential at the end is computed with accurate functions, from the position alone, in float64.
    """
    precisions = trajectory.precisions
    shape = (len(trajectory.position), target.n_precisions)
    check("precisions", precisions, np.dtype(np.float64), shape)
    return launch(
        target,
        prior_of(target, precisions),
        trajectory,
        n_steps=n_steps,
        order=order,
        program=program,
        plan=plan,
        build=build,
    )


def launch(
    target: Posterior,
    numbers: ChainNumbers,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None,
    program: Program,
    plan: Plan,
    build: Build,
) -> tuple[Trajectory, Array]:
    """As `advance`, given the chains' numbers."""
    xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
    dtype = np.dtype(target.dtype)
    check_trajectory(trajectory, dtype, (n_chains, program.n_parameters))
    check_data(target, program, n_chains)
    n_partitions = 1 if order is None else order.shape[1]
    if n_partitions > target.n_cases:
        raise ValueError(f"order: at most the {target.n_cases} cases, got {n_partitions} partitions")
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    prior_energy, terms = xp.empty(n_chains), xp.empty(n_chains)
    weights = xp.empty(0) if target.observed is None else target.observed
    kernel = build(
        source_of(program, plan, dtype=target.dtype, is_weighted=target.observed is not None),
        "advance",
        plan.shared_bytes,
    )
    arguments = (
        position,
        momentum,
        trajectory.stepsizes,
        numbers.precisions,
        numbers.noise,
        numbers.inverse_temperature,
        target.inputs,
        xp.ascontiguousarray(target.targets, dtype=dtype),
        target.targets,
        weights,
        xp.zeros(1, dtype=np.int32) if order is None else xp.ascontiguousarray(order, dtype=np.int32),
        prior_energy,
        terms,
        np.int64(stride(target.targets)),
        np.int64(stride(weights)),
        np.int32(n_chains),
        np.int32(target.n_cases),
        np.int32(n_partitions),
        np.int32(n_steps),
    )
    kernel((plan.n_blocks(n_chains),), (plan.threads,), arguments, shared_mem=plan.shared_bytes)
    potential = numbers.potential(prior_energy, terms)
    # Without a step the kernel has given its copy of the momentum half a kick.
    end = trajectory.moved(position, momentum) if n_steps > 0 else trajectory
    return end, xp.where(xp.isfinite(potential), potential, xp.inf)


def stride(values: Array) -> int:
    """Numbers from one chain's to the next; 0 where all chains share them."""
    return int(values[0].size) if values.ndim == 3 else 0


def check(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse what the kernel would read as other numbers."""
    if array.dtype != dtype:
        raise TypeError(f"{name}: must be {dtype}, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name}: must have the shape {shape}, got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: must be C-contiguous")


def check_trajectory(trajectory: Trajectory, dtype: np.dtype[Any], shape: tuple[int, int]) -> None:
    """Check position, momentum and stepsizes, each of this dtype and shape, as `check` does."""
    check("position", trajectory.position, dtype, shape)
    check("momentum", trajectory.momentum, dtype, shape)
    check("stepsizes", trajectory.stepsizes, dtype, shape)


def check_data(target: Posterior, program: Program, n_chains: int) -> None:
    """As `check`, of a posterior's own arrays: shared by all chains, or of n_chains of them."""
    double, n_cases = np.dtype(np.float64), target.n_cases
    check("inputs", target.inputs, np.dtype(target.dtype), (program.units[0] + 1, n_cases))
    n_outputs, n_targets = program.units[-1], program.n_targets
    for name, array, n in (("targets", target.targets, n_outputs), ("observed", target.observed, n_targets)):
        if array is not None:
            check(name, array, double, (*(n_chains,) * (array.ndim == 3), n, n_cases))


def build_once(source: str, name: str, shared_bytes: int) -> Kernel:
    """A function of the current device, compiled at its first use; CuPy keeps it on disk as well."""
    import cupy

    return _built(int(cupy.cuda.runtime.getDevice()), source, name, shared_bytes)


@cache
def _built(device: int, source: str, name: str, shared_bytes: int) -> Kernel:
    """The source says all that a kernel depends on: the program, the plan, the dtype."""
    function = _module(device, source).get_function(name)
    if shared_bytes > 48 * 1024:  # more must be asked for
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function  # type: ignore[no-any-return]


@cache
def _module(device: int, source: str) -> Any:
    """One for all functions of a source."""
    import cupy

    return cupy.RawModule(code=source, options=("--std=c++17",))


def shared_memory_of_device() -> int:
    """Bytes of shared memory that a block of the current device can have when it asks for them."""
    import cupy

    return int(cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
