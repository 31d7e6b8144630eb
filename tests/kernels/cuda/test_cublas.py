"""Products by cuBLAS, called by address: a CPU library of the same functions gives the products of NumPy."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.cuda.cublas import Cublas
from rayfbnn.streams import Purpose
from tests.support.problems import streams
from tests.support.shim import compiled
from tests.support.shim.compiled import needs_gxx

pytestmark = needs_gxx
SOURCE = Path(compiled.__file__).parent / "cublas.cpp"
STREAM = 4321


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    allocated = tmp_path_factory.mktemp("cublas") / "libcublas.so"
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(allocated)], check=True
    )
    return ctypes.CDLL(str(allocated))


def numbers(*shape: int, dtype: str = "float64") -> Array:
    return streams("products", 1).normal(Purpose.PROPOSAL, shape)[0].astype(dtype)


def assert_products_are_equal(library: Any, a: Array, b: Array) -> None:
    product = Cublas(library, np.empty(64, dtype=np.uint8)).product(a, b, stream=STREAM, uses_tf32=False)
    expected = a @ b
    assert product.shape == expected.shape and product.dtype == expected.dtype and product.flags.c_contiguous
    tolerance = 1e-5 if a.dtype == np.float32 else 1e-13
    assert np.max(np.abs(product - expected)) < tolerance * max(1, np.max(np.abs(expected)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "n, k, m", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 5), (3, 1, 1), (1, 4, 1)]
)
def test_products_of_matrices_stacks_and_transposes(n: int, k: int, m: int, dtype: str, library: Any) -> None:
    for stack in ((), (2,), (1,)):
        rows, columns = numbers(*stack, n, k, dtype=dtype), numbers(*stack, k, m, dtype=dtype)
        for a in (rows, np.ascontiguousarray(rows.swapaxes(-1, -2)).swapaxes(-1, -2)):
            for b in (columns, np.ascontiguousarray(columns.swapaxes(-1, -2)).swapaxes(-1, -2)):
                assert_products_are_equal(library, a, b)


def test_products_of_the_views_of_a_pass(library: Any) -> None:
    """A view is a chain's weights without the biases, or some rows of the inputs at a tile's cases."""
    parameters, values = numbers(3, 40), numbers(3, 4, 9)
    weights = parameters[:, 7:32].reshape(3, 5, 5)[:, :4]
    assert np.shares_memory(weights, parameters)
    assert_products_are_equal(library, weights.swapaxes(1, 2), values)
    assert_products_are_equal(library, weights, numbers(3, 5, 9))
    assert_products_are_equal(library, values, numbers(3, 5, 9).swapaxes(1, 2))
    inputs = numbers(6, 50)[1:5, 13:22]
    assert_products_are_equal(library, numbers(15, 4), inputs)
    assert_products_are_equal(library, numbers(15, 9), inputs.T)


def test_other_views_are_copied(library: Any) -> None:
    both = numbers(3, 8, 10)
    assert_products_are_equal(library, both[:, ::2, ::2], numbers(3, 5, 2))
    assert_products_are_equal(library, np.broadcast_to(numbers(1, 4), (3, 4)), both[0, :4, ::3])
    assert_products_are_equal(library, np.broadcast_to(numbers(4, 1), (4, 3)), numbers(3, 2))
    assert_products_are_equal(library, both[0, :, ::-1], numbers(10, 2))


@pytest.mark.parametrize(
    "dtype, uses_tf32, number", [("float32", True, 77), ("float32", False, 68), ("float64", True, 70)]
)
def test_stream_workspace_and_precision_are_those_asked_for(
    dtype: str, uses_tf32: bool, number: int, library: Any
) -> None:
    workspace = np.empty(64, dtype=np.uint8)
    a = numbers(3, 3, dtype=dtype)
    Cublas(library, workspace).product(a, a, stream=STREAM, uses_tf32=uses_tf32)
    stream, place, compute = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    library.what_was_used(ctypes.byref(stream), ctypes.byref(place), ctypes.byref(compute))
    assert (stream.value, place.value, compute.value) == (STREAM, workspace.ctypes.data, number)


def test_what_is_not_a_product_is_refused(library: Any) -> None:
    cublas = Cublas(library, np.empty(64, dtype=np.uint8))
    for b in (numbers(5, 2), numbers(2, 4, 2), numbers(4, 2, dtype="float32")):
        with pytest.raises(ValueError, match="product: matrices must fit.*float64"):
            cublas.product(numbers(3, 4), b, stream=STREAM, uses_tf32=False)
    with pytest.raises(RuntimeError, match="cublasSetWorkspace_v2: status 7"):
        Cublas(library, np.empty(0, dtype=np.uint8)).product(
            numbers(3, 4), numbers(4, 2), stream=STREAM, uses_tf32=False
        )
