"""Exact draws of parameters and data stay exact under the sampler, but not if it has a bug."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from rayfbnn.arrays import Array, gpu_is_available
from rayfbnn.mcmc import energy, heatbath
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.model import prior, sampled
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams
from tests.support.joint import (
    FEW,
    ITERATION,
    N_CHAINS,
    PROBLEMS,
    exact_start,
    stays_exact,
)
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams


@pytest.mark.parametrize("name", PROBLEMS)
def test_joint_distribution_stays(name: str) -> None:
    assert stays_exact(PROBLEMS[name], f"{name}, few chains", n_chains=FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", PROBLEMS)
def test_joint_distribution_stays_with_many_chains(name: str) -> None:
    assert stays_exact(PROBLEMS[name], name)


def test_joint_distribution_stays_in_float32() -> None:
    assert stays_exact(PROBLEMS["real"], "real in float32, few chains", n_chains=FEW, dtype="float32")


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_is_available(), reason="needs CuPy and a GPU")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_joint_distribution_stays_on_the_gpu(name: str, dtype: Literal["float32", "float64"]) -> None:
    import cupy

    assert stays_exact(PROBLEMS[name], f"{name} on the gpu", n_chains=10 * N_CHAINS, xp=cupy, dtype=dtype)


def test_float32_decides_on_the_energy_changes_of_float64() -> None:
    """Energy changes agree within 1e-3 along benign trajectories.

    Decisions turn on differences of order one.
    """
    streams = chain_streams(3, 500)
    state, data = exact_start(PROBLEMS["real"].posterior(), streams)
    changes = []
    for dtype in ("float32", "float64"):
        target = PROBLEMS["real"].posterior(dtype=dtype).with_targets(data)
        start = ChainState(state.position.astype(dtype), state.momentum.astype(dtype), state.precisions)
        _, info = hmc.hybrid(start, streams, target=target, steps=10, stepsize=0.3)
        changes.append(info.energy_change)
    size = np.maximum(1, abs(target.potential(state.position, state.precisions)))
    assert (abs(changes[0] - changes[1]) < 1e-3 * size).all()


HMC_MUTANTS: dict[str, tuple[str, str]] = {
    "no_negate": ("-accept.momentum", "accept.momentum"),
    "decay_wrong": ("math.sqrt(1 - decay**2)", "math.sqrt(1 - decay)"),
    "win_first_state": ("score = log_weight + gumbel", "score = xp.where(is_member, 0.0, -xp.inf)"),
}


def test_a_degree_of_freedom_less_of_the_common_noise_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "sums.counts, alpha, mean), use)"
    new = "sums.counts - (use.purpose == Purpose.NOISE_COMMON), alpha, mean), use)"
    monkeypatch.setattr(sampled, "gibbs", mutant(gibbs, (old, new)))
    assert not stays_exact(PROBLEMS["real"], "noise_df", n_chains=FEW)


@pytest.mark.parametrize("name", HMC_MUTANTS)
def test_mutant_of_hybrid_is_killed(name: str) -> None:
    changed = schedule_with(mutant(heatbath if name == "decay_wrong" else hmc, HMC_MUTANTS[name]))
    # With the operation `negate` a missing reversal on acceptance is nearly undone by the next trajectory.
    operations = ITERATION[:-1] if name == "no_negate" else ITERATION
    problem = replace(PROBLEMS["real"], operations=operations)
    assert not stays_exact(problem, name, n_chains=FEW, schedule=changed)


def test_accepting_on_an_approximate_energy_is_killed() -> None:
    approximate = mutant(hmc)
    wrong = mutant(energy, ("potential + kinetic)", "0.9 * potential + kinetic)"))
    approximate.__dict__.update(total_energy=wrong.total_energy)
    schedule = schedule_with(approximate)
    assert not stays_exact(PROBLEMS["real"], "approx_energy", n_chains=FEW, schedule=schedule)


class IgnoresData:
    """The prior offered as the posterior, which is right except that it ignores the data."""

    def __init__(self, target: SampledPosterior) -> None:
        self.target = target
        self.n_parameters = target.n_parameters
        self.stepsizes = target.stepsizes

    def potential_and_gradient(self, position: Array, precisions: Array, **_: Any) -> tuple[Array, Array]:
        return prior.energy_of_parameters(
            position, self.target.governing(precisions).parameters, self.target.parameter_layout
        )

    def potential(self, position: Array, precisions: Array) -> Array:
        return self.potential_and_gradient(position, precisions)[0]

    def sample_sigmas(self, state: ChainState, streams: Streams) -> tuple[ChainState, None]:
        values = self.target.parameter_layout.views(state.position)
        layout = self.target.precision_layout
        return replace(
            state, precisions=gibbs.update_groups(values, state.precisions, streams, layout=layout)
        ), None

    def sample_noise(self, state: ChainState, streams: Streams) -> tuple[ChainState, None]:
        return state, None


@pytest.mark.parametrize("name", ["real", "binary"])
def test_ignoring_the_data_is_killed(name: str) -> None:
    assert not stays_exact(PROBLEMS[name], "ignore_data", n_chains=FEW, prepare=IgnoresData)


@pytest.mark.parametrize("name", ["real", "binary"])
def test_data_of_another_chain_are_killed(name: str) -> None:
    def shifted(target: SampledPosterior) -> SampledPosterior:
        return replace(target, targets=np.roll(target.targets, 1, axis=0))

    assert not stays_exact(PROBLEMS[name], "other data", n_chains=FEW, prepare=shifted)
