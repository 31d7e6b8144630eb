"""Central differences of a posterior, averages over its blocks, and posteriors with a bug."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from rayfbnn.model.sampled import SampledPosterior
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import streams

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
