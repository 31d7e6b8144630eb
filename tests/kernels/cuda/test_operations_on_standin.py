"""Every operation on a device, by the stand-in for CuPy: the host's draws, and what the host waits for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array, to_host
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda import advance as cuda
from rayfbnn.kernels.cuda import cublas, launch_plan
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import (
    Dynamic,
    Heatbath,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Metropolis,
    Metropolis1,
    Negate,
    RadialHeatbath,
    RandomGrid,
    Rescale,
    SampleNoise,
    SampleSigmas,
    Sghmc,
    SimulatedTempering,
    Slice1,
    TemperedTransition,
)
from rayfbnn.model.regression import _half_inverse
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Streams
from tests.support.model.marginals import BOTH, COMMON, OUTPUTS, PRECISIONS
from tests.support.problems import covariates_of, network, problem
from tests.support.shim.compiled import needs_gxx
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed

pytestmark = needs_gxx
N_CHAINS = 6
WITHOUT_OFFSETS = {name: prior for name, prior in COMMON.items() if name != "ti"}
HMC = (Heatbath(), Hybrid(steps=2, stepsize=0.2))
# The host decides how these continue, so that their reads in an iteration depend on their loops.
ASKING = {
    "hybrid-max": (Heatbath(), HybridMax(max_steps=6, max_ok=2, stepsize=0.3, partitions=2)),
    "slice": (Slice1(stepsize=1.0, random=True), Slice1(stepsize=1.0, random=True, doubling=True)),
    "simulated tempering": (SimulatedTempering((1.0, 0.9), (0.0, -2.0), HMC),),
    "persistent tempering": (SimulatedTempering((1.0, 0.9, 0.8), (0.0, -5.0, -10.0), HMC, "persistent"),),
}
# Each reads once whether its start is finite.
CHECKED = {
    "dynamic": (Heatbath(), Dynamic(steps=4, stepsize=0.1, partitions=3, permuted=True)),
    "metropolis": (Metropolis(stepsize=0.1),),
    "metropolis-1": (Metropolis1(stepsize=0.1, random=True),),
    "barker": (Metropolis(stepsize=0.1, acceptance="barker"),),
    "tempered transition": (TemperedTransition((1.0, 0.8, 0.5), (SampleSigmas(), *HMC)),),
}
SILENT = {
    "Gibbs and hybrid": (SampleSigmas(), Heatbath(), Hybrid(steps=5, stepsize=0.3)),
    "windows": (
        SampleNoise(),
        Heatbath(decay=0.5),
        Hybrid(steps=6, window=3, partitions=4, stepsize=0.3, stepsize_jitter=-0.2, jump=2),
        Negate(),
    ),
    "radial heatbath": (RadialHeatbath(), Hybrid(steps=3, stepsize=0.3)),
    "sghmc": (Sghmc(steps=4, stepsize=0.1, batch=3, noise="estimate"),),
    "two stages": (Heatbath(), Hybrid(steps=3, stepsize=0.3, integrator="two-stage")),
    "fourth order": (Heatbath(), Hybrid(steps=3, stepsize=0.3, integrator="fourth-order")),
    "levels": (SampleSigmas(level="upper"), SampleSigmas(groups=("ih0",))),
    "random-grid": (RandomGrid(),),
    "rescale sigmas": (Rescale("sigmas"),),
    "rescale incoming": (Rescale("incoming"),),
}
_JITTER = -0.2
INTEGRATED = {
    "outputs": HybridMarginal(OUTPUTS, steps=4, stepsize=0.3),
    "precisions": HybridMarginal(PRECISIONS, steps=4, stepsize=0.3),
    "both": HybridMarginal(BOTH, steps=4, stepsize=0.3, window=2, stepsize_jitter=_JITTER),
}


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


@dataclass(frozen=True)
class Ends:
    """Results of two iterations on the host and on the device, and the record of the second."""

    host: list[Array]
    device: list[Array]
    log: list[log.Entry]

    def differ_by(self) -> float:
        """Largest difference, relative to numbers above one, or infinity if acceptance differs."""
        assert np.array_equal(self.host[-1], self.device[-1], equal_nan=True)
        pairs = zip(self.host, self.device, strict=True)
        assert all(
            a.dtype == b.dtype and a.shape == b.shape for a, b in zip(self.host, self.device, strict=True)
        )
        return max(
            float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 1))) for a, b in pairs if np.isfinite(a).all()
        )


def both(cupy: Any, operations: tuple[Operation, ...], host: SampledPosterior) -> Ends:
    """Run array code with NumPy, and the code chosen for a device, with the streams' kernels."""
    values = host.targets.T
    if host.model.kind == "class":
        values = values.argmax(axis=1)[:, None].astype(float)
    there = SampledPosterior.from_spec(
        host.network, host.model, covariates_of(host), values, dtype=host.dtype, xp=cupy
    )
    chains = np.arange(N_CHAINS, dtype=np.uint64)
    found: list[list[Array]] = []
    cases: list[tuple[SampledPosterior, Streams, Any]] = [
        (host, Streams(1, chains), {}),
        (there, DeviceStreams(1, cupy.asarray(chains)), {"advance": choose.advance_for(there)[0]}),
    ]
    for target, random, options in cases:
        state = target.initial_state(random, sigmas=0.5)
        iteration = schedule.build_iteration(operations, target=target, updates=target.updates, **options)
        state, _ = iteration(state, random.at(iteration=1))
        with log.recorded() as entries:
            state, info = iteration(state, random.at(iteration=2))
        arrays = (state.position, state.momentum, state.precisions, info.diverged, info.accepted)
        found.append([to_host(each) for each in arrays])
    return Ends(*found, entries)


TOLERANCE = {"float64": 1e-11, "float32": 1e-4}
TF32 = 5e-3  # which has 10 bits of each factor, 1e-3; the differences are up to 6e-4


@pytest.mark.parametrize("name", SILENT)
def test_an_iteration_is_the_hosts_and_waits_for_nothing(cupy: Any, name: str) -> None:
    ends = both(cupy, SILENT[name], problem("gaussian by target", n_cases=20))
    assert ends.differ_by() < TOLERANCE["float64"]
    assert log.host_reads(ends.log) == []


@pytest.mark.parametrize("is_on_chip", [True, False])
@pytest.mark.parametrize("name", INTEGRATED)
def test_what_is_integrated_out_waits_for_nothing(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, name: str, is_on_chip: bool
) -> None:
    if not is_on_chip:
        monkeypatch.setattr(cuda, "shared_memory_of_device", lambda: 0)
    operations = (SampleSigmas(), Heatbath(), INTEGRATED[name])
    spec = network(COMMON if is_on_chip else WITHOUT_OFFSETS)
    ends = both(cupy, operations, problem("gaussian", spec=spec, n_cases=20))
    assert ends.differ_by() < TOLERANCE["float64"]
    assert log.host_reads(ends.log) == []
    assert any(entry.what == "add_prior" for entry in ends.log) == (not is_on_chip)


def test_binary_targets_made_gaussian_wait_for_nothing(cupy: Any) -> None:
    """The Polya-Gamma variables of the default schedule are drawn in one launch."""
    host = problem("binary", spec=network(COMMON, outputs=1), n_cases=20)
    ends = both(cupy, (SampleSigmas(), Heatbath(), INTEGRATED["both"]), host)
    assert ends.differ_by() < TOLERANCE["float64"]
    assert log.host_reads(ends.log) == []
    assert any(entry.what == "polya_gammas" for entry in ends.log)


@pytest.mark.parametrize("name", CHECKED)
def test_these_look_once_whether_their_start_is_finite(cupy: Any, name: str) -> None:
    ends = both(cupy, CHECKED[name], problem("gaussian", n_cases=20))
    assert ends.differ_by() < TOLERANCE["float64"]
    (read,) = log.host_reads(ends.log)
    assert read.startswith("mcmc/energy.py")


def test_what_moves_is_measured_without_waiting_but_for_the_first_time(cupy: Any) -> None:
    host = problem("gaussian", n_cases=20)
    values = host.targets.T.copy()
    values[3, 1] = np.nan
    there = SampledPosterior.from_spec(host.network, host.model, covariates_of(host), values, xp=cupy)
    state = there.initial_state(DeviceStreams(1, cupy.arange(N_CHAINS, dtype=cupy.uint64)), sigmas=0.5)
    reads = []
    for _ in range(2):
        with log.recorded() as entries:
            there.quantities(state.position, state.precisions)
        reads.append(len(log.host_reads(entries)))
    assert reads[0] > 0 == reads[1]


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kernel", ["block", "products"])
def test_kernels_of_larger_networks_wait_for_nothing(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, kernel: str, partitions: int
) -> None:
    monkeypatch.setattr(launch_plan, "_MAX_WARP_WORDS", 0)
    if kernel == "products":
        monkeypatch.setattr(cuda, "shared_memory_of_device", lambda: 0)
    operations = (SampleSigmas(), Heatbath(), Hybrid(steps=5, stepsize=0.3, partitions=partitions))
    host = problem("gaussian", spec=network(), n_cases=20)
    ends = both(cupy, operations, host)
    assert ends.differ_by() < TOLERANCE["float64"]
    assert any(entry.what == ("add_prior" if kernel == "products" else "hybrid") for entry in ends.log)
    assert log.host_reads(ends.log) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ASKING)
def test_these_ask_how_to_go_on(cupy: Any, name: str) -> None:
    ends = both(cupy, ASKING[name], problem("gaussian", n_cases=20))
    assert ends.differ_by() < TOLERANCE["float64"]
    assert log.host_reads(ends.log)


@pytest.mark.long
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("model", ["gaussian", "t by target", "binary", "class"])
@pytest.mark.parametrize("name", SILENT)
def test_all_models(cupy: Any, name: str, model: str, dtype: str) -> None:
    ends = both(cupy, SILENT[name], problem(model, n_cases=20, dtype=dtype))
    assert ends.differ_by() < TOLERANCE[dtype]
    assert log.host_reads(ends.log) == []


@pytest.mark.long
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("model", ["gaussian", "gaussian by target", "t by target", "binary"])
@pytest.mark.parametrize("n_cases", [20, 5], ids=["primal", "dual"])
@pytest.mark.parametrize("name", INTEGRATED)
@pytest.mark.parametrize("kernel", ["on the chip", "products", "array code"])
def test_all_that_is_integrated_out(
    cupy: Any,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    name: str,
    n_cases: int,
    model: str,
    dtype: str,
) -> None:
    if kernel == "array code":
        monkeypatch.setenv(choose.VARIABLE, "plain")
    priors = COMMON
    if kernel == "products":
        monkeypatch.setattr(cuda, "shared_memory_of_device", lambda: 0)
        priors = WITHOUT_OFFSETS
    spec = network(priors, outputs=1 if model == "binary" else 2)
    host = problem(model, spec=spec, n_cases=n_cases, dtype=dtype)
    operations = (SampleSigmas(), Heatbath(), replace(INTEGRATED[name], stepsize=0.1))
    ends = both(cupy, operations, host)
    if (kernel, name, dtype) == ("products", "precisions", "float32"):
        # The products of the gradients are in TF32. Nothing else may add to the difference.
        assert ends.differ_by() < TF32
        monkeypatch.setattr(cublas, "_COMPUTE_32F_FAST_TF32", cublas._COMPUTE_32F)
        ends = both(cupy, operations, host)
    assert ends.differ_by() < TOLERANCE[dtype]
    assert log.host_reads(ends.log) == []
    assert any(entry.what == "add_prior" for entry in ends.log) == (kernel == "products")


def test_a_matrix_without_a_factor_is_no_number_on_a_device_too() -> None:
    """The device reports no error and leaves a half-done factor, whose diagonal may be positive."""
    good, bad = np.diag([4.0, 9.0, 1.0]), np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    matrices = np.stack([good, bad])[None]
    with installed() as cupy:
        halves, log_determinants = (to_host(each) for each in _half_inverse(cupy.asarray(matrices)))
    assert np.allclose(halves[0, 0], np.diag([1 / 2, 1 / 3, 1]))
    assert np.isclose(log_determinants[0, 0], math.log(36)) and np.isnan(log_determinants[0, 1])
    assert np.isnan(halves[0, 1]).any()
    with pytest.MonkeyPatch.context() as patch, installed() as cupy:
        patch.setattr(cupy.linalg, "cholesky", lambda a: cupy.asarray(np.abs(np.tril(to_host(a)))))
        assert np.isnan(to_host(_half_inverse(cupy.asarray(matrices))[1][0, 1]))
