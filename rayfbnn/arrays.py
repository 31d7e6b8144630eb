"""The array library of an array (NumPy or CuPy), and copies between host and device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # numpy.ndarray or cupy.ndarray; no static type covers both


def array_namespace(array: Array) -> ModuleType:
    """Return NumPy for a NumPy array and CuPy for a CuPy array.

    The array-API function `__array_namespace__` is not used, because CuPy's returns a module without
    functions outside the standard (`einsum`, `errstate`) that the numerical code needs.
    """
    if type(array) is not np.ndarray and type(array).__module__.split(".")[0] == "cupy":
        import cupy

        return cupy  # type: ignore[no-any-return]
    return np


def device_namespace(device: str) -> ModuleType:
    """Return NumPy for "cpu" and CuPy for "gpu"."""
    if device == "gpu":
        import cupy

        return cupy  # type: ignore[no-any-return]
    return np


def special_functions(array: Array) -> ModuleType:
    """Return `scipy.special`, or CuPy's version of it, for the array's device."""
    if array_namespace(array) is np:
        import scipy.special

        return scipy.special
    import cupyx.scipy.special

    return cupyx.scipy.special  # type: ignore[no-any-return]


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """Return the values as a NumPy array; a NumPy array is returned as it is."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.get() if hasattr(array, "get") else array)


def copies_to_host(arrays: dict[str, Array]) -> Callable[[], dict[str, np.ndarray[Any, Any]]]:
    """Start to copy arrays to the host; return a function that waits for the copies and returns them.

    On a device a separate stream copies the arrays while the next computation runs. The arrays must not be
    changed until the copies are complete; a ChainState is never changed. NumPy arrays are not copied.
    """
    if all(isinstance(array, np.ndarray) for array in arrays.values()):
        return partial(dict, arrays)
    import cupy
    import cupyx

    stream = _copying_stream(int(cupy.cuda.runtime.getDevice()))
    arrays = {name: cupy.ascontiguousarray(array) for name, array in arrays.items()}
    stream.wait_event(cupy.cuda.get_current_stream().record())
    copies = {name: cupyx.empty_pinned(array.shape, array.dtype) for name, array in arrays.items()}
    for name, array in arrays.items():
        array.get(stream=stream, out=copies[name], blocking=False)
    return partial(_arrived, stream.record(), copies, arrays)


def _arrived(event: Any, copies: dict[str, Array], originals: dict[str, Array]) -> dict[str, Array]:
    """Wait for the copies, which are in pinned memory, and return them.

    `originals` keeps a reference to the arrays, whose memory could otherwise be used again too early.
    """
    event.synchronize()
    return copies


@cache
def _copying_stream(device: int) -> Any:
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def gpu_is_available() -> bool:
    """Return True if CuPy is installed and finds a device."""
    try:
        import cupy
    except ImportError:
        return False
    try:
        return bool(cupy.is_available())
    except cupy.cuda.runtime.CUDARuntimeError:  # CuPy 13 without a driver; CuPy 14 returns False
        return False


def gpus_here() -> int:
    """Return the number of devices that CuPy finds; the machine must have one."""
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())
