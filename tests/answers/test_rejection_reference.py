"""Markov chains and exact draws by rejection agree on small problems, unless the chains' model is wrong.

Rejection needs no gradient, trajectory or Gibbs update: the two have little in common to be wrong in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.answers.check import CheckResult, check_draws
from rayfbnn.arrays import Array
from rayfbnn.data import Dataset, make_dataset
from rayfbnn.draws.view import committed
from rayfbnn.kernels import choose
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Repeat, SampleSigmas
from rayfbnn.mcmc.rejection import rejection_draws
from rayfbnn.mcmc.schedule import build_iteration, run
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.shared_posterior import RingAdvance
from rayfbnn.run.in_parts import divided
from rayfbnn.run.independent_draws import exact_blocks
from rayfbnn.spec import RunSpec
from rayfbnn.state import Advance
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store
from tests.support.problems import chain_streams

N_EXACT, N_CHAINS, N_WARMUP, N_DRAWS = 4000, 64, 8, 50
# Stepsizes over a decade: with 0.6 throughout, a chain that started in a tail of the prior, where hazards (or
# noise precisions) are e**v with v large, was rejected for good, and effective draws fell to 200.
TRAJECTORY, N_REPEATS = Hybrid(steps=12, window=2, stepsize=0.5, stepsize_jitter=-0.8), 8
FALSE_ALARM_RATE = 1e-5  # seeds are fixed: a test that passes goes on passing until the code changes
INPUTS = np.array([[-1.2, 0.3], [-0.4, -0.9], [0.1, 0.8], [0.7, -0.2], [1.3, 0.6]])
REAL = np.array([[0.6], [0.2], [-0.1], [-0.7], [-0.5]])
LABELS = np.array([[0.0], [0.0], [1.0], [1.0], [1.0]])
TIMES = np.array([[0.3], [0.9], [-1.5], [0.5], [-0.2]])  # two censored

MODELS: dict[str, tuple[dict[str, Any], Array]] = {
    "variable noise": ({"kind": "real", "noise": "0.5:4"}, REAL),
    "fixed noise": ({"kind": "real", "noise": "0.5"}, REAL),
    "t noise": ({"kind": "real", "noise": "0.5:4::5"}, REAL),
    "noise of each target": ({"kind": "real", "noise": "1:4:3"}, np.hstack([REAL, 0.5 * REAL])[:3]),
    "binary": ({"kind": "binary"}, LABELS),
    "class": ({"kind": "class", "classes": 3}, LABELS + (INPUTS[:, 1:] > 0.7)),
    "missing targets": (
        {"kind": "real", "noise": "1:4:3"},
        np.array([[0.6, 0.1], [0.2, np.nan], [np.nan, -0.3], [-0.7, 0.4], [np.nan, np.nan]]),
    ),
    "count": ({"kind": "count"}, np.array([[0.0], [1.0], [3.0], [2.0], [4.0]])),
    "constant hazard": ({"kind": "survival", "hazard": "constant"}, TIMES),
    "hazard of pieces": ({"kind": "survival", "hazard": "piecewise", "time_points": [0.4, 1.0]}, TIMES),
    "heteroscedastic": ({"kind": "heteroscedastic", "noise_floor": 0.3}, REAL[:4]),
    "mixture priors": ({"kind": "real", "noise": "0.5:4"}, REAL),
    "rectified priors": ({"kind": "real", "noise": "0.5:4"}, REAL),
}
PRIORS = {"ih0": "0.7:4:3", "bh0": "0.7:4", "ho0": "x1:4", "bo": "0.7"}
OTHER_PRIORS = {
    "mixture priors": {"ih0": "mixture(0.4, 1.5, 0.2)", "ho0": "mixture(0.5, 1, 0.1)"},
    "rectified priors": {"ih0": "rect(2)", "ho0": "rect(1)"},
}


def problem(name: str, **priors: str) -> tuple[RunSpec, Dataset]:
    model, targets = MODELS[name]
    priors = OTHER_PRIORS.get(name, {}) | priors
    names = ["y1", "y2"][: targets.shape[1]]
    raw = {
        "dtype": "float64",
        "chains": N_CHAINS,
        "chains_per_batch": N_CHAINS,
        "data": {"train": "train.csv", "inputs": ["x1", "x2"], "targets": names},
        "model": model,
        "network": {"hidden": [{"units": 3, "activation": "tanh"}], "priors": {**PRIORS, **priors}},
        "phase": [{"iterations": N_DRAWS, "operations": [{"op": "sample-sigmas"}]}],
    }
    data = make_dataset(INPUTS[: len(targets)], targets, input_names=["x1", "x2"], target_names=names)
    return RunSpec.from_dict(raw), data


def posterior_of(spec: RunSpec, data: Dataset) -> SampledPosterior:
    return SampledPosterior.from_spec(
        spec.network, spec.model, data.standardized_inputs, data.standardized_targets
    )


@lru_cache
def exact_draws(name: str) -> tuple[Array, Array]:
    """Positions (n_draws, n_parameters) and precisions (n_draws, n_precisions)."""
    rounds = rejection_draws(
        posterior_of(*problem(name)).rejection_proposal,
        seed=7,
        draws=N_EXACT,
        chains_per_round=2000,
        max_proposals=8_000_000,
        streams_class=choose.streams_class("cpu"),
    )
    positions, precisions = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    return positions, precisions


def exact_store(path: Path, name: str) -> Store:
    spec, data = problem(name)
    sizes = {"n_draws": N_EXACT, "chains": 1, "chains_per_batch": 1, "draws_per_block": N_EXACT}
    store = Store.create(path, spec=spec, data=data, kernel="plain NumPy", kind="exact", **sizes)
    with store.lock():
        for block in exact_blocks(posterior_of(spec, data), *exact_draws(name), N_EXACT, 0.0):
            store.commit(0, block)
    return store


def chain_store(
    path: Path, spec: RunSpec, data: Dataset, posterior: SampledPosterior, *, n_parts: int = 1
) -> Store:
    """Draws of chains on `posterior`, perhaps in parts, stored as draws for `spec` and `data`."""
    advance: Advance = leapfrog.advance
    operations: tuple[Operation, ...] = (SampleSigmas(), Heatbath(), TRAJECTORY)
    if n_parts > 1:  # of one or two cases each, by whose gradients alone chains move slowly
        posterior, advance = divided(posterior, n_parts)[0], RingAdvance()
        partial = replace(TRAJECTORY, partitions=n_parts, order="cyclic")
        operations = (*operations, Heatbath(), partial)
    updates = {"sample-sigmas": posterior.sample_sigmas, "sample-noise": posterior.sample_noise}
    iteration = build_iteration(
        (Repeat(N_REPEATS, operations),), target=posterior, updates=updates, advance=advance
    )
    streams = chain_streams(5, N_CHAINS)
    state = posterior.initial_state(streams, sigmas=None)
    draws = []
    states = run(state, streams, iteration=iteration, first=1, count=N_WARMUP + N_DRAWS)
    for number, state, _ in states:
        if number > N_WARMUP:
            draws.append((state.position, state.precisions))
    positions, precisions = (np.stack(parts, axis=1) for parts in zip(*draws, strict=True))
    right = posterior_of(spec, data)
    each = [(positions[:, draw], precisions[:, draw]) for draw in range(N_DRAWS)]
    stats = {
        "log_likelihood": np.stack([right.log_likelihood(*draw) for draw in each], axis=1),
        "log_prior": np.stack([right.log_prior(*draw) for draw in each], axis=1),
    }
    sizes = {"chains": N_CHAINS, "chains_per_batch": N_CHAINS, "draws_per_block": N_DRAWS}
    store = Store.create(path, spec=spec, data=data, kernel="plain NumPy", n_draws=N_DRAWS, **sizes)
    block = Block(1, N_DRAWS, "posterior", 0, positions, precisions, stats, state)
    with store.lock():
        store.commit(0, block)
    return store


def compared(
    folder: Path, name: str, wrong: SampledPosterior | None = None, *, n_parts: int = 1
) -> CheckResult:
    spec, data = problem(name)
    posterior = posterior_of(spec, data) if wrong is None else wrong
    chains = chain_store(folder / "run.zarr", spec, data, posterior, n_parts=n_parts)
    exact = exact_store(folder / "exact.zarr", name)
    return check_draws(committed(chains), committed(exact), false_alarm_rate=FALSE_ALARM_RATE)


def some(names: Sequence[str], *, every_time: Sequence[str]) -> list[Any]:
    """Parameters of a test, all but a few marked for the long run."""
    return [pytest.param(name, marks=[] if name in every_time else pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", some(list(MODELS), every_time=["variable noise"]))
def test_chains_agree_with_exact_draws(name: str, tmp_path: Path) -> None:
    result = compared(tmp_path, name)
    assert result.ok, "\n".join(result.reasons)
    assert result.table["ess"].min() > 1000  # with fewer effective draws the test would not be sharp


@pytest.mark.parametrize("name", some(list(MODELS), every_time=[]))
def test_chains_round_parts_agree_with_exact_draws(name: str, tmp_path: Path) -> None:
    result = compared(tmp_path, name, n_parts=3)
    assert result.ok, "\n".join(result.reasons)
    assert result.table["ess"].min() > 1000


def wrong_posterior(mutant: str) -> SampledPosterior:
    """A wrong posterior for "variable noise", as a bug in the chains' part would make it."""
    spec, data = problem("variable noise")
    if mutant == "prior not scaled by the number of units":
        spec, data = problem("variable noise", ho0="1:4")
    if mutant == "a case left out":
        return SampledPosterior.from_spec(spec.network, spec.model, data.inputs[1:], data.targets[1:])
    if mutant == "targets on another scale":
        return SampledPosterior.from_spec(spec.network, spec.model, data.inputs, 1.5 * data.targets)
    if mutant == "noise with one degree of freedom too few":
        # Shape (alpha + n)/2 one half less at the same rate alpha width**2: alpha 3, width 0.5 sqrt(4/3).
        spec = RunSpec.from_dict(spec.to_dict(), ["model.noise=0.577350269:3"])
    return posterior_of(spec, data)


MUTANTS = (
    "prior not scaled by the number of units",
    "a case left out",
    "targets on another scale",
    "noise with one degree of freedom too few",
)


def assert_different(result: CheckResult) -> None:
    assert not result.ok
    smallest = min(result.table["p_mean"].min(), result.table["p_ks"].min())
    assert smallest < result.threshold, "found for another reason than a difference"


@pytest.mark.parametrize("mutant", some(MUTANTS, every_time=MUTANTS[-1:]))
def test_chains_of_a_wrong_model_are_told_from_exact_draws(mutant: str, tmp_path: Path) -> None:
    assert_different(compared(tmp_path, "variable noise", wrong_posterior(mutant)))


WRONG_PRIORS = {"mixture priors": {"ih0": "mixture(0.7, 1.5, 0.2)"}, "rectified priors": {"ih0": "rect(1)"}}


@pytest.mark.parametrize("name", some(list(WRONG_PRIORS), every_time=[]))
def test_chains_of_another_prior_are_told_from_exact_draws(name: str, tmp_path: Path) -> None:
    assert_different(compared(tmp_path, name, posterior_of(*problem(name, **WRONG_PRIORS[name]))))
