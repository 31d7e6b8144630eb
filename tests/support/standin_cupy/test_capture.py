"""The stand-in's streams, graphs and products follow the rules of CuPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rayfbnn.kernels.cuda import cublas
from rayfbnn.kernels.cuda.graphs import cuda_graph
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed

pytestmark = needs_gxx


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


def test_a_captured_stream_runs_nothing_until_its_graph_is_launched(cupy: Any) -> None:
    a, out = cupy.arange(4.0), cupy.zeros(4)

    def compute() -> None:
        doubled = 2 * a
        doubled[1:] += cupy.where(a[1:] > 2, a[1:], 0.0)
        out[...] = cupy.concatenate([doubled[:2], doubled[2:].copy()])

    graph = cuda_graph(compute)
    assert np.array_equal(out.get(), np.zeros(4))
    graph()
    assert np.array_equal(out.get(), [0.0, 2.0, 4.0, 9.0])
    a[...] = cupy.asarray(np.array([1.0, 5.0, 0.0, 0.0]))
    graph()
    assert np.array_equal(out.get(), [2.0, 15.0, 0.0, 0.0])


def test_products_by_address_are_part_of_a_graph(cupy: Any) -> None:
    a = cupy.asarray(np.arange(6.0).reshape(2, 3))
    out = cupy.zeros((2, 2))

    def compute() -> None:
        out[...] = cublas.product(a, a.T, uses_tf32=False) + 1

    compute()
    out.fill(0)
    graph = cuda_graph(compute)
    assert np.array_equal(out.get(), np.zeros((2, 2)))
    graph()
    assert np.array_equal(out.get(), a.get() @ a.get().T + 1)


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "a value": (RuntimeError, "StreamCaptureUnsupported: float", lambda cupy, a: float(a.sum())),
    "numbers of the host": (RuntimeError, "Unsupported: asarray", lambda cupy, a: cupy.asarray(np.ones(2))),
    "matmul": (NotImplementedError, "cuBLAS", lambda cupy, a: a @ a),
    "a factor": (NotImplementedError, "cuSOLVER", lambda cupy, a: cupy.linalg.cholesky(a)),
    "new code": (
        RuntimeError,
        "code is loaded",
        lambda cupy, a: cupy.RawModule(code="void f() {}").get_function("f"),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured(cupy: Any, what: str) -> None:
    kind, words, function = REFUSED[what]
    a = cupy.asarray(np.eye(2))
    with pytest.raises(kind, match=words):
        cuda_graph(lambda: function(cupy, a))
    assert cupy.cuda.get_current_stream().ptr == 0
    function(cupy, a) if what != "new code" else None  # and outside a capture it can be done


def test_arrays_of_a_graph_need_a_pool_that_stays(cupy: Any) -> None:
    a, out = cupy.ones(3), cupy.zeros(3)
    stream = cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(RuntimeError, match="current stream"):
        stream.begin_capture()
    with stream:
        stream.begin_capture()
        with pytest.raises(AssertionError, match="memory pool of its own"):
            a + a
        stream.end_capture()
    pool = cupy.cuda.MemoryPool()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        assert stream.is_capturing() and cupy.cuda.get_current_stream() is stream
        out[...] = a + a
        graph = stream.end_capture()
    graph.launch()
    assert np.array_equal(out.get(), [2.0, 2.0, 2.0])
    del pool
    with pytest.raises(AssertionError, match="memory pool is gone"):
        graph.launch()


def test_an_argument_of_a_graph_must_stay(cupy: Any) -> None:
    a, out = cupy.ones(3), cupy.zeros(3)
    held = [a]
    graph = cuda_graph(lambda: out.__setitem__(..., held[0] + held[0]))
    graph()
    del a, held[0]
    with pytest.raises(AssertionError, match="an array which is gone"):
        graph()


@pytest.mark.parametrize("uses_tf32", [False, True])
def test_products_by_address_are_in_tf32_only_where_asked_for(cupy: Any, uses_tf32: bool) -> None:
    values = np.random.default_rng(1).normal(size=(2, 8, 8)).astype(np.float32)
    a = cupy.asarray(values)
    with log.recorded() as entries:
        result = cublas.product(a, a.swapaxes(1, 2), uses_tf32=uses_tf32).get()
    assert [entry.what for entry in entries if entry.kind == "product"] == ["cublas" + " in TF32" * uses_tf32]
    error = np.max(np.abs(result - values @ values.swapaxes(1, 2)))
    assert (1e-5 < error < 1e-2) if uses_tf32 else error < 1e-5
