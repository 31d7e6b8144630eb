"""Installs the stand-in as `cupy` for code that is imported meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from rayfbnn.kernels.cuda import cublas as products
from tests.support.standin_cupy import array, capture, cublas, functions, memory
from tests.support.standin_cupy.array import function_of, ndarray
from tests.support.standin_cupy.kernels import SHARED_BYTES, RawModule
from tests.support.standin_cupy.memory import garbage
from tests.support.standin_cupy.rules import entries


class _Module(ModuleType):
    """A module with CuPy's names: some of them are arguments, the others come from NumPy and SciPy."""

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        entry = entries().get(f"{self.__name__}.{name}")
        if entry is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if entry.kind in ("function", "ufunc"):
            attribute = function_of(f"{self.__name__}.{name}")
        elif self.__name__ == "cupy" and hasattr(np, name):  # dtypes and numbers, which are NumPy's own
            attribute = getattr(np, name)
        else:
            raise NotImplementedError(f"stand-in: {self.__name__}.{name}")
        self.__dict__[name] = attribute
        return attribute


class Device:
    """cupy.cuda.Device."""

    def __init__(self, device: int | None = None) -> None:
        self.id = 0 if device is None else device

    @property
    def attributes(self) -> dict[str, int]:
        return {"MaxSharedMemoryPerBlockOptin": SHARED_BYTES, "MultiProcessorCount": 132}


def _empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray[Any, Any]:
    return garbage(np.empty(shape, dtype=dtype, order=order))  # type: ignore[call-overload]


def modules() -> dict[str, ModuleType]:
    """The stand-in's modules by the names under which code imports them."""
    array.OWN.update(functions.OF_CUPY)
    runtime = _Module(
        "cupy.cuda.runtime", getDevice=lambda: 0, getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError
    )
    libraries = _Module("cupy.cuda.cublas", getVersion=lambda handle: cublas.VERSION)
    device = _Module("cupy.cuda.device", get_cublas_handle=lambda: 1)
    cuda = _Module(
        "cupy.cuda",
        runtime=runtime,
        cublas=libraries,
        device=device,
        MemoryPool=capture.MemoryPool,
        using_allocator=capture.using_allocator,
        get_elapsed_time=memory.get_elapsed_time,
        Stream=memory.Stream,
        Event=memory.Event,
        Device=Device,
        get_current_stream=memory.get_current_stream,
    )
    linalg = _Module("cupy.linalg")
    cupy = _Module(
        "cupy",
        ndarray=ndarray,
        RawModule=RawModule,
        cuda=cuda,
        linalg=linalg,
        is_available=lambda: True,
        __version__="13.4.1",
    )
    special = _Module("cupyx.scipy.special")
    scipy = _Module("cupyx.scipy", special=special)
    cupyx = _Module("cupyx", scipy=scipy, empty_pinned=_empty_pinned)
    every = (cupy, cuda, runtime, libraries, device, linalg, cupyx, scipy, special)
    return {module.__name__: module for module in every}


@contextmanager
def installed() -> Iterator[Any]:
    """Install the stand-in as CuPy. What rayfbnn caches for a device is cleared before and after."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("cupy", "cupyx")}
    for name in before:
        del sys.modules[name]
    installed_modules = modules()
    sys.modules.update(installed_modules)
    _forget()
    load, products.load_library = products.load_library, cublas.load_library
    try:
        yield installed_modules["cupy"]
    finally:
        products.load_library = load
        _forget()
        for name in installed_modules:
            del sys.modules[name]
        sys.modules.update(before)


def _forget() -> None:
    from rayfbnn import arrays
    from rayfbnn.kernels.cuda import build as cuda

    arrays._copying_stream.cache_clear()
    cuda._built.cache_clear()
    cuda._module.cache_clear()
    products._of_device.cache_clear()
