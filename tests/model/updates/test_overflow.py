"""A Gibbs update of states with outputs that are not finite raises an error that says what to change."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from rayfbnn.errors import SamplingError
from rayfbnn.model.integrated import gaussian_targets
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState
from tests.support.problems import problem, streams

ADVICE = "use less vague priors, start from fixed sigmas (initial.sigmas), use dtype float64"


def overflowing(model: str) -> tuple[SampledPosterior, ChainState]:
    """Five draws from the prior in float32; in chains 1 and 3 the outputs overflow to NaN."""
    target = problem(model, dtype="float32")
    state = target.initial_state(streams("overflow", 5), sigmas=None)
    position = state.position.copy()
    largest = np.finfo(np.float32).max
    for chain in (1, 3):  # sums over units overflow to both infinities
        position[chain, ::2], position[chain, 1::2] = largest, -largest
    return target, replace(state, position=position)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_noise_of_t_residuals_that_are_not_finite_cannot_be_drawn() -> None:
    target, state = overflowing("t by target")
    with pytest.raises(SamplingError) as caught:
        target.sample_noise(state, streams("overflow", 5, iteration=2))
    message = str(caught.value)
    assert "iteration 2, operation 0: no precision can be drawn for chain 1, 3, because" in message
    assert ADVICE in message


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_auxiliary_variables_of_outputs_that_are_not_finite_cannot_be_drawn() -> None:
    target, state = overflowing("binary")
    with pytest.raises(
        SamplingError, match="for chain 1, 3, because an output is not finite; " + re.escape(ADVICE)
    ):
        gaussian_targets(target, state, streams("overflow", 5, iteration=2))
