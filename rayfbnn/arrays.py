"""The array namespace (NumPy or CuPy) that an array belongs to, and moves between host and device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # numpy.ndarray or cupy.ndarray; no static type covers both


def array_namespace(array: Array) -> ModuleType:
    """NumPy for a NumPy array, CuPy for a CuPy array.

    The array-API function `__array_namespace__` is not used: CuPy's answers with a module that lacks
    the functions outside the standard (`einsum`, `errstate`) which the numerical code needs.
    """
    if type(array).__module__.split(".")[0] == "cupy":
        import cupy

        return cupy  # type: ignore[no-any-return]
    return np


def device_namespace(device: str) -> ModuleType:
    """NumPy for "cpu", CuPy for "gpu"."""
    if device == "gpu":
        import cupy

        return cupy  # type: ignore[no-any-return]
    return np


def special_functions(array: Array) -> ModuleType:
    """`scipy.special`, or CuPy's version of it, for the array's device."""
    if array_namespace(array) is np:
        import scipy.special

        return scipy.special
    import cupyx.scipy.special

    return cupyx.scipy.special  # type: ignore[no-any-return]


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """The same values as a NumPy array; a NumPy array comes back as it is."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.get() if hasattr(array, "get") else array)


def copies_to_host(arrays: dict[str, Array]) -> Callable[[], dict[str, np.ndarray[Any, Any]]]:
    """Start to copy arrays to the host; the function that is returned waits for the copies and gives them.

    On a device they are copied on a stream of their own, beside what is computed next. The arrays must not be
    changed until then; nobody changes a ChainState. NumPy arrays are given as they are.
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
    """The copies, in pinned memory. `originals` are only held: their memory is used anew once let go."""
    event.synchronize()
    return copies


@cache
def _copying_stream(device: int) -> Any:
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def gpu_is_available() -> bool:
    """Whether CuPy is installed and sees a device."""
    try:
        import cupy
    except ImportError:
        return False
    try:
        return bool(cupy.is_available())
    except cupy.cuda.runtime.CUDARuntimeError:  # CuPy 13 where there is no driver; 14 says that it is not
        return False
