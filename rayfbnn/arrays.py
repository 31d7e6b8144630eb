"""The array namespace (NumPy or CuPy) that an array belongs to, and moves between host and device."""

from __future__ import annotations

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


def gpu_is_available() -> bool:
    """Whether CuPy is installed and sees a device."""
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.is_available())
