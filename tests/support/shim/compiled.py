"""CUDA sources compiled by g++ with shim.hpp, and called as CuPy would call them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cached_files import CachedFiles, digest

HERE = Path(__file__).parent
# Without contraction, multiply and add round as NumPy's do. -Og, because compiling takes longer than running.
# Symbols are bound inside the library: the C library has an `advance` too.
OPTIONS = ["-std=c++17", "-Og", "-fPIC", "-ffp-contract=off", "-w"]
LINKED = ["-shared", "-Wl,-Bsymbolic"]
KERNELS = r'extern "C" __global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\('
SCALARS: dict[type, Any] = {
    np.int32: ctypes.c_int,
    np.uint32: ctypes.c_uint,
    np.int64: ctypes.c_longlong,
    np.float64: ctypes.c_double,
}

needs_gxx = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to run the CUDA source on a CPU"
)


class ShimKernel:
    """One kernel on the CPU; `order` is the order in which the threads of a block run."""

    def __init__(self, launch: Any, order: int, kinds: list[str]) -> None:
        self.launch = launch
        self.order = order
        self.kinds = kinds

    def __call__(
        self, grid: tuple[int], block: tuple[int], arguments: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        kinds = [_kind(argument) for argument in arguments]
        assert kinds == self.kinds, f"a kernel takes {self.kinds}, got {kinds}"
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        size = ctypes.c_size_t(shared_mem)
        if self.launch(grid[0], block[0], size, self.order, pointers) != 0:
            raise RuntimeError("threads of a block wait for others that never come to the barrier")


class ShimBuild:
    """`cuda.Build` for the CPU, used in place of CuPy's compiler."""

    def __init__(self, order: int = 0, *, replace: tuple[str, str, int] | None = None) -> None:
        """`replace` is a piece of the source, its replacement, and which of its occurrences to replace."""
        self.order = order
        self.replace = replace

    def __call__(self, source: str, name: str, shared_bytes: int) -> ShimKernel:
        if self.replace is not None:
            before, after, which = self.replace
            parts = source.split(before)
            if len(parts) <= which + 1:  # not AssertionError, which tests of mutants expect
                raise ValueError(f"the source has no occurrence {which} of {before!r}")
            source = before.join(parts[: which + 1]) + after + before.join(parts[which + 1 :])
        library = ctypes.CDLL(str(_compiled(source)))
        kinds_of = library[f"kinds_of_{name}"]
        kinds_of.restype = ctypes.c_char_p
        return ShimKernel(library[f"launch_{name}"], self.order, kinds_of().decode().split())


@cache
def _compiled(source: str) -> Path:
    """Compile the shared library of a source and the functions that launch its kernels."""
    launch = "".join(
        f'extern "C" int launch_{name}(int n_blocks, int n_threads, size_t bytes, int order, void** a)'
        f" {{ return shim::launch_with({name}, n_blocks, n_threads, bytes, order, a); }}\n"
        f'extern "C" const char* kinds_of_{name}() {{ return shim::kinds_of({name}); }}\n'
        for name in re.findall(KERNELS, source)
    )
    text = f'#include "shim.hpp"\n{source}\n{launch}'
    return _folder().file(digest(text) + ".so", partial(_compile, text))


def _compile(text: str, library: Path) -> None:
    source = library.with_suffix(".cpp")
    source.write_text(text)
    headers = [f"-I{_folder().path}", f"-I{HERE}"]
    result = subprocess.run(
        ["g++", *OPTIONS, *LINKED, *headers, str(source), "-o", str(library)], capture_output=True, text=True
    )
    source.unlink()
    if result.returncode != 0:
        raise ValueError(result.stderr[:4000])


@cache
def _folder() -> CachedFiles:
    """Folder of libraries, with shim.hpp compiled once for all of them, which is a third of the work."""
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    header = HERE / "shim.hpp"
    folder = CachedFiles("shim", version, *OPTIONS, *LINKED, header.read_text())
    folder.file("shim.hpp.gch", partial(_precompile, header))
    return folder


def _precompile(header: Path, precompiled: Path) -> None:
    command = ["g++", *OPTIONS, "-x", "c++-header", str(header), "-o", str(precompiled)]
    subprocess.run(command, check=True)


def _kind(argument: Any) -> str:
    """Code of an argument as in kinds_of of shim.hpp: a letter for the type, and a star for an array."""
    number = "l" if argument.dtype.char == "q" else "L" if argument.dtype.char == "Q" else argument.dtype.char
    return number + ("*" if isinstance(argument, np.ndarray) else "")


def _as_c(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)
    return SCALARS[type(argument)](argument.item())
