"""The stand-in refuses what CuPy refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import array_namespace, copies_to_host
from rayfbnn.kernels.cuda.build import build_once
from rayfbnn.streams import Streams
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed
from tests.support.standin_cupy.rules import entries
from tests.support.targets import anharmonic_draws

HOST = np.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "an operator with NumPy's array": lambda cupy, a: a + HOST,
    "NumPy's array with an operator": lambda cupy, a: HOST * a,
    "a function of NumPy's array": lambda cupy, a: cupy.maximum(a, HOST),
    "NumPy's array in place": lambda cupy, a: a.__iadd__(HOST),
    "NumPy's array in a place": lambda cupy, a: a.__setitem__(0, HOST[0]),
    "NumPy's arrays together": lambda cupy, a: cupy.stack([a, HOST]),
    "NumPy's array out": lambda cupy, a: cupy.exp(a, out=HOST.copy()),
    "an implicit copy": lambda cupy, a: np.asarray(a),
    "a sum of some": lambda cupy, a: a.sum(axis=1, where=a > 1),
    "a sum from somewhere": lambda cupy, a: a.sum(initial=1.0),
    "a ufunc at some places": lambda cupy, a: cupy.exp(a, where=a > 1),
    "an axis of nowhere": lambda cupy, a: cupy.take_along_axis(a, cupy.zeros((2, 3), dtype=int)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cupy_refuses(cupy: Any, what: str) -> None:
    with pytest.raises(TypeError):
        REFUSED[what](cupy, cupy.asarray(HOST))


def test_a_condition_that_is_no_array_has_no_astype(cupy: Any) -> None:
    with pytest.raises(AttributeError, match="astype"):
        cupy.where(1 > 0, cupy.asarray(HOST), 0.0)


def test_interp_takes_no_view_as_x(cupy: Any) -> None:
    grid = cupy.asarray(np.linspace(0.0, 1.0, 5))
    x = cupy.asarray(np.linspace(0.0, 1.0, 6))
    assert np.array_equal(cupy.interp(x, grid, grid).get(), x.get())
    with pytest.raises(NotImplementedError, match="Non-C-contiguous"):
        cupy.interp(x[::2], grid, grid)
    with pytest.raises(ValueError, match="1D"):
        cupy.interp(x, grid[None], grid)
    with pytest.raises(ValueError, match="length"):
        cupy.interp(x, grid, x)


def test_exact_draws_of_the_tests_own_target_are_made_on_a_device(cupy: Any) -> None:
    chains = cupy.arange(1_000, dtype=cupy.uint64)
    here = anharmonic_draws(Streams(1, np.arange(1_000, dtype=np.uint64)))
    assert np.array_equal(anharmonic_draws(Streams(1, chains)).get(), here)


def test_names_that_cupy_lacks(cupy: Any) -> None:
    a = cupy.asarray(HOST)
    for missing in ("trapz_of_nothing", "float128", "linalg_"):
        assert f"cupy.{missing}" not in entries() and not hasattr(cupy, missing)
    assert not hasattr(a, "ctypes") and not hasattr(a, "byteswap")
    assert array_namespace(a) is cupy


def test_reductions_are_arrays_and_reading_them_is_recorded(cupy: Any) -> None:
    a = cupy.asarray(HOST)
    with log.recorded() as entries_made:
        total = a.sum()
        assert total.shape == () and float(total) == 15
        assert a[a > 2].shape == (3,)
        a[a > 2] = 0.0  # known without counting
    assert [entry.what for entry in entries_made if entry.kind == "read"] == ["float()", "index by a mask"]


def test_operations_that_launch_something_are_counted(cupy: Any) -> None:
    a = cupy.asarray(HOST)
    with log.recorded() as entries_made:
        view = cupy.broadcast_to(a[:, ::2].T, (2, 2, 2))  # runs nothing, and neither does the next line
        cupy.empty_like(view)
    assert log.launches(entries_made) == 0
    with log.recorded() as entries_made:
        total = (a * 2).sum(axis=0)
        total[1:] = 3.0
        total += 1
    assert log.launches(entries_made) == 4


def test_a_dtype_that_depends_on_the_version_of_cupy_is_refused(cupy: Any) -> None:
    """NumPy's float64 scalar turns float32 into float64 by the rules of CuPy 14, but not of CuPy 13."""
    a = cupy.asarray(HOST, dtype=np.float32)
    assert (a * 2.5).dtype == np.float32
    with pytest.raises(AssertionError, match="CuPy 13 gives float32"):
        a * np.float64(2.5)


def test_functions_of_numpys_name_are_cupys(cupy: Any) -> None:
    result = np.exp(cupy.asarray(HOST))
    assert type(result).__module__ == "cupy" and np.array_equal(result.get(), np.exp(HOST))


def test_a_factor_that_is_none_is_no_error(cupy: Any) -> None:
    matrices = np.stack([np.eye(2), -np.eye(2)])
    factors = cupy.linalg.cholesky(cupy.asarray(matrices)).get()
    assert np.array_equal(factors[0], np.eye(2)) and factors[1, 0, 0] == -1


def test_copies_are_wrong_unless_they_are_waited_for_and_held(cupy: Any) -> None:
    a = cupy.asarray(HOST)
    arrived = copies_to_host({"a": a})
    assert np.array_equal(arrived()["a"], HOST)
    stream = cupy.cuda.Stream(non_blocking=True)
    out = np.zeros_like(HOST)
    a.get(stream=stream, out=out, blocking=False)
    stream.record().synchronize()
    assert np.isnan(out).all()  # the stream did not wait for what was computed
    stream.wait_event(cupy.cuda.get_current_stream().record())
    a.get(stream=stream, out=out, blocking=False)
    assert np.isnan(out).all()  # nobody has waited for the copy
    del a, arrived
    stream.record().synchronize()
    assert np.isnan(out).all()  # nobody held the memory


SOURCE = """
extern "C" __global__ void add(const double* a, double* out, int n) {
  for (int i = 0; i < n; ++i) out[i] += a[i];
}
"""


@needs_gxx
def test_kernels_take_what_their_source_says(cupy: Any) -> None:
    kernel = build_once(SOURCE, "add", 0)
    a, out = cupy.asarray(HOST), cupy.zeros((2, 3))
    kernel((1,), (1,), (a, out, np.int32(6)))
    assert np.array_equal(out.get(), HOST)
    with pytest.raises(AssertionError, match="a kernel takes"):
        kernel((1,), (1,), (a, out, 6))  # eight bytes
    with pytest.raises(AssertionError, match="a kernel takes"):
        kernel((1,), (1,), (a.astype(np.float32), out, np.int32(6)))
    with pytest.raises(AssertionError, match="not C-contiguous"):
        kernel((1,), (1,), (a.T, out, np.int32(6)))
    with pytest.raises(TypeError, match="Unsupported type"):
        kernel((1,), (1,), (HOST, out, np.int32(6)))
    for grid, block, shared_mem in (((0,), (1,), 0), ((1,), (2048,), 0), ((1,), (32,), 64 * 1024)):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
            kernel(grid, block, (a, out, np.int32(6)), shared_mem=shared_mem)
