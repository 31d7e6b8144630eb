"""Gradients agree with central differences, and gradients of blocks of cases with the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.model import network, posterior, prior
from rayfbnn.model.likelihood import real
from rayfbnn.model.sampled import SampledPosterior
from tests.support.model.architectures import mismatch_of_blocks, mutated, worst_error
from tests.support.problems import problem, streams


def test_a_block_is_the_cases_it_is_said_to_be() -> None:
    target, n_partitions = problem("t"), 3
    state = target.initial_state(streams("block", 3), sigmas=None)
    energy, gradient = target.potential_and_gradient(
        state.position, state.precisions, partition=np.array([2, 0, 1]), n_partitions=n_partitions
    )
    inputs, targets = target.inputs[:-1].T, target.targets.T
    for chain, block in enumerate([2, 0, 1]):
        cases = slice(7 * block // 3, 7 * (block + 1) // 3)
        part = SampledPosterior.from_spec(target.network, target.model, inputs[cases], targets[cases])
        one = slice(chain, chain + 1)
        position, precisions = state.position[one], state.precisions[one]
        part_energy, part_gradient = part.potential_and_gradient(position, precisions)
        prior_energy, prior_gradient = prior.energy_of_parameters(
            position, part.governing(precisions).parameters, part.parameter_layout
        )
        assert np.allclose(energy[one], 3 * part_energy - 2 * prior_energy, rtol=1e-12)
        assert np.allclose(gradient[one], 3 * part_gradient - 2 * prior_gradient, rtol=1e-12, atol=1e-12)


def test_more_blocks_than_cases_are_refused() -> None:
    target = problem()
    state = target.initial_state(streams("too many", 1), sigmas=0.5)
    with pytest.raises(ValueError, match="at most 7, the number of cases, got 8"):
        target.potential_and_gradient(
            state.position, state.precisions, partition=np.array([0]), n_partitions=8
        )


GRADIENT_MUTANTS: dict[str, tuple[Any, tuple[str, str]]] = {
    "slope of tanh": (network, ("xp.subtract(1, slope, out=slope)", "xp.subtract(1.2, slope, out=slope)")),
    "offsets of inputs left out": (
        network,
        ("_with_offset(inputs, position, wiring.offsets[0])", "inputs"),
    ),
    "offsets of hidden units left out": (
        network,
        ("_with_offset(rows, position, wiring.offsets[layer])", "rows"),
    ),
    "offset's derivative after the slope": (
        network,
        (
            "gradient[:, offset] = derivative.sum(axis=2)",
            "gradient[:, offset] = 0.9 * derivative.sum(axis=2)",
        ),
    ),
    "one of two ways out of a layer": (
        network,
        ("out += product(weights, summed[link.destination])", "pass"),
    ),
    "one of two ways into a layer": (network, ("out += xp.matmul(matrix, source)", "pass")),
    "printed sign of eqs. 37, 38": (real, ("residuals = rows - outputs", "residuals = outputs - rows")),
    "t noise without its slope": (real, ("gradient *= (alpha + 1) / (alpha + z)", "pass")),
    "t parameters' degrees of freedom": (
        prior,
        ("gradient[:, part] *= (alpha + 1)", "gradient[:, part] *= alpha"),
    ),
    "prior left out of the gradient": (
        posterior,
        ("gradient += xp.asarray(prior_gradient, dtype=position.dtype)", "pass"),
    ),
}


@pytest.mark.parametrize("name", GRADIENT_MUTANTS)
def test_a_wrong_gradient_is_seen(name: str) -> None:
    module, replacement = GRADIENT_MUTANTS[name]
    target = problem("t by target", posterior=mutated(module, replacement))
    assert worst_error(target, n_draws=5, name="t by target tanh t") > 1e-3


BLOCK_MUTANTS = {
    "blocks not multiplied by their number": ("slopes *= -n_partitions * self", "slopes *= -1 * self"),
    "filling counted": (
        "self.blocks_of(n_partitions).at(partition)\n",
        "self.blocks_of(n_partitions).at(partition)\n            weights = None\n",
    ),
    "prior divided among the blocks": (
        "return energy - n_partitions * self.inverse_temperature * log_likelihood",
        "return energy / n_partitions - n_partitions * self.inverse_temperature * log_likelihood",
    ),
    "normalisers of all cases in every block": (
        "total_log_normaliser(noise, counts)",
        "total_log_normaliser(noise, self.counts)",
    ),
}


@pytest.mark.parametrize("name", BLOCK_MUTANTS)
def test_wrong_blocks_are_seen(name: str) -> None:
    target = problem("t", posterior=mutated(posterior, BLOCK_MUTANTS[name]))
    assert mismatch_of_blocks(target, n_partitions=3) > 1e-3
