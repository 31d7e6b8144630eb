"""Sums over draws in compiled code, compared with NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.kernels.cuda import reducing as on_device
from rayfbnn.kernels.cuda.reducing import DeviceReducer
from rayfbnn.model.architecture import LayerSpec, NetworkSpec, PriorSpec
from rayfbnn.model.posterior import Posterior
from tests.support.kernels.reductions import (
    BACKENDS,
    COUNTS,
    DRAWS,
    INPUTS,
    MODELS,
    REAL,
    SETS,
    TIMES,
    Problem,
)
from tests.support.shim.compiled import ShimBuild, needs_gxx

pytestmark = pytest.mark.skipif(not SETS, reason="needs the compiled extension")


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
    problem = Problem(model, dtype=dtype)
    pieces = np.repeat([0, 1, 3], [20, 80, 50])
    mean = problem.model.target_moments(problem.outputs, problem.sigmas.T[None])[0]  # (cases, values, draws)
    shift = problem.rng.normal(size=mean.shape[1::-1])
    sums, squares, variances = np.ones((4, *shift.shape)), np.ones(shift.shape), np.ones(shift.shape)
    compiled = problem.compiled(backend)
    for part in (slice(0, 90), slice(90, DRAWS)):
        compiled.add_moments(
            problem.positions[part], problem.sigmas[part], pieces[part], shift, (sums, squares, variances)
        )
    excess = np.moveaxis(mean, 2, 0).swapaxes(1, 2) - shift
    expected = np.stack([excess[pieces == piece].sum(axis=0) for piece in range(4)])
    tolerance = {"rtol": problem.tolerance, "atol": problem.tolerance}
    np.testing.assert_allclose(sums, 1 + expected, **tolerance)
    np.testing.assert_allclose(squares, 1 + np.square(excess).sum(axis=0), **tolerance)
    of_noise = np.zeros(shift.shape)
    if model in ("heteroscedastic", "dispersed count", *TIMES):
        of_noise = problem.model.target_moments(problem.outputs, problem.sigmas.T[None])[1].sum(axis=2).T
    if model == "dispersed count":  # the mean is left to the caller
        of_noise -= mean.sum(axis=2).T
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", COUNTS)
def test_counts(model: str, dtype: str, backend: str) -> None:
    """Small counts, which are summed one by one, and large ones by an expansion, side by side."""
    problem = Problem(model, dtype=dtype, n_cases=70)
    problem.positions *= 8  # rates from 1e-6 to 1e6
    counts = np.floor(np.exp(problem.rng.uniform(0, 14, size=(5, 2, 70)))) - 1
    counts[0, 0, :6] = [0, 1, 15, 16, 1e15, 4e300]
    counts[:, 1, 20:50] = np.floor(problem.rng.uniform(0, 15, size=(5, 30)))
    compiled = problem.compiled(backend)
    sums, mass = np.ones((3, *counts.shape)), np.ones(counts.shape)
    compiled.add_distribution(problem.positions, problem.sigmas, counts, sums)
    compiled.add_mass(problem.positions, problem.sigmas, counts, mass)
    exact = 1e-8 if dtype == "float64" else 2e-3  # rounding of outputs near 14
    for number, values in enumerate(counts):
        expected = problem.model.distribution(problem.outputs, problem.sigmas.T[None], values.T)
        np.testing.assert_allclose(sums[0, number].T - 1, expected[0], atol=exact)
        np.testing.assert_allclose(sums[1, number].T - 1, expected[1], atol=exact)
    np.testing.assert_allclose(mass, sums[1], atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("log_rate", [-800.0, -20.0, 0.0, 2.5, 3.0, 10.0, 14.0, 690.0, 900.0])
def test_probabilities_of_one_count(log_rate: float, backend: str) -> None:
    """A network without hidden units and with a bias alone, so that its rate is known to the last bit."""
    problem = Problem("count", kind="linear", n_cases=70)
    problem.positions[...] = 0
    problem.positions[:, -2:] = log_rate
    rate = math.exp(min(log_rate, 690.0))
    spread = np.linspace(-9, 9, 70)
    counts = np.stack([np.arange(70.0), np.maximum(np.floor(rate + spread * math.sqrt(rate)), 0)])
    sums = np.zeros((3, 1, *counts.shape))
    problem.compiled(backend).add_distribution(problem.positions, np.empty((DRAWS, 0)), counts[None], sums)
    v = np.full((70, 2, DRAWS), log_rate)
    expected = problem.model.distribution(v, problem.sigmas, counts.T)
    np.testing.assert_allclose(sums[0, 0].T, expected[0], atol=DRAWS * 1e-9)
    np.testing.assert_allclose(sums[1, 0].T, expected[1], rtol=1e-9, atol=DRAWS * 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [1e-12, 0.9, 7.9, 60.0, 199.0, 201.0, 1e12])
def test_probabilities_of_one_dispersed_count(shape: float, backend: str) -> None:
    """Every way of computing them: sums one by one, the continued fraction, and nearly normal counts."""
    problem = Problem("dispersed count", kind="linear", n_cases=70)
    problem.positions[...] = 0
    sigmas = np.full((DRAWS, 2), shape**-0.5)
    compiled, spread = problem.compiled(backend), np.linspace(-9, 9, 70)
    for log_mean in (-800.0, 0.0, 3.0, 4.5, 5.5, 9.0, 20.0):
        problem.positions[:, -2:] = log_mean
        mean = math.exp(log_mean)
        far = mean + spread * math.sqrt(mean) * math.sqrt(1 + mean / shape)
        counts = np.stack([np.arange(0.0, 280.0, 4), np.floor(np.maximum(far, 0))])
        sums, mass = np.zeros((3, 1, *counts.shape)), np.zeros((1, *counts.shape))
        compiled.add_distribution(problem.positions, sigmas, counts[None], sums)
        compiled.add_mass(problem.positions, sigmas, counts[None], mass)
        v = np.full((70, 2, DRAWS), log_mean)
        expected = problem.model.distribution(v, sigmas.T[None], counts.T)
        np.testing.assert_allclose(sums[0, 0].T, expected[0], atol=DRAWS * 2e-9)
        np.testing.assert_allclose(sums[1, 0].T, expected[1], rtol=1e-8, atol=DRAWS * 1e-12)
        np.testing.assert_allclose(mass[0], sums[1, 0], rtol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [1e-12, 30.0, 1e12])
def test_distributions_of_dispersed_counts_have_no_gaps(shape: float, backend: str) -> None:
    """From one way of computing them to the next, and to counts for which array code has no numbers."""
    problem = Problem("dispersed count", kind="linear", n_cases=70)
    problem.positions[...] = 0
    problem.positions[:, -2:] = [[4.5, 650.0]]
    sigmas, counts = np.full((DRAWS, 2), shape**-0.5), np.zeros((8, 2, 70))
    counts[:, 0] = np.arange(560).reshape(8, 70)
    counts[:, 1] = np.floor(np.logspace(0, 295, 560)).reshape(8, 70)
    sums = np.zeros((3, *counts.shape))
    problem.compiled(backend).add_distribution(problem.positions, sigmas, counts, sums)
    cdf, mass = sums[:2].swapaxes(1, 2).reshape(2, 2, 560) / DRAWS
    assert (mass >= 0).all() and (cdf > -1e-9).all() and (cdf < 1 + 1e-9).all()
    np.testing.assert_allclose(np.diff(cdf[0]), mass[0, 1:], atol=1e-9)
    assert (np.diff(cdf[1]) > -1e-9).all() and cdf[1, -1] > 0.99


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", TIMES)
def test_times(model: str, dtype: str, backend: str) -> None:
    problem = Problem(model, dtype=dtype, n_cases=70)
    times = problem.rng.gamma(1.0, size=(4, 1, 70)) * 2
    times[0, 0, :7] = [1e-300, 1e300, 0.4, 1.0, 2.5, 1e-5, 400.0]
    sums = np.ones((3, *times.shape))
    problem.compiled(backend).add_distribution(problem.positions, np.empty((DRAWS, 0)), times, sums)
    for number, values in enumerate(times):
        expected = problem.model.distribution(problem.outputs, problem.sigmas, values.T)
        tolerance = {"rtol": problem.tolerance, "atol": problem.tolerance}
        np.testing.assert_allclose(np.swapaxes(sums[:, number], 1, 2) - 1, expected, **tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", TIMES)
def test_hazards_without_end_or_beginning_have_finite_sums(model: str, backend: str) -> None:
    problem = Problem(model)
    problem.positions[:75] = 1e4
    problem.positions[75:] = -1e4
    shape, compiled = (1, 37), problem.compiled(backend)
    times = np.ones((1, *shape))
    sums, moments = np.zeros((3, *times.shape)), (np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape))
    compiled.add_distribution(problem.positions, np.empty((DRAWS, 0)), times, sums)
    compiled.add_moments(problem.positions, problem.sigmas, np.zeros(DRAWS), np.zeros(shape), moments)
    assert np.isfinite(sums).all() and all(np.isfinite(part).all() for part in moments)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", ["binary", "class", *COUNTS, *TIMES])
def test_outputs_that_are_not_finite_are_seen(model: str, backend: str) -> None:
    problem = Problem(model, dtype="float32")
    problem.positions[7] = 1e30
    shape = (1 if model in TIMES else problem.posterior.network.outputs, 37)
    sums = np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape)
    problem.compiled(backend).add_moments(
        problem.positions, problem.sigmas, np.zeros(DRAWS), np.zeros(shape), sums
    )
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
        compiled.add_moments(problem.positions, problem.sigmas, np.ones(DRAWS), np.zeros(shape), sums)
    with pytest.raises(ValueError, match="shift: must have the shape"):
        compiled.add_moments(problem.positions, problem.sigmas, np.zeros(DRAWS), np.zeros((2, 36)), sums)
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
        found.add_moments(
            problem.positions, problem.sigmas, np.arange(DRAWS) // 40 % 2, np.zeros(shape), sums
        )
        maxima, scaled = np.full(150, -np.inf), np.zeros(150)
        found.add_scores(problem.positions, problem.noise, problem.targets, maxima, scaled)
        return (*sums, maxima + np.log(scaled))

    whole = moments(0)
    monkeypatch.setattr(on_device, "_LEAST_DRAWS", 7)
    for one, other, first in zip(moments(0), moments(2), whole, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, first, rtol=1e-12, atol=1e-12)


@needs_gxx
def test_a_device_refuses_other_arrays() -> None:
    problem = Problem("gaussian", dtype="float32")
    found = problem.compiled("shim")
    shape = (2, 37)
    sums = np.zeros((1, *shape)), np.zeros(shape), np.zeros(shape)
    with pytest.raises(TypeError, match="positions: must be float32"):
        found.outputs(problem.positions.astype(np.float64))
    with pytest.raises(ValueError, match="positions: must be C-contiguous"):
        found.outputs(np.asfortranarray(problem.positions))
    with pytest.raises(ValueError, match="pieces: must be numbers of sums"):
        found.add_moments(problem.positions, problem.sigmas, np.ones(DRAWS), np.zeros(shape), sums)
    with pytest.raises(ValueError, match="shift: must have the shape"):
        found.add_moments(problem.positions, problem.sigmas, np.zeros(DRAWS), np.zeros((2, 36)), sums)
    with pytest.raises(ValueError, match="sums: must have the shape"):
        found.add_distribution(
            problem.positions, problem.sigmas, np.zeros((5, *shape)), np.zeros((3, 4, *shape))
        )


@needs_gxx
@pytest.mark.parametrize("model", ["gaussian", "piecewise"])
def test_sums_of_products_depend_on_tiles_in_rounding_alone(model: str) -> None:
    problem = Problem(model)
    guesses = np.abs(problem.rng.normal(size=(7, problem.n_targets, 37)))

    def sums(tile_bytes: int) -> Array:
        found = on_device.reducer(
            problem.posterior, problem.inputs, build=ShimBuild(), xp=np, most_fused=0, tile_bytes=tile_bytes
        )
        assert isinstance(found, DeviceReducer)
        total = np.zeros((3, *guesses.shape))
        found.add_distribution(problem.positions, problem.sigmas, guesses, total)
        return total

    of_parts = sums(1000)  # one draw, at some cases at a time
    np.testing.assert_array_equal(of_parts, sums(1000))
    np.testing.assert_allclose(of_parts, sums(2**30), rtol=1e-11, atol=1e-11)


@needs_gxx
def test_large_networks_are_evaluated_by_products() -> None:
    small, prior = Problem("gaussian"), PriorSpec(0.1)
    large = NetworkSpec(INPUTS, 2, (LayerSpec(700, "tanh"),))
    large = NetworkSpec(INPUTS, 2, large.hidden, dict.fromkeys(large.possible_groups(), prior))
    posterior = Posterior.from_spec(large, MODELS["gaussian"][0], small.inputs, small.targets)
    found = on_device.reducer(posterior, small.inputs, build=ShimBuild(), xp=np)
    assert isinstance(found, DeviceReducer)
    positions = small.rng.normal(size=(3, posterior.n_parameters)) / 20
    expected = posterior.outputs(positions, small.inputs).swapaxes(1, 2)
    np.testing.assert_allclose(found.outputs(positions), expected, atol=1e-11)
