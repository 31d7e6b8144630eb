"""Posteriors with random draws for sums over draws, and the backends that add them up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Reducer
from rayfbnn.kernels.cpu import compiled_module
from rayfbnn.kernels.cpu.reducing import reducer
from rayfbnn.kernels.cuda import reducing as on_device
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.posterior import Posterior
from tests.support.shim.compiled import ShimBuild, needs_gxx

SETS = compiled_module.instruction_sets()
BACKENDS = [
    *SETS,
    pytest.param("shim", marks=needs_gxx),
    pytest.param("products on the shim", marks=needs_gxx),
    pytest.param("device", marks=pytest.mark.gpu),
    pytest.param("products on a device", marks=pytest.mark.gpu),
]
PRODUCTS: dict[str, Any] = {"most_fused": 0, "tile_bytes": 200_000}  # so little that there are several tiles

INPUTS, DRAWS = 3, 150  # more draws than are summed in single precision
T_DF = 3.0
MODELS: dict[str, tuple[ModelSpec, int]] = {
    "gaussian": (ModelSpec("real", noise=PriorSpec(0.2)), 2),
    "t": (ModelSpec("real", noise=PriorSpec(0.2, (math.inf, math.inf, T_DF))), 2),
    "heteroscedastic": (ModelSpec("heteroscedastic", noise_floor=0.05), 4),
    "binary": (ModelSpec("binary"), 2),
    "class": (ModelSpec("class", classes=3), 3),
    "count": (ModelSpec("count"), 2),
    "dispersed count": (ModelSpec("count", dispersion=PriorSpec(0.3)), 2),
    "survival": (ModelSpec("survival"), 1),
    "piecewise": (ModelSpec("survival", times=(0.4, 1.0, 2.5)), 1),
}
REAL = ("gaussian", "t", "heteroscedastic")
COUNTS = ("count", "dispersed count")
TIMES = ("survival", "piecewise")


def network(n_outputs: int, kind: str, n_inputs: int = INPUTS) -> NetworkSpec:
    prior = PriorSpec(1.0)
    if kind == "linear":
        return NetworkSpec(n_inputs, n_outputs, (), {"io": prior, "bo": prior})
    layers = (LayerSpec(5, "tanh"),) if kind == "one" else (LayerSpec(9, "softplus"), LayerSpec(4, "tanh"))
    spec = NetworkSpec(n_inputs, n_outputs, layers)
    return NetworkSpec(n_inputs, n_outputs, layers, dict.fromkeys(spec.possible_groups(), prior))


class Problem:
    """A posterior with random draws of its parameters, and cases to predict."""

    def __init__(self, model: str, *, kind: str = "one", dtype: Any = "float64", n_cases: int = 37) -> None:
        spec, n_outputs = MODELS[model]
        self.rng = np.random.default_rng(len(model) + n_cases)
        self.n_targets = {"class": 1, "survival": 1, "piecewise": 1}.get(model, 2)
        inputs = self.rng.normal(size=(n_cases, INPUTS))
        self.targets = self._targets(model, n_cases)
        spec_of_network = network(n_outputs, kind, INPUTS + len(data_model_from_spec(spec).added_inputs))
        self.posterior = Posterior.from_spec(spec_of_network, spec, inputs[:4], self.targets[:4], dtype=dtype)
        self.model = self.posterior.data_model
        self.n_cases, self.inputs = n_cases, self.model.cell_inputs(inputs)
        self.positions = self.rng.normal(size=(DRAWS, self.posterior.n_parameters)).astype(dtype) / 2
        n_noise = 0 if self.model.governed_by is None else self.n_targets
        self.noise = self.rng.gamma(2.0, size=(DRAWS, n_noise)) + 0.1
        self.tolerance = 1e-10 if dtype == "float64" else 2e-4

    def _targets(self, model: str, n_cases: int) -> Array:
        shape = (n_cases, self.n_targets)
        if model in REAL:
            targets = self.rng.normal(size=shape)
        elif model in TIMES:
            targets = self.rng.gamma(1.0, size=shape) * np.where(self.rng.uniform(size=shape) < 0.3, -1, 1)
        else:
            targets = self.rng.integers(3 if model in ("class", *COUNTS) else 2, size=shape).astype(float)
        if self.n_targets > 1 and n_cases > 6:
            targets[5, 1] = targets[6] = np.nan
        return targets

    @property
    def outputs(self) -> Array:
        """Outputs (n_cases, n_outputs or n_cells, n_draws) by array code."""
        outputs = self.posterior.outputs(self.positions, self.inputs)
        return np.moveaxis(outputs.reshape(DRAWS, self.n_cases, -1), 0, 2)

    @property
    def sigmas(self) -> Array:
        return self.noise**-0.5

    def compiled(self, backend: str) -> Reducer:
        """The sums by an instruction set, by CUDA code that the shim runs on the CPU, or on a device."""
        with_products = PRODUCTS if backend.startswith("products") else {}
        if backend in SETS:
            found: Reducer | None = reducer(self.posterior, self.inputs, backend)
        elif backend.endswith("device"):
            found = on_device.reducer(self.posterior, self.inputs, **with_products)
        else:
            found = on_device.reducer(self.posterior, self.inputs, build=ShimBuild(), xp=np, **with_products)
        assert found is not None
        return found
