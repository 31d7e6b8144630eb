"""CUDA source text compiled by CuPy for the current device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol


class CudaFunction(Protocol):
    """A compiled function, with the call signature of CuPy's functions."""

    def __call__(
        self, grid: tuple[int], block: tuple[int], arguments: Sequence[Any], *, shared_mem: int = 0
    ) -> Any:
        """Launch the function on the current stream."""
        ...


Build = Callable[[str, str, int], CudaFunction]
"""Compiles a function from a source text, the function's name, and the bytes of shared memory it needs."""


def build_once(source: str, name: str, shared_bytes: int) -> CudaFunction:
    """Return a function of the current device, compiled at its first use; CuPy keeps it on disk as well."""
    import cupy

    return _built(int(cupy.cuda.runtime.getDevice()), source, name, shared_bytes)


@cache
def _built(device: int, source: str, name: str, shared_bytes: int) -> CudaFunction:
    """Compile a function. The source contains everything a kernel depends on: the plans and the dtype."""
    function = _module(device, source).get_function(name)
    if shared_bytes > 48 * 1024:  # a kernel must request more than this explicitly
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function  # type: ignore[no-any-return]


@cache
def _module(device: int, source: str) -> Any:
    """Return the compiled module of a source, with all its functions."""
    import cupy

    return cupy.RawModule(code=source, options=("--std=c++17",))


def shared_memory_of_device() -> int:
    """Return the bytes of shared memory that a block of the current device can request."""
    import cupy

    return int(cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
