"""The table of registers says which change of a kernel is one for the worse; `make registers` fills it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from benchmarks.device import register_table
from benchmarks.device.register_table import (
    TABLE,
    Row,
    as_text,
    blocks_at_once,
    differences,
    of_network,
    read,
    rows_of,
    shapes,
)

ROW = Row("2-16-2", "float32", "sm_90", "advance", 128, 163, 0, 1536, 3)


def test_a_table_is_read_as_it_was_written() -> None:
    text = TABLE.read_text()
    compiler, kept = read(text)
    assert compiler.startswith("NVRTC ") and as_text(kept, compiler) == text
    assert {(shape, dtype, device) for shape, dtype, device, _ in shapes()} <= {row.key[:3] for row in kept}


@pytest.mark.parametrize(
    "current, same_compiler, wrong",
    [
        ([ROW], True, ""),
        ([replace(ROW, spilled=8)], False, "8 bytes spilled"),
        ([replace(ROW, blocks=2)], False, "2 blocks a multiprocessor"),
        ([replace(ROW, registers=150)], True, "150 registers"),
        ([replace(ROW, registers=150)], False, ""),
        ([], True, "no longer compiled"),
        ([ROW, replace(ROW, shape="3-1-1")], True, "3-1-1 float32 sm_90 advance: not in the table"),
    ],
)
def test_what_differs_is_named(current: list[Row], same_compiler: bool, wrong: str) -> None:
    said = differences(current, [ROW], same_compiler=same_compiler)
    assert len(said) == bool(wrong) and all(wrong in line for line in said)


@pytest.mark.parametrize(
    "threads, registers, shared, device, blocks",
    [
        (128, 163, 1536, "sm_90", 3),  # 12 warps of 168 registers
        (256, 152, 84_640, "sm_90", 1),  # registers, though shared memory has room for two
        (256, 128, 84_640, "sm_90", 2),
        (256, 128, 84_640, "sm_80", 1),  # shared memory
        (256, 12, 0, "sm_90", 8),  # 2,048 threads
        (32, 16, 0, "sm_90", 32),
    ],
)
def test_blocks_at_once(threads: int, registers: int, shared: int, device: str, blocks: int) -> None:
    assert blocks_at_once(threads, registers, shared, device) == blocks


@pytest.mark.skipif(register_table.library() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
def test_a_kernel_with_too_few_registers_is_seen_to_spill() -> None:
    source = of_network("2-16-2", dtype="float32", max_shared_bytes=227 * 1024)
    rows = partial(rows_of, shape="2-16-2", dtype="float32", device="sm_90")
    (row,) = rows(source)
    assert (row.kernel, row.threads) == ("advance", 128) and row.spilled == 0 and row.blocks == 3
    (narrow,) = rows(replace(source, text=source.text.replace("MIN_BLOCKS = 3", "MIN_BLOCKS = 4")))
    assert narrow.spilled > 100 and narrow.blocks == 4
    assert differences([narrow], [row], same_compiler=False)
