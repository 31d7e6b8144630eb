"""The products of large networks and the kernels between them: how they are cut, and what each part does."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import products
from rayfbnn.kernels.cuda.cublas import _stored
from rayfbnn.kernels.cuda.network_pass import _stacked, _tile_size
from rayfbnn.mcmc import leapfrog
from tests.support.kernels.networks import Start
from tests.support.problems import PRIORS, network, problem
from tests.support.shim.compiled import ShimBuild, needs_gxx


@pytest.mark.parametrize("n_units", [784, 785, 10, 1])
def test_rows_of_stacked_weights_begin_at_multiples_of_16_bytes(n_units: int) -> None:
    matrix = np.arange(3 * n_units * 5, dtype=np.float32).reshape(3, n_units, 5)
    stacked = _stacked(matrix)
    assert np.array_equal(stacked, matrix.swapaxes(1, 2).reshape(-1, n_units))
    stored, _, leading, _ = _stored(stacked)
    assert stored is stacked and leading * stacked.itemsize % 16 == 0


@pytest.mark.parametrize(
    "n_cases, most, size",
    [
        (60_000, 52_428, 30_016),  # two tiles of about one size, each a multiple of 64
        (60_000, 100_000, 60_032),  # one tile
        (19, 1, 1),
        (37, 12, 10),
        (100, 64, 64),
        (5, 0, 1),
    ],
)
def test_tiles_are_of_about_one_size(n_cases: int, most: int, size: int) -> None:
    assert _tile_size(n_cases, most) == size


MUTANTS = {
    "no biases": ("activate<L>(A, u[place] + bias, kept)", "activate<L>(A, u[place], kept)"),
    "no biases of outputs": ("+ bias_of<OUTPUT_LAYER>(w, o);", ";"),
    "no offsets": ("u[place] = v + offset;", "u[place] = v;"),
    "no gradient of biases": ("by_input += here;", ""),
    "no gradient of offsets": ("by_value += here;", ""),
    "slopes of values with offsets": ("|| offset_of(layer) >= 0;", ";"),
    "sums of one warp": ("total += sums[warp];", "total = sums[warp];"),
}


def error_of(build: ShimBuild) -> float:
    """Difference from array code after a few steps, for a network with biases and offsets in each layer."""
    priors = {name: prior for name, prior in PRIORS.items() if name != "ti"}
    target = problem(spec=network(priors), n_cases=300)  # more cases than a block has threads
    start = Start.of(target, are_unlike=True)
    advance = products.compile_for(target, build=build)
    assert not isinstance(advance, NotCovered)
    ends = [start.run(advance, target), start.run(leapfrog.advance, target)]
    return max(float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1))) for a, b in zip(*ends, strict=True))


@needs_gxx
@pytest.mark.parametrize("order", [0, pytest.param(1, marks=pytest.mark.long)])
def test_long_rows_are_those_of_the_array_code(order: int) -> None:
    assert error_of(ShimBuild(order)) < 1e-11


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_kernels_is_seen(name: str) -> None:
    assert error_of(ShimBuild(replace=(*MUTANTS[name], 0))) > 1e-6
