"""Everything that a posterior computes, for tests that its bits do not depend on the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rayfbnn.model.sampled import SampledPosterior
from tests.support.problems import streams

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
