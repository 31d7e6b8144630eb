"""The library cuBLAS of the stand-in: tests/support/shim/cublas.cpp, whose products a graph can hold."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.support.cached_files import CachedFiles, digest
from tests.support.shim import compiled
from tests.support.standin_cupy import capture, log

VERSION = 130_000
_SOURCE = Path(compiled.__file__).parent / "cublas.cpp"
_COMPUTE_32F_FAST_TF32 = 77
_OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-shared")


@cache
def shared_library() -> Any:
    """The library, compiled by g++."""
    folder = CachedFiles("cublas", *_OPTIONS)
    return ctypes.CDLL(str(folder.file(digest(_SOURCE.read_text()) + ".so", _compile)))


def _compile(path: Path) -> None:
    subprocess.run(["g++", *_OPTIONS, str(_SOURCE), "-o", str(path)], check=True)


def load_library(version: int) -> Any:
    """Take the place of the function of this name in rayfbnn.kernels.cuda.cublas."""
    assert version == VERSION
    return _Library(shared_library())


class _Library:
    """The functions of the library; a product on a captured stream is a step of the graph."""

    def __init__(self, library: Any) -> None:
        self.cublasCreate_v2 = library.cublasCreate_v2
        self.cublasSetStream_v2 = library.cublasSetStream_v2
        self.cublasSetWorkspace_v2 = library.cublasSetWorkspace_v2
        self.cublasGemmStridedBatchedEx = _Product(library.cublasGemmStridedBatchedEx)


class _Product:
    def __init__(self, function: Any) -> None:
        self._function = function

    def _set_types(self, types: list[Any]) -> None:
        self._function.argtypes = types

    argtypes = property(None, _set_types)

    def __call__(self, *arguments: Any) -> int:
        log.record("product", "cublas in TF32" if arguments[-2] == _COMPUTE_32F_FAST_TF32 else "cublas")
        if capture.recording() is None:
            return int(self._function(*arguments))
        capture.change(partial(self._function, *arguments), ())
        return 0
