"""Registers, spills and blocks a multiprocessor of each kernel at standard shapes.

    python -m tests.support.kernels.register_table            prints and compares with the kept table
    python -m tests.support.kernels.register_table --write    replaces the kept table

NVRTC compiles for a device without having one, and its log says what each kernel takes. With the compiler
that made the table every number must be the same. With another compiler no kernel may spill more or have
fewer blocks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path

from rayfbnn.kernels.cuda import streams
from rayfbnn.kernels.cuda.generate import Launched
from rayfbnn.kernels.cuda.launch_plan import WARP
from tests.support.kernels import nvrtc
from tests.support.kernels.sources import (
    Source,
    of_few_outputs,
    of_network,
    of_products,
    of_regression,
    of_sums,
    of_sums_of,
)

TABLE = Path(__file__).parents[2] / "data" / "registers.txt"
# Shared memory of a multiprocessor in bytes; a block can have all but what each block takes besides its own.
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_90": 228 * 1024, "sm_100": 228 * 1024}
RESERVED_BYTES = 1024
LAUNCHED: tuple[Launched, ...] = ("advance", "hybrid")
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
    code, log = nvrtc.compile_for(device, source.text)
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
    compiler = f"NVRTC {nvrtc.version()}"
    text = as_text(current, compiler)
    if "--write" in arguments:
        TABLE.write_text(text)
    print(text, end="")
    kept_compiler, kept = read(TABLE.read_text())
    wrong = differences(current, kept, same_compiler=compiler == kept_compiler)
    if wrong:
        print(*wrong, f"{TABLE.name} differs; `make registers-write` replaces it", sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
