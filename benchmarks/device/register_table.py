"""Registers, spills and blocks a multiprocessor of each kernel at standard shapes.

    python -m benchmarks.device.register_table            prints and compares with the kept table
    python -m benchmarks.device.register_table --write    replaces the kept table

NVRTC compiles for a device without having one, and its log says what each kernel takes. With the compiler
that made the table every number must be the same. With another compiler no kernel may spill more or have
fewer blocks.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from rayfbnn.kernels.cuda import streams
from rayfbnn.kernels.cuda.generate import reduction_constants, regression_constants, source_of
from rayfbnn.kernels.cuda.launch_plan import (
    WARP,
    LaunchPlan,
    few_outputs_plan,
    launch_plan,
    launch_plan_of_regression,
    wide_plan,
)
from rayfbnn.kernels.cuda.reducing import reduction_plan
from rayfbnn.kernels.network_plan import NetworkPlan, hazard_starts, plan_of, plan_of_predictions
from rayfbnn.model.integrated import marginal
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.sampled import SampledPosterior
from tests.support.cached_files import CachedFiles, digest
from tests.support.kernels.networks import small
from tests.support.kernels.reductions import Problem
from tests.support.model.marginals import BOTH
from tests.support.problems import network, problem

TABLE = ROOT / "tests" / "data" / "registers.txt"
# Shared memory of a multiprocessor in bytes; a block can have all but what each block takes besides its own.
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_90": 228 * 1024, "sm_100": 228 * 1024}
RESERVED_BYTES = 1024
LAUNCHED: tuple[str, ...] = ("advance", "hybrid")
_REGISTERS, _PARTITIONS, _WARPS, _BLOCKS = 65536, 4, 64, 32
_KERNEL = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers(?:[^\n]*?, (\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Row:
    """Registers and spilled bytes of a kernel's thread, and threads and shared bytes of its block."""

    shape: str
    dtype: str
    device: str
    kernel: str
    threads: int
    registers: int
    spilled: int
    shared: int
    blocks: int

    @property
    def key(self) -> tuple[str, ...]:
        """Shape, dtype, device and kernel."""
        return self.shape, self.dtype, self.device, self.kernel


def shapes() -> Iterator[tuple[str, str, str, partial[Source]]]:
    """Shape, dtype and device of each source, with the function that writes it for a limit of bytes."""
    for shape in ("1-8-1", "1-30-1", "2-16-2", "10-100-1", "13-50-50-1"):
        for dtype, device in (
            ("float32", "sm_80"),
            ("float32", "sm_90"),
            ("float32", "sm_100"),
            ("float64", "sm_90"),
        ):
            for launched in LAUNCHED:
                yield shape, dtype, device, partial(of_network, shape, launched=launched)
    for shape, n_cases in (("2-16-2", 200), ("1-100-1", 20)):
        for dtype, device in (("float32", "sm_90"), ("float32", "sm_100"), ("float64", "sm_90")):
            for launched in LAUNCHED:
                write = partial(of_regression, shape, n_cases=n_cases, launched=launched)
                yield f"{shape}/{n_cases}", dtype, device, write
    for shape in ("2-16-2", "10-100-1"):
        for dtype, device in (("float32", "sm_90"), ("float32", "sm_100"), ("float64", "sm_80")):
            yield f"{shape}, sums", dtype, device, partial(of_sums, shape)
    for name, model in (("count", "count"), ("dispersed", "dispersed count"), ("pieces", "piecewise")):
        for dtype, device in (("float32", "sm_90"), ("float32", "sm_100"), ("float64", "sm_80")):
            yield f"{name}, sums", dtype, device, partial(of_sums_of, model)
    for device in SHARED_BYTES:
        yield "9-500-2, sums", "float32", device, partial(of_sums, "9-500-2", is_fused=False)
        for write_pass in (of_products, of_few_outputs):
            yield "784-100-10", "float32", device, partial(write_pass, "784-100-10")
    for write_pass in (of_products, of_few_outputs):
        yield "13-50-50-1", "float64", "sm_90", partial(write_pass, "13-50-50-1")


def rows() -> Iterator[Row]:
    """Compile every kernel of the table, on all cores."""
    with ProcessPoolExecutor() as processes:
        for compiled in processes.map(_rows_of_shape, shapes()):
            yield from compiled
    random = Source(streams.SOURCE, threads=128, shared_bytes=0)
    yield from rows_of(random, shape="random numbers", dtype="float64", device="sm_90")


def _rows_of_shape(shape_of_table: tuple[str, str, str, partial[Source]]) -> list[Row]:
    shape, dtype, device, source_for = shape_of_table
    source = source_for(dtype=dtype, max_shared_bytes=SHARED_BYTES[device] - RESERVED_BYTES)
    return list(rows_of(source, shape=shape, dtype=dtype, device=device))


def rows_of(source: Source, *, shape: str, dtype: str, device: str) -> Iterator[Row]:
    """Compile one source and return a row for each of its kernels."""
    code, log = compile_for(device, source.text)
    if not code:
        raise ValueError(f"{shape} {dtype} does not compile for {device}: {log[:4000]}")
    for kernel, stores, loads, registers, static in sorted(_KERNEL.findall(log)):
        shared = int(static or 0) + source.shared_bytes
        blocks = blocks_at_once(source.threads, int(registers), shared, device)
        spilled = int(stores) + int(loads)
        yield Row(shape, dtype, device, kernel, source.threads, int(registers), spilled, shared, blocks)


def blocks_at_once(threads: int, registers: int, shared: int, device: str) -> int:
    """Blocks of a kernel on a multiprocessor, whose four parts each give registers to warps by 256."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // 256) * 256
    by_registers = _PARTITIONS * (_REGISTERS // _PARTITIONS // of_warp) // warps
    by_shared = SHARED_BYTES[device] // (-(-shared // 128) * 128 + RESERVED_BYTES)
    return min(_BLOCKS, _WARPS // warps, by_registers, by_shared)


def differences(current: list[Row], kept: list[Row], *, same_compiler: bool) -> list[str]:
    """Say what is wrong with the current rows by those of the table that is kept."""
    before = {row.key: row for row in kept}
    wrong = [f"{' '.join(key)}: no longer compiled" for key in before.keys() - {row.key for row in current}]
    for row in current:
        old = before.get(row.key)
        name = " ".join(row.key)
        if old is None:
            wrong.append(f"{name}: not in the table")
        elif row.spilled > old.spilled or row.blocks < old.blocks:
            wrong.append(
                f"{name}: {row.spilled} bytes spilled and {row.blocks} blocks a multiprocessor;"
                f" before {old.spilled} and {old.blocks}"
            )
        elif same_compiler and row != old:
            wrong.append(f"{name}: {row.registers} registers and {row.shared} bytes; before {old}")
    return sorted(wrong)


def as_text(table: list[Row], compiler: str) -> str:
    """The table as it is kept."""
    cells = [tuple(field.name for field in fields(Row)), *(tuple(map(str, astuple(row))) for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([compiler, *(line.rstrip() for line in lines)]) + "\n"


def read(text: str) -> tuple[str, list[Row]]:
    """The compiler and the rows of a table as text."""
    compiler, _, *lines = text.splitlines()
    cells = [re.split(r"  +", line) for line in lines]
    return compiler, [Row(*line[:4], *map(int, line[4:])) for line in cells]  # type: ignore[arg-type]


def main(arguments: list[str]) -> int:
    """Print the table; return 1 if it differs from the one that is kept."""
    current = list(rows())
    compiler = f"NVRTC {version()}"
    text = as_text(current, compiler)
    if "--write" in arguments:
        TABLE.write_text(text)
    print(text, end="")
    kept_compiler, kept = read(TABLE.read_text())
    wrong = differences(current, kept, same_compiler=compiler == kept_compiler)
    if wrong:
        print(*wrong, f"{TABLE.name} differs; `make registers-write` replaces it", sep="\n", file=sys.stderr)
    return 1 if wrong else 0


# The priors of the robot arm, under which output weights and common precisions can be integrated out.
ROBOT_ARM = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}


@dataclass(frozen=True)
class Source:
    """A source text, with the threads and the dynamic shared memory of a block."""

    text: str
    threads: int
    shared_bytes: int


def of_network(shape: str, *, dtype: str, max_shared_bytes: int, launched: str = "advance") -> Source:
    """The kernel of whole trajectories on the chip, or of whole hybrid updates."""
    plan = _plan_of(_posterior(shape, dtype))
    launch = launch_plan(plan, dtype=dtype, max_shared_bytes=max_shared_bytes)
    assert isinstance(launch, LaunchPlan), launch
    return _source(plan, launch, dtype, launched=launched)


def of_products(shape: str, *, dtype: str, max_shared_bytes: int) -> Source:
    """The kernels between products over all chains."""
    return _source(_plan_of(_posterior(shape, dtype)), wide_plan, dtype)


def of_few_outputs(shape: str, *, dtype: str, max_shared_bytes: int) -> Source:
    """The kernels from the last hidden layer to the outputs and back."""
    plan = _plan_of(_posterior(shape, dtype))
    launch = few_outputs_plan(plan, dtype)
    assert launch is not None and launch.shared_bytes <= max_shared_bytes
    return _source(plan, launch, dtype)


def of_sums(shape: str, *, dtype: str, max_shared_bytes: int, is_fused: bool = True) -> Source:
    """The kernels of sums over draws, with five guesses at quantiles."""
    return _sums(_posterior(shape, dtype), is_fused=is_fused, max_shared_bytes=max_shared_bytes)


def of_sums_of(model: str, *, dtype: str, max_shared_bytes: int) -> Source:
    """The same for a network 3-5-2 of another data model, or 4-5-1 for times."""
    posterior = Problem(model, dtype=dtype).posterior
    return _sums(posterior, is_fused=True, max_shared_bytes=max_shared_bytes)


def _sums(posterior: Posterior, *, is_fused: bool, max_shared_bytes: int) -> Source:
    plan, dtype = plan_of_predictions(posterior), posterior.dtype
    assert isinstance(plan, NetworkPlan)
    launch = reduction_plan(plan, dtype, is_fused=is_fused)
    assert launch.shared_bytes <= max_shared_bytes
    constants = reduction_constants(n_guesses=5, starts=hazard_starts(posterior), is_fused=is_fused)
    return _source(plan, launch, dtype, constants)


def of_regression(
    shape: str, *, n_cases: int, dtype: str, max_shared_bytes: int, launched: str = "advance"
) -> Source:
    """The kernels of `of_network` with output layer and common precisions integrated out."""
    inputs, units, outputs = map(int, shape.split("-"))
    spec = network(ROBOT_ARM, inputs=inputs, outputs=outputs, units=(units,), activations=("tanh",))
    plan = plan_of(marginal(problem(spec=spec, n_cases=n_cases, dtype=dtype), BOTH))
    assert isinstance(plan, NetworkPlan) and plan.regression is not None
    launch = launch_plan_of_regression(
        plan, dtype=dtype, n_cases=n_cases, is_uniform=True, max_shared_bytes=max_shared_bytes
    )
    assert isinstance(launch, LaunchPlan), launch
    constants = regression_constants(plan.regression, n_cases=n_cases, is_uniform=True)
    return _source(plan, launch, dtype, constants, launched=launched)


def _posterior(shape: str, dtype: str) -> SampledPosterior:
    inputs, *units, outputs = map(int, shape.split("-"))
    return problem(spec=small(tuple(units), inputs=inputs, outputs=outputs), dtype=dtype)


def _plan_of(posterior: SampledPosterior) -> NetworkPlan:
    plan = plan_of(posterior)
    assert isinstance(plan, NetworkPlan)
    return plan


def _source(
    plan: NetworkPlan,
    launch: LaunchPlan,
    dtype: str,
    constants: tuple[str, ...] = (),
    *,
    launched: str = "advance",
) -> Source:
    text = source_of(
        plan, launch, dtype=dtype, is_weighted=False, more_constants=constants, launched=launched
    )
    return Source(text, launch.threads, launch.shared_bytes)


OPTIONS = ("--std=c++17", "--ptxas-options=-v")


@cache
def library() -> Any | None:
    """NVRTC of the package nvidia-cuda-nvrtc, or None if that is not installed."""
    package = importlib.util.find_spec("nvidia")
    for folder in [] if package is None else package.submodule_search_locations or []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                # NVRTC 13.0 does not find its builtins by itself.
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    return None


def compile_for(architecture: str, source: str) -> tuple[bytes, str]:
    """Return machine code for an architecture such as "sm_80", and the compiler's log.

    For "compute_80" the code is PTX, which takes half the time. It is empty if the source has errors.
    """

    def write(path: Path) -> None:
        code, log = _compile(architecture, source)
        path.write_bytes(log.encode() + b"\0" + code)

    kept = _folder().file(digest(architecture, source), write).read_bytes()
    log, _, code = kept.partition(b"\0")
    return code, log.decode()


@cache
def version() -> str:
    """The version of NVRTC, such as "13.5"."""
    nvrtc, major, minor = library(), ctypes.c_int(), ctypes.c_int()
    assert nvrtc is not None
    assert nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return f"{major.value}.{minor.value}"


@cache
def _folder() -> CachedFiles:
    """Folder of the machine code that this version of NVRTC has compiled."""
    nvrtc = library()
    assert nvrtc is not None
    return CachedFiles("nvrtc", nvrtc._name, version(), *OPTIONS)


def _compile(architecture: str, source: str) -> tuple[bytes, str]:
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc is not None
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}")]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    kind = "PTX" if architecture.startswith("compute_") else "CUBIN"
    size_of, get = getattr(nvrtc, f"nvrtcGet{kind}Size"), getattr(nvrtc, f"nvrtcGet{kind}")
    code = b"" if failed else _text(size_of, get, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log


def _text(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert get(program, buffer) == 0
    return buffer.raw


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
