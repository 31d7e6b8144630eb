"""Sums over draws in compiled code, compared with NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cpu import compiled_module
from rayfbnn.kernels.cpu.reducing import CompiledReducer, reducer
from rayfbnn.kernels.cuda import reducing as on_device
from rayfbnn.kernels.cuda.reducing import DeviceReducer
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.posterior import Posterior
from tests.support.shim.compiled import ShimBuild, needs_gxx

SETS = compiled_module.instruction_sets()
pytestmark = pytest.mark.skipif(not SETS, reason="needs the compiled extension")
BACKENDS = [*SETS, pytest.param("shim", marks=needs_gxx), pytest.param("device", marks=pytest.mark.gpu)]

INPUTS, DRAWS = 3, 150  # more draws than are summed in single precision
T_DF = 3.0
MODELS: dict[str, tuple[ModelSpec, int]] = {
    "gaussian": (ModelSpec("real", noise=PriorSpec(0.2)), 2),
    "t": (ModelSpec("real", noise=PriorSpec(0.2, (math.inf, math.inf, T_DF))), 2),
    "heteroscedastic": (ModelSpec("heteroscedastic", noise_floor=0.05), 4),
    "binary": (ModelSpec("binary"), 2),
    "class": (ModelSpec("class", classes=3), 3),
    "count": (ModelSpec("count"), 2),
    "survival": (ModelSpec("survival"), 1),
    "piecewise": (ModelSpec("survival", times=(0.4, 1.0, 2.5)), 1),
}
REAL = ("gaussian", "t", "heteroscedastic")
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
        n_noise = self.n_targets if self.model.has_noise else 0
        self.noise = self.rng.gamma(2.0, size=(DRAWS, n_noise)) + 0.1
        self.tolerance = 1e-10 if dtype == "float64" else 2e-4

    def _targets(self, model: str, n_cases: int) -> Array:
        shape = (n_cases, self.n_targets)
        if model in REAL:
            targets = self.rng.normal(size=shape)
        elif model in TIMES:
            targets = self.rng.gamma(1.0, size=shape) * np.where(self.rng.uniform(size=shape) < 0.3, -1, 1)
        else:
            targets = self.rng.integers(3 if model in ("class", "count") else 2, size=shape).astype(float)
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

    def compiled(self, backend: str) -> CompiledReducer | DeviceReducer:
        """The sums by an instruction set, by CUDA code that the shim runs on the CPU, or on a device."""
        if backend == "device":
            found: Any = on_device.reducer(self.posterior, self.inputs)
        elif backend == "shim":
            found = on_device.reducer(self.posterior, self.inputs, build=ShimBuild(), xp=np)
        else:
            found = reducer(self.posterior, self.inputs, backend)
        if isinstance(found, NotCovered) and backend not in SETS:
            pytest.skip(f"left to the host: {found.reason}")
        assert not isinstance(found, NotCovered)
        return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "n_cases"), [("one", 1), ("two", 37), ("two", 3000), ("linear", 16)])
def test_outputs(kind: str, n_cases: int, dtype: str, backend: str) -> None:
    problem = Problem("gaussian", kind=kind, dtype=dtype, n_cases=n_cases)
    outputs = problem.compiled(backend).outputs(problem.positions)
    expected = np.moveaxis(problem.outputs, 2, 0).swapaxes(1, 2)
    np.testing.assert_allclose(outputs, expected, atol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MODELS)
def test_moments(model: str, dtype: str, backend: str) -> None:
    if model.startswith(("survival", "piecewise")) and backend in ("shim", "device"):
        pytest.skip("survival times are left to the host")
    problem = Problem(model, dtype=dtype)
    pieces = np.repeat([0, 1, 3], [20, 80, 50])
    mean = problem.model.target_moments(problem.outputs, problem.sigmas.T[None])[0]  # (cases, values, draws)
    shift = problem.rng.normal(size=mean.shape[1::-1])
    sums, squares, variances = np.ones((4, *shift.shape)), np.ones(shift.shape), np.ones(shift.shape)
    compiled = problem.compiled(backend)
    for part in (slice(0, 90), slice(90, DRAWS)):
        compiled.add_moments(problem.positions[part], pieces[part], shift, (sums, squares, variances))
    excess = np.moveaxis(mean, 2, 0).swapaxes(1, 2) - shift
    expected = np.stack([excess[pieces == piece].sum(axis=0) for piece in range(4)])
    tolerance = {"rtol": problem.tolerance, "atol": problem.tolerance}
    np.testing.assert_allclose(sums, 1 + expected, **tolerance)
    np.testing.assert_allclose(squares, 1 + np.square(excess).sum(axis=0), **tolerance)
    of_noise = np.zeros(shift.shape)
    if model in ("heteroscedastic", *TIMES):
        of_noise = problem.model.target_moments(problem.outputs, problem.sigmas)[1].sum(axis=2).T
    np.testing.assert_allclose(variances, 1 + of_noise, **tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MODELS)
def test_scores(model: str, dtype: str, backend: str) -> None:
    problem = Problem(model, dtype=dtype)
    maxima, scaled = np.full(37, -np.inf), np.zeros(37)
    compiled = problem.compiled(backend)
    for part in (slice(0, 1), slice(1, DRAWS)):
        compiled.add_scores(problem.positions[part], problem.noise[part], problem.targets, maxima, scaled)
    outputs = np.moveaxis(problem.outputs, 2, 0)
    density = problem.model.log_density(outputs, problem.targets, problem.noise)
    expected = scipy.special.logsumexp(density, axis=0)
    np.testing.assert_allclose(
        maxima + np.log(scaled), expected, rtol=problem.tolerance, atol=problem.tolerance
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", REAL)
def test_distributions(model: str, dtype: str, backend: str) -> None:
    problem = Problem(model, dtype=dtype, n_cases=70)
    guesses = problem.rng.normal(size=(3, 2, 70)) * 2
    guesses[0, 0, :4] = [-1e4, 1e4, 0.0, -30.0]
    sums = np.ones((3, *guesses.shape))
    sigmas = problem.sigmas if model != "heteroscedastic" else np.empty((DRAWS, 0))
    compiled = problem.compiled(backend)
    for part in (slice(0, 30), slice(30, DRAWS)):
        compiled.add_distribution(problem.positions[part], sigmas[part], guesses, sums)
    exact = 2e-4 if dtype == "float32" else 1e-10
    for number, values in enumerate(guesses):
        expected = problem.model.distribution(problem.outputs, sigmas.T[None], values.T)
        np.testing.assert_allclose(sums[0, number].T - 1, expected[0], atol=exact)
        np.testing.assert_allclose(sums[1, number].T - 1, expected[1], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(sums[2, number].T - 1, expected[2], rtol=5e-3, atol=5e-2)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counts(dtype: str, instruction_set: str) -> None:
    """Small counts, which are summed one by one, and large ones by an expansion, side by side."""
    problem = Problem("count", dtype=dtype, n_cases=70)
    problem.positions *= 8  # rates from 1e-6 to 1e6
    counts = np.floor(np.exp(problem.rng.uniform(0, 14, size=(5, 2, 70)))) - 1
    counts[0, 0, :6] = [0, 1, 15, 16, 1e15, 4e300]
    counts[:, 1, 20:50] = np.floor(problem.rng.uniform(0, 15, size=(5, 30)))
    compiled = problem.compiled(instruction_set)
    sums, mass = np.ones((3, *counts.shape)), np.ones(counts.shape)
    compiled.add_distribution(problem.positions, np.empty((DRAWS, 0)), counts, sums)
    compiled.add_mass(problem.positions, counts, mass)
    exact = 1e-8 if dtype == "float64" else 2e-3  # rounding of outputs near 14
    for number, values in enumerate(counts):
        expected = problem.model.distribution(problem.outputs, problem.sigmas, values.T)
        np.testing.assert_allclose(sums[0, number].T - 1, expected[0], atol=exact)
        np.testing.assert_allclose(sums[1, number].T - 1, expected[1], atol=exact)
    np.testing.assert_allclose(mass, sums[1], atol=1e-12)


@pytest.mark.parametrize("log_rate", [-800.0, -20.0, 0.0, 2.5, 3.0, 10.0, 14.0, 690.0, 900.0])
def test_probabilities_of_one_count(log_rate: float) -> None:
    """A network without hidden units and with a bias alone, so that its rate is known to the last bit."""
    problem = Problem("count", kind="linear", n_cases=70)
    problem.positions[...] = 0
    problem.positions[:, -2:] = log_rate
    rate = math.exp(min(log_rate, 690.0))
    spread = np.linspace(-9, 9, 70)
    counts = np.stack([np.arange(70.0), np.maximum(np.floor(rate + spread * math.sqrt(rate)), 0)])
    sums = np.zeros((3, 1, *counts.shape))
    problem.compiled(SETS[0]).add_distribution(problem.positions, np.empty((DRAWS, 0)), counts[None], sums)
    v = np.full((70, 2, DRAWS), log_rate)
    expected = problem.model.distribution(v, problem.sigmas, counts.T)
    np.testing.assert_allclose(sums[0, 0].T, expected[0], atol=DRAWS * 1e-9)
    np.testing.assert_allclose(sums[1, 0].T, expected[1], rtol=1e-9, atol=DRAWS * 1e-12)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", TIMES)
def test_times(model: str, dtype: str, instruction_set: str) -> None:
    problem = Problem(model, dtype=dtype, n_cases=70)
    times = problem.rng.gamma(1.0, size=(4, 1, 70)) * 2
    times[0, 0, :7] = [1e-300, 1e300, 0.4, 1.0, 2.5, 1e-5, 400.0]
    sums = np.ones((3, *times.shape))
    problem.compiled(instruction_set).add_distribution(problem.positions, np.empty((DRAWS, 0)), times, sums)
    for number, values in enumerate(times):
        expected = problem.model.distribution(problem.outputs, problem.sigmas, values.T)
        tolerance = {"rtol": problem.tolerance, "atol": problem.tolerance}
        np.testing.assert_allclose(np.swapaxes(sums[:, number], 1, 2) - 1, expected, **tolerance)


@pytest.mark.parametrize("model", TIMES)
def test_hazards_without_end_or_beginning_have_finite_sums(model: str) -> None:
    problem = Problem(model)
    problem.positions[:75] = 1e4
    problem.positions[75:] = -1e4
    shape, compiled = (1, 37), problem.compiled(SETS[0])
    times = np.ones((1, *shape))
    sums, moments = np.zeros((3, *times.shape)), (np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape))
    compiled.add_distribution(problem.positions, np.empty((DRAWS, 0)), times, sums)
    compiled.add_moments(problem.positions, np.zeros(DRAWS), np.zeros(shape), moments)
    assert np.isfinite(sums).all() and all(np.isfinite(part).all() for part in moments)


@pytest.mark.parametrize("model", ["binary", "class", "count", *TIMES])
def test_outputs_that_are_not_finite_are_seen(model: str) -> None:
    problem = Problem(model, dtype="float32")
    problem.positions[7] = 1e30
    shape = (1 if model in TIMES else problem.compiled(SETS[0]).n_outputs, 37)
    sums = np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape)
    problem.compiled(SETS[0]).add_moments(problem.positions, np.zeros(DRAWS), np.zeros(shape), sums)
    assert np.isnan(sums[2]).any()


def test_arrays_of_other_shapes_and_types_are_refused() -> None:
    problem = Problem("gaussian", dtype="float32")
    compiled = problem.compiled(SETS[0])
    shape = (2, 37)
    sums = np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape)
    with pytest.raises(TypeError, match="positions: must be of dtype float32"):
        compiled.outputs(problem.positions.astype(np.float64))
    with pytest.raises(ValueError, match="positions: must be C-contiguous"):
        compiled.outputs(np.asfortranarray(problem.positions))
    with pytest.raises(ValueError, match="pieces: must be numbers of sums"):
        compiled.add_moments(problem.positions, np.ones(DRAWS), np.zeros(shape), sums)
    with pytest.raises(ValueError, match="shift: must have the shape"):
        compiled.add_moments(problem.positions, np.zeros(DRAWS), np.zeros((2, 36)), sums)
    with pytest.raises(ValueError, match="sums: must have the shape"):
        compiled.add_distribution(
            problem.positions, problem.sigmas, np.zeros((5, *shape)), np.zeros((3, 4, *shape))
        )


@needs_gxx
@pytest.mark.parametrize("model", ["gaussian", "class"])
def test_segments_of_draws_are_added_in_their_order(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which threads run changes no bit, and more segments only the rounding."""
    problem = Problem(model, n_cases=150)  # two blocks of threads
    shape = (problem.outputs.shape[1], 150)

    def moments(order: int) -> tuple[Array, ...]:
        found = on_device.reducer(problem.posterior, problem.inputs, build=ShimBuild(order), xp=np)
        assert isinstance(found, DeviceReducer)
        sums = np.zeros((2, *shape)), np.zeros(shape), np.zeros(shape)
        found.add_moments(problem.positions, np.arange(DRAWS) // 40 % 2, np.zeros(shape), sums)
        maxima, scaled = np.full(150, -np.inf), np.zeros(150)
        found.add_scores(problem.positions, problem.noise, problem.targets, maxima, scaled)
        return (*sums, maxima + np.log(scaled))

    whole = moments(0)
    monkeypatch.setattr(on_device, "_LEAST_DRAWS", 7)
    for one, other, first in zip(moments(0), moments(2), whole, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, first, rtol=1e-12, atol=1e-12)


@needs_gxx
def test_a_device_refuses_other_arrays_and_large_networks() -> None:
    problem = Problem("gaussian", dtype="float32")
    found = problem.compiled("shim")
    shape = (2, 37)
    sums = np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape)
    with pytest.raises(TypeError, match="positions: must be float32"):
        found.outputs(problem.positions.astype(np.float64))
    with pytest.raises(ValueError, match="positions: must be C-contiguous"):
        found.outputs(np.asfortranarray(problem.positions))
    with pytest.raises(ValueError, match="pieces: must be numbers of sums"):
        found.add_moments(problem.positions, np.ones(DRAWS), np.zeros(shape), sums)
    with pytest.raises(ValueError, match="shift: must have the shape"):
        found.add_moments(problem.positions, np.zeros(DRAWS), np.zeros((2, 36)), sums)
    with pytest.raises(ValueError, match="sums: must have the shape"):
        found.add_distribution(
            problem.positions, problem.sigmas, np.zeros((5, *shape)), np.zeros((3, 4, *shape))
        )
    large = NetworkSpec(INPUTS, 2, (LayerSpec(2000, "tanh"),))
    large = NetworkSpec(INPUTS, 2, large.hidden, dict.fromkeys(large.possible_groups(), PriorSpec(1.0)))
    posterior = Posterior.from_spec(large, MODELS["gaussian"][0], problem.inputs, problem.targets)
    assert isinstance(on_device.reducer(posterior, problem.inputs, xp=np), NotCovered)
