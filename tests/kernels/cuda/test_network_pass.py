"""The products of large networks and the kernels between them: how they are cut, and what each part does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import products
from rayfbnn.kernels.cuda.build import Build, CudaFunction
from rayfbnn.kernels.cuda.cublas import _stored
from rayfbnn.kernels.cuda.forward import _stacked, tile_size
from rayfbnn.kernels.cuda.launch_plan import few_outputs_plan
from rayfbnn.kernels.network_plan import NetworkPlan, plan_of
from rayfbnn.mcmc import leapfrog
from tests.support.kernels.networks import Start, small
from tests.support.marks import long_but
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
    assert tile_size(n_cases, most) == size


MUTANTS = {
    "no biases": ("activate<L>(A, u[place] + bias, kept)", "activate<L>(A, u[place], kept)"),
    "no biases of outputs": ("+ bias_of<OUTPUT_LAYER>(w, o);", ";"),
    "no offsets": ("u[place] = v + offset;", "u[place] = v;"),
    "no gradient of biases": ("by_input += here;", ""),
    "no gradient of offsets": ("by_value += here;", ""),
    "slopes of values with offsets": ("|| offset_of(layer) >= 0;", ";"),
    "sums of one warp": ("total += sums[warp];", "total = sums[warp];"),
}
MUTANTS_OF_FEW_OUTPUTS = {
    "no biases of hidden units": ("summed + numbers[BIAS]", "summed"),
    "no biases of outputs": ("v[o] = bias_of<OUTPUT_LAYER>(w, o);", "v[o] = 0;"),
    "no offsets": ("value += numbers[OFFSET];", ""),
    "no gradient of weights": ("sum[k][j] += value.at[i] * by_output.at[i];", ";"),
    "no gradient of biases": ("shared[TOTALS + unit] += by_input;", ";"),
    "no gradient of offsets": ("shared[TOTALS + N_UNITS + unit] += by_value;", ";"),
    "units of the first warp alone": ("int warp = 0; warp < WARPS", "int warp = 0; warp < 1"),
    "sums of the first block alone": ("part < n_parts; ++part", "part < 1; ++part"),
    "cases behind the last": ("is_case ? v[o] : real(0)", "v[o]"),
}

# Links past a layer, and a network whose outputs follow from its last hidden layer alone.
WITH_LINKS_PAST = {name: prior for name, prior in PRIORS.items() if name != "ti"}
SEQUENTIAL = {name: prior for name, prior in PRIORS.items() if name not in ("ti", "ih1", "ho0", "io")}


def error_of(
    build: Build,
    priors: dict[str, str] = WITH_LINKS_PAST,
    *,
    model: str = "gaussian by target",
    n_cases: int = 300,  # more than a block has threads
    dtype: str = "float64",
    has_few_outputs: bool = False,
    n_partitions: int = 1,
    **layers: Any,
) -> float:
    """Difference from array code after a few steps, for a network with biases and offsets in each layer."""
    spec = network(priors, **{"outputs": 3 if model == "class" else 2, **layers})
    target = problem(model, spec=spec, n_cases=n_cases, dtype=dtype)
    start = Start.of(target, are_unlike=True, n_partitions=n_partitions)
    advance = products.compile_for(target, build=build, tile_bytes=100_000)
    assert not isinstance(advance, NotCovered)
    plan = plan_of(target)
    assert isinstance(plan, NetworkPlan)
    assert (few_outputs_plan(plan, dtype) is not None) == has_few_outputs
    ends = [start.run(advance, target), start.run(leapfrog.advance, target)]
    return max(float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1))) for a, b in zip(*ends, strict=True))


@needs_gxx
@pytest.mark.parametrize("order", [0, pytest.param(1, marks=pytest.mark.long)])
def test_long_rows_are_those_of_the_array_code(order: int) -> None:
    assert error_of(ShimBuild(order)) < 1e-11


CASES: dict[str, dict[str, Any]] = {
    "offsets": {},
    "class": {"model": "class", "n_cases": 19},
    "kept slopes": {"activations": ("tanh", "softplus"), "n_cases": 37},
    "no offsets": {"priors": small((4, 3)).priors, "n_cases": 37, "dtype": "float32"},
    "partial gradients": {"n_cases": 37, "n_partitions": 3},
    "blocks of units": {"units": (4, 9), "n_cases": 37, "dtype": "float32"},
}


@needs_gxx
@pytest.mark.parametrize(
    "name, order", long_but({("offsets", 0), ("class", 1), ("blocks of units", 0)}, CASES, [0, 1])
)
def test_few_outputs_are_those_of_the_array_code(name: str, order: int) -> None:
    settings = {"priors": SEQUENTIAL, **CASES[name]}
    if name == "no offsets":
        settings["priors"] = dict.fromkeys(settings["priors"], "1")
    error = error_of(ShimBuild(order), has_few_outputs=True, **settings)
    assert error < (3e-6 if settings.get("dtype") == "float32" else 1e-11)


@needs_gxx
def test_many_outputs_are_left_to_products() -> None:
    assert error_of(ShimBuild(), SEQUENTIAL, outputs=9, n_cases=37) < 1e-11
    assert error_of(ShimBuild(), SEQUENTIAL, outputs=8, n_cases=37, has_few_outputs=True) < 1e-11


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_kernels_is_seen(name: str) -> None:
    assert error_of(ShimBuild(replace=(*MUTANTS[name], 0))) > 1e-6


@needs_gxx
@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS_OF_FEW_OUTPUTS)
def test_a_mutant_of_the_kernels_for_few_outputs_is_seen(name: str) -> None:
    plain, mutant = ShimBuild(), ShimBuild(replace=(*MUTANTS_OF_FEW_OUTPUTS[name], 0))

    def build(source: str, name: str, shared_bytes: int) -> CudaFunction:
        is_changed = name in ("through_outputs", "add_sums")
        return (mutant if is_changed else plain)(source, name, shared_bytes)

    assert error_of(build, SEQUENTIAL, has_few_outputs=True, units=(4, 6)) > 1e-6
