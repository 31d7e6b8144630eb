"""Gradients of large networks as a device runs them: through cuBLAS by address, and as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array, to_host
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from tests.support.kernels.networks import Start, both, on_device
from tests.support.problems import network
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed

pytestmark = needs_gxx
N_STEPS = 9


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


def ends(there: SampledPosterior, start: Start, recordings: Recordings | None) -> list[Array]:
    advance = wide.compile_for(there, tile_bytes=4_000, recordings=recordings)
    assert not isinstance(advance, NotCovered)
    moved = Start(*(on_device(getattr(start, name)) for name in start.__dataclass_fields__))
    return [to_host(values) for values in moved.run(advance, there, n_steps=N_STEPS)]


@pytest.mark.parametrize("model, dtype", [("gaussian by target", "float64"), ("class", "float32")])
def test_a_graph_computes_what_launches_do(model: str, dtype: str) -> None:
    host, there = both(model, dtype, network(outputs=3 if model == "class" else 2), 37)
    recordings = Recordings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a recording that fails would warn
        for name in ("one", "two"):
            start = Start.of(host, name=name)
            recorded, launched = ends(there, start, recordings), ends(there, start, None)
            assert all(np.array_equal(a, b) for a, b in zip(recorded, launched, strict=True))
            expected = start.run(leapfrog.advance, host, n_steps=N_STEPS)
            tolerance = 1e-11 if dtype == "float64" else 2e-2  # TF32
            for values, others in zip(recorded, expected, strict=True):
                assert np.max(np.abs(values - others) / np.maximum(np.abs(others), 1)) < tolerance
    assert len(recordings._kept) == 1


def test_every_product_of_a_gradient_may_be_in_tf32_and_none_of_an_energy() -> None:
    host, there = both("class", "float32", network(outputs=3), 37)
    start = Start.of(host)
    with log.recorded() as entries:
        ends(there, start, None)
    products = [entry for entry in entries if entry.kind == "product"]
    assert {entry.what for entry in products} == {"cublas", "cublas in TF32"}  # and none is CuPy's own
    n_exact = sum(entry.what == "cublas" for entry in products)
    # A gradient has three products for each of an energy: forward, by the values, and by the weights.
    assert n_exact > 0 and len(products) - n_exact >= 2 * n_exact * (N_STEPS + 1)
