"""Checks of derivatives, of batches, and of all that must pass for every architecture."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from rayfbnn.model.architecture import NetworkSpec
from rayfbnn.model.sampled import SampledPosterior
from tests.support.model.reference import outputs_by_loops, stepsizes_by_loops
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import MODELS, problem, streams


def assert_right(spec: NetworkSpec, *, name: str, models: tuple[str, ...] = tuple(MODELS)) -> None:
    """Check that outputs, gradients and stepsizes agree with the formulas, for every data model that fits."""
    for model in models:
        if model == "class" and spec.outputs != 3:
            continue
        target = problem(model, spec=spec)
        state = target.initial_state(streams(f"{name} {model}", 3), sigmas=None)
        inputs = target.inputs[:-1].T
        outputs = target.outputs(state.position, inputs)
        expected = [[outputs_by_loops(target, chain, case) for case in inputs] for chain in state.position]
        assert np.allclose(outputs, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
        steps = [stepsizes_by_loops(target, chain) for chain in state.precisions]
        assert np.allclose(target.stepsizes(state.precisions), steps, rtol=1e-11, atol=0)
        assert worst_error(target, n_draws=20, name=f"{name} {model}") < 1e-6


def assert_batch_independent(spec: NetworkSpec) -> None:
    for dtype in ("float32", "float64"):
        assert_independent(problem(spec=spec, dtype=dtype, n_cases=50))


def seen_as_wrong(spec: NetworkSpec, module: ModuleType, *replacements: tuple[str, str]) -> bool:
    """Return True if outputs, gradients or stepsizes show a bug in one of the modules of a posterior."""
    target = problem("t", spec=spec, posterior=mutated(module, *replacements))
    state = target.initial_state(streams("mutant", 3), sigmas=None)
    inputs = target.inputs[:-1].T
    outputs = target.outputs(state.position, inputs)
    expected = [[outputs_by_loops(target, chain, case) for case in inputs] for chain in state.position]
    steps = [stepsizes_by_loops(target, chain) for chain in state.precisions]
    return (
        not np.allclose(outputs, expected, rtol=1e-6)
        or not np.allclose(target.stepsizes(state.precisions), steps, rtol=1e-6)
        or worst_error(target, n_draws=5, name="mutant") > 1e-3
    )


STEP = 1e-6


def worst_error(target: SampledPosterior, *, n_draws: int, name: str) -> float:
    """Return the largest difference between gradient and central differences, over draws from the prior.

    Relative to the gradient's largest component, or to one where the energy's rounding error rules.
    """
    start = target.initial_state(streams(name, n_draws), sigmas=None)
    position, precisions, n = start.position, start.precisions, target.n_parameters
    energy, gradient = target.potential_and_gradient(position, precisions)
    assert np.all(np.isfinite(energy))
    assert np.array_equal(energy, target.potential(position, precisions))
    # All displaced positions are chains of one batch.
    displaced = position[:, None, None] + STEP * np.array([1.0, -1.0])[:, None, None] * np.eye(n)
    energies = target.potential(displaced.reshape(-1, n), np.repeat(precisions, 2 * n, axis=0))
    above, below = energies.reshape(n_draws, 2, n).swapaxes(0, 1)
    scale = np.maximum(np.abs(gradient).max(axis=1), 1e-3 * np.abs(energy))
    return float(np.max(np.abs((above - below) / (2 * STEP) - gradient) / np.maximum(scale, 1)[:, None]))


def mismatch_of_blocks(target: SampledPosterior, *, n_partitions: int) -> float:
    """Relative difference between the whole and the mean over blocks, for the energy and the gradient."""
    state = target.initial_state(streams(f"{n_partitions} blocks", 6), sigmas=None)
    whole = target.potential_and_gradient(state.position, state.precisions)
    blocks = [
        target.potential_and_gradient(
            state.position, state.precisions, partition=np.full(6, k), n_partitions=n_partitions
        )
        for k in range(n_partitions)
    ]
    worst = 0.0
    for number, value in enumerate(whole):
        mean = sum(block[number] for block in blocks) / n_partitions
        worst = max(worst, float(np.max(np.abs(mean - value)) / np.max(np.abs(value))))
    return worst


def mutated(module: ModuleType, *replacements: tuple[str, str]) -> type[SampledPosterior]:
    """Return the class of posteriors with a bug in one of the modules that it consists of."""
    wrong: type[SampledPosterior] = sampled_with(mutant(module, *replacements)).SampledPosterior
    return wrong


BATCHES = [range(1), range(2), range(3), range(5), range(8), range(3, 4), range(5, 8), range(8, 16)]


def everything(target: SampledPosterior, chains: range) -> dict[str, Any]:
    """Everything that a posterior computes for these chains, by name."""
    random = replace(streams("batches", 16), chains=np.arange(16, dtype=np.uint64)[chains])
    state = target.initial_state(random, sigmas=None)
    position, precisions = state.position, state.precisions
    partition = np.arange(16)[chains] % 3
    after, _ = target.sample_sigmas(state, random.at(iteration=1))
    noise, _ = target.sample_noise(state, random.at(iteration=1))
    energy, gradient = target.potential_and_gradient(position, precisions)
    part_energy, part_gradient = target.potential_and_gradient(
        position, precisions, partition=partition, n_partitions=3
    )
    proposal, proposed_precisions, log_acceptance = target.rejection_proposal(random)
    return {
        "position": position,
        "momentum": state.momentum,
        "precisions": precisions,
        "energy": energy,
        "gradient": gradient,
        "energy of a block": part_energy,
        "gradient of a block": part_gradient,
        "potential": target.potential(position, precisions),
        "log likelihood": target.log_likelihood(position, precisions),
        "log prior": target.log_prior(position, precisions),
        "stepsizes": target.stepsizes(precisions),
        "sampled sigmas": after.precisions,
        "sampled noise": noise.precisions,
        "outputs": target.outputs(position, np.linspace(-1, 1, 15).reshape(5, 3)),
        "proposal": proposal,
        "proposed precisions": proposed_precisions,
        "log acceptance": log_acceptance,
        "targets": target.sample_targets(position, precisions, random),
    }


def assert_independent(target: SampledPosterior) -> None:
    whole = everything(target, range(16))
    for batch in BATCHES:
        for name, values in everything(target, batch).items():
            expected = whole[name][batch.start : batch.stop]
            assert np.array_equal(values, expected, equal_nan=True), f"{name}, chains {batch}"
