"""cupy.RawModule: CUDA sources compiled by g++ with tests/support/shim, launched by CuPy's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.shim.compiled import ShimBuild, ShimKernel
from tests.support.standin_cupy import capture, log
from tests.support.standin_cupy.array import arrays_in, ndarray, written

SHARED_BYTES = 227 * 1024  # bytes of a block that asks for them, on sm_90
_FREE_SHARED_BYTES = 48 * 1024
_MAX_THREADS = 1024


class RawKernel:
    """One kernel of a module, with its own function attributes."""

    def __init__(self, kernel: ShimKernel, name: str) -> None:
        self.name = name
        self._kernel = kernel
        self._max_dynamic_shared_size_bytes = _FREE_SHARED_BYTES

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, n_bytes: int) -> None:
        if n_bytes > SHARED_BYTES:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        self._max_dynamic_shared_size_bytes = n_bytes

    def __call__(self, grid: Any, block: Any, args: Sequence[Any], *, shared_mem: int = 0) -> None:
        for what, size in (("grid", grid), ("block", block)):
            if not isinstance(size, tuple) or len(size) != 1 or type(size[0]) is not int:
                raise TypeError(f"{what}: a tuple of one int here, got {size!r}")
        if not 0 < grid[0] < 2**31 or not 0 < block[0] <= _MAX_THREADS:
            raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: grid {grid}, block {block}")
        if shared_mem > self._max_dynamic_shared_size_bytes:
            raise RuntimeError(
                f"CUDA_ERROR_INVALID_VALUE: {shared_mem} bytes of shared memory were not asked for"
            )
        log.record("launch", self.name)
        values = [_argument(argument) for argument in args]
        arrays = arrays_in(list(args))
        written(lambda: self._kernel(grid, block, values, shared_mem=shared_mem), arrays[0], *arrays)
        for array in arrays:
            array._memory.write()


class RawModule:
    """A module of CUDA source, compiled when the first function is requested."""

    def __init__(
        self, *, code: str | None = None, options: tuple[str, ...] = (), backend: str = "nvrtc"
    ) -> None:
        if not isinstance(code, str) or not isinstance(options, tuple) or backend != "nvrtc":
            raise TypeError(f"RawModule: of source text and a tuple of options, got {code!r}, {options!r}")
        self._code = code

    def get_function(self, name: str) -> RawKernel:
        if not isinstance(name, str):
            raise TypeError(f"get_function: of a name, got {name!r}")
        if capture.recording() is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: code is loaded while a stream is captured")
        return RawKernel(ShimBuild()(self._code, name, 0), name)


def _argument(value: Any) -> Any:
    """Convert an argument as CuPy does: arrays by address, Python integers as long long, floats as double."""
    if isinstance(value, ndarray):
        if not value.flags.c_contiguous:
            raise AssertionError(f"a kernel reads an array {value.shape} that is not C-contiguous")
        return value._values
    if isinstance(value, np.generic):
        return value
    if type(value) is int:
        return np.int64(value)
    if type(value) is float:
        return np.float64(value)
    raise TypeError(f"Unsupported type {type(value)}")
