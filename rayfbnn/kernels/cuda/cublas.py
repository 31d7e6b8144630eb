"""Matrix products by cuBLAS on a device that a CUDA graph can capture.

CuPy refuses to call cuBLAS on a stream that is being captured (NotImplementedError, up to 14.2 at least:
github.com/cupy/cupy/issues/6290). cuBLAS itself can be captured, so this file calls its library directly.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_longlong, c_void_p
from functools import cache
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace

# Constants of cublas_api.h and library_types.h.
_AS_STORED, _TRANSPOSED = 0, 1
_REALS = {"float32": (0, ctypes.c_float), "float64": (1, ctypes.c_double)}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 68, 70, 77
_ANY_ALGORITHM = -1

_OF_A_MATRIX = [c_void_p, c_int, c_int, c_longlong]  # address, type, leading dimension, and stride
_PRODUCT = [
    c_void_p,
    *[c_int] * 5,
    c_void_p,
    *_OF_A_MATRIX,
    *_OF_A_MATRIX,
    c_void_p,
    *_OF_A_MATRIX,
    *[c_int] * 3,
]
_WORKSPACE_BYTES = 32 * 2**20  # the size that NVIDIA recommends for the H100


def product(a: Array, b: Array, *, uses_tf32: bool) -> Array:
    """Return a @ b in a new array, for matrices or equally long stacks of matrices, of one dtype."""
    xp = array_namespace(a)
    if xp is np:
        return a @ b
    stream = int(xp.cuda.get_current_stream().ptr)
    return _of_device(int(xp.cuda.runtime.getDevice())).product(a, b, stream=stream, uses_tf32=uses_tf32)


@cache
def _of_device(device: int) -> Cublas:
    """Return the library for a device. Only the thread that launches everything may use it."""
    import cupy

    version = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle())  # 120405 for 12.4.5
    return Cublas(load_library(version), cupy.empty(_WORKSPACE_BYTES, dtype=cupy.uint8))


def load_library(version: int) -> Any:
    """Return cuBLAS in a version. CuPy has already loaded it, so its name is enough to find it."""
    return ctypes.CDLL(f"libcublas.so.{version // 10_000}")


class Cublas:
    """A handle of the library with its own workspace; otherwise every capture would allocate one."""

    def __init__(self, library: Any, workspace: Array) -> None:
        """Create a handle of a library loaded by ctypes; the workspace is device memory."""
        library.cublasCreate_v2.argtypes = [ctypes.POINTER(c_void_p)]
        library.cublasSetStream_v2.argtypes = [c_void_p, c_void_p]
        library.cublasSetWorkspace_v2.argtypes = [c_void_p, c_void_p, ctypes.c_size_t]
        library.cublasGemmStridedBatchedEx.argtypes = _PRODUCT
        self._library, self._workspace = library, workspace
        self._handle = c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))

    def product(self, a: Array, b: Array, *, stream: int, uses_tf32: bool) -> Array:
        """Launch a @ b on the stream.

        cuBLAS stores matrices by columns and we store them by rows, so it computes (a b)' = b' a'.
        """
        xp = array_namespace(a)
        if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
            raise ValueError(
                f"product: matrices must fit each other, got {a.dtype} {a.shape} and {b.dtype} {b.shape}"
            )
        out = xp.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
        kind, real = _REALS[a.dtype.name]
        compute = _COMPUTE_64F if kind else _COMPUTE_32F_FAST_TF32 if uses_tf32 else _COMPUTE_32F
        (b, of_b, *shape_of_b), (a, of_a, *shape_of_a) = _stored(b), _stored(a)
        self._call("cublasSetStream_v2", self._handle, stream)
        # This comes after the stream, because setting the stream resets the workspace.
        workspace = self._workspace
        self._call("cublasSetWorkspace_v2", self._handle, _address(workspace), workspace.nbytes)
        self._call(
            "cublasGemmStridedBatchedEx",
            self._handle,
            *(of_b, of_a, out.shape[-1], out.shape[-2], a.shape[-1]),
            ctypes.byref(real(1)),
            *(_address(b), kind, *shape_of_b),
            *(_address(a), kind, *shape_of_a),
            ctypes.byref(real(0)),
            *(_address(out), kind, out.shape[-1], out.shape[-2] * out.shape[-1]),
            *(len(out) if out.ndim == 3 else 1, compute, _ANY_ALGORITHM),
        )
        return out

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: status {status} (cublasStatus_t)")


def _stored(matrices: Array) -> tuple[Array, int, int, int]:
    """Return the matrices or a copy, the way cuBLAS must read them, their leading dimension and stride."""
    n_rows, n_columns = matrices.shape[-2:]
    down, along = (step // matrices.itemsize for step in matrices.strides[-2:])
    stride = matrices.strides[0] // matrices.itemsize if matrices.ndim == 3 else 0
    # The stride along an axis of length one is meaningless.
    down, along = down if n_rows > 1 else n_columns, along if n_columns > 1 else 1
    if along == 1 and down >= n_columns:
        return matrices, _AS_STORED, down, stride
    if (down == 1 or n_rows == 1) and along >= n_rows:
        return matrices, _TRANSPOSED, along, stride
    return _stored(array_namespace(matrices).ascontiguousarray(matrices))


def _address(array: Array) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
