"""CuPy's functions that differ from NumPy's in the arguments that they accept, or that make the host wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from tests.support.standin_cupy import capture, log
from tests.support.standin_cupy.array import (
    allocated,
    changed,
    made,
    ndarray,
    operand,
    plain,
    unwrapped,
    wrapped,
)
from tests.support.standin_cupy.memory import Numbers, garbage
from tests.support.standin_cupy.rules import dtype_of


def _as_values(name: str, a: Any, dtype: Any, order: str | None, is_copied: bool) -> ndarray:
    if isinstance(a, ndarray):
        values = a._values
        if is_copied:
            return made(lambda: np.array(values, dtype=dtype, order=order or "K"), a)  # type: ignore
        return made(lambda: np.asarray(values, dtype=dtype, order=order), a)  # type: ignore
    if isinstance(a, list | tuple) and any(isinstance(entry, ndarray) for entry in a):
        return _stack(a)
    uploaded = np.array(a, dtype=dtype, order=order)  # type: ignore[call-overload]
    if uploaded.dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {uploaded.dtype}")
    log.record("upload", name, uploaded.nbytes)
    return wrapped(uploaded)


def _asarray(a: Any, dtype: Any = None, order: str | None = None, *, blocking: bool = False) -> ndarray:
    return _as_values("asarray", a, dtype, order, False)


def _array(
    obj: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    if ndmin:
        raise NotImplementedError("stand-in: array with ndmin")
    return _as_values("array", obj, dtype, order, copy)


def _ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    return _as_values("ascontiguousarray", a, dtype, "C", False)


def _asnumpy(
    a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True
) -> Numbers:
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a, order=order)


def _empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return allocated(lambda: garbage(np.empty(shape, dtype=dtype, order=order)))  # type: ignore


def _empty_like(
    prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    if not isinstance(prototype, ndarray) or subok is not None:
        raise TypeError(f"empty_like: got {type(prototype)}")
    values = prototype._values
    return allocated(lambda: garbage(np.empty_like(values, dtype=dtype, order=order, shape=shape)))  # type: ignore


def _full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    if isinstance(fill_value, ndarray) and fill_value.ndim:
        raise ValueError("full: of a scalar")
    value = unwrapped(fill_value)
    return made(lambda: np.full(shape, value, dtype=dtype, order=order), fill_value)  # type: ignore


def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Require an array as condition: CuPy calls its `astype`, which a Python bool does not have."""
    if x is None:
        log.record("read", "where", 8)
        return wrapped(np.nonzero(condition._values))
    chosen = condition.astype(bool)
    values = (np.asarray(chosen._values), operand(x), operand(y))

    def compute() -> Any:
        result = np.where(*values)
        return np.ascontiguousarray(result) if result.ndim else result

    result = made(compute, chosen, x, y)
    if dtype_of("cupy.where", values) != result.dtype:
        raise AssertionError(f"where: CuPy 13 gives {dtype_of('cupy.where', values)}, NumPy {result.dtype}")
    return result


def _counted(name: str) -> Callable[..., Any]:
    """A function for which the host waits, to learn the shape of the result or for Thrust."""

    def function(*arguments: Any, **options: Any) -> Any:
        log.record("read", name, 8)
        return plain(f"cupy.{name}", getattr(np, name), *arguments, **options)

    return function


def _concatenate(
    tup: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind"
) -> Any:
    if any(not isinstance(array, ndarray) for array in tup):
        raise TypeError("Only cupy arrays can be concatenated")
    return _joined(np.concatenate, tup, axis, out, dtype=dtype, casting=casting)


def _stack(tup: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    if any(not isinstance(array, ndarray) for array in tup):
        raise TypeError("Only cupy arrays can be stacked")
    return _joined(np.stack, tup, axis, out, dtype=dtype, casting=casting)


def _joined(function: Callable[..., Any], arrays: Any, axis: int, out: Any, **options: Any) -> Any:
    values = [array._values for array in arrays]
    if out is not None:
        return changed(lambda: function(values, axis, out._values, **options), out, *arrays)
    return made(lambda: function(values, axis, **options), *arrays)


def _matmul(*arguments: Any, out: Any = None, **options: Any) -> Any:
    if len(arguments) != 2 or options or any(not isinstance(argument, ndarray) for argument in arguments):
        raise NotImplementedError(
            f"stand-in: matmul of {[type(argument) for argument in arguments]} with {list(options)}"
        )
    a, b = arguments
    if a.dtype != b.dtype or (out is not None and out.dtype != a.dtype):
        raise AssertionError(f"matmul of {a.dtype} and {b.dtype}: CuPy's dtype depends on its version")
    capture.refuse("cuBLAS API")
    is_batched = max(a.ndim, b.ndim) > 2
    n_bytes = sum(array.nbytes for array in (a, b) if _is_copied(array, is_batched))
    log.record("product", "matmul", n_bytes)
    values = [array._values for array in (a, b)]
    if out is None:
        return made(lambda: np.matmul(*values), a, b)
    return changed(lambda: np.matmul(*values, out=out._values), out, a, b)


def _is_copied(array: ndarray, is_batched: bool) -> bool:
    """Return True if CuPy copies an operand: of a batch any that is not C-contiguous."""
    return not (array.flags.c_contiguous or (array.flags.f_contiguous and not is_batched))


def _cholesky(a: Any) -> Any:
    """Factor without errors; a matrix without a factor keeps the half-done triangle of potrf."""
    capture.refuse("cuSOLVER API")
    _square(a, "cholesky")
    factors = np.tril(a._values)
    for place in np.ndindex(factors.shape[:-2]):
        if factors[place].size:
            factor, _ = scipy.linalg.lapack.get_lapack_funcs(("potrf",), (factors[place],))[0](
                factors[place], lower=1, clean=1
            )
            factors[place] = factor
    return wrapped(factors)


def _inv(a: Any) -> Any:
    """Invert without errors: a matrix without an inverse gives NaN."""
    capture.refuse("cuSOLVER API")
    _square(a, "inv")
    inverses = np.full_like(a._values, np.nan)
    for place in np.ndindex(inverses.shape[:-2]):
        try:
            inverses[place] = np.linalg.inv(a._values[place])
        except np.linalg.LinAlgError:
            continue
    return wrapped(inverses)


def _square(a: Any, name: str) -> None:
    if not isinstance(a, ndarray):
        raise np.linalg.LinAlgError(f"cupy.linalg only supports cupy.ndarray, got {type(a)}")
    if a.dtype.char not in "fd":
        raise TypeError(f"stand-in: linalg.{name} of {a.dtype}")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError(f"linalg.{name} of {a.shape}")


def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if any(not isinstance(array, ndarray) for array in (x, xp, fp)):
        raise TypeError("interp: only of arrays of CuPy's")
    if left is not None or right is not None or period is not None:
        raise NotImplementedError("stand-in: interp with left, right or period")
    if xp.ndim != 1 or fp.ndim != 1:
        raise ValueError("xp and fp must be 1D arrays")
    if xp.size != fp.size:
        raise ValueError("fp and xp are not of the same length")
    if xp.size == 0:
        raise ValueError("array of sample points is empty")
    if not x.flags.c_contiguous:
        raise NotImplementedError("Non-C-contiguous x is currently not supported")
    return wrapped(np.interp(x._values, xp._values, fp._values))


OF_CUPY: dict[str, Callable[..., Any]] = {
    "cupy.asarray": _asarray,
    "cupy.array": _array,
    "cupy.ascontiguousarray": _ascontiguousarray,
    "cupy.asnumpy": _asnumpy,
    "cupy.empty": _empty,
    "cupy.empty_like": _empty_like,
    "cupy.full": _full,
    "cupy.where": _where,
    "cupy.concatenate": _concatenate,
    "cupy.stack": _stack,
    "cupy.matmul": _matmul,
    "cupy.interp": _interp,
    "cupy.linalg.cholesky": _cholesky,
    "cupy.linalg.inv": _inv,
    **{
        f"cupy.{name}": _counted(name)
        for name in ("nonzero", "flatnonzero", "argwhere", "unique", "argsort", "sort")
    },
}
