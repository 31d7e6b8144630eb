"""Gradients, densities and batches of every data model, with and without missing targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.model import cases
from rayfbnn.model.sampled import SampledPosterior
from tests.support.model.architectures import assert_independent, mismatch_of_blocks, mutated, worst_error
from tests.support.problems import covariates_of, log_density, streams
from tests.support.ring.parts import MODELS, given, informed, target_of

WHOLE_OR_MISSING = pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])


@WHOLE_OR_MISSING
@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_the_central_difference(name: str, missing: bool) -> None:
    assert worst_error(target_of(name, missing=missing), n_draws=20, name=f"data model {name}") < 1e-6


def test_a_gradient_from_missing_classes_is_seen() -> None:
    bug = ("by_target *= weights[..., None, :, :]", "pass")
    target, _ = informed("class", missing=True, posterior=mutated(cases, bug))
    assert worst_error(target, n_draws=5, name="missing class") > 1e-3


@WHOLE_OR_MISSING
@pytest.mark.parametrize("n_partitions", [2, 3, 7])  # of 7 cases
@pytest.mark.parametrize("name", MODELS)
def test_partial_gradients_average_to_the_full_one(name: str, n_partitions: int, missing: bool) -> None:
    target = target_of(name, missing=missing, n_cases=7)
    assert mismatch_of_blocks(target, n_partitions=n_partitions) < 1e-12


@WHOLE_OR_MISSING
@pytest.mark.parametrize("name", MODELS)
def test_log_density_of_the_cases_sums_to_the_log_likelihood(name: str, missing: bool) -> None:
    target, data = informed(name, missing=missing)
    state = target.initial_state(streams("cases", 5), sigmas=None)
    outputs = target.outputs(state.position, target.data_model.cell_inputs(covariates_of(target)))
    if target.model.kind == "survival":
        outputs = outputs.reshape(5, 11, target.data_model.n_cells)
    by_case = log_density(target, outputs, data, state.precisions)
    assert by_case.shape == (5, 11)
    expected = target.log_likelihood(state.position, state.precisions)
    np.testing.assert_allclose(by_case.sum(axis=1), expected, rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_cases_without_targets_are_as_if_left_out(name: str) -> None:
    target, data = informed(name)
    kept = [0, 2, 3, *range(5, 11)]
    inputs = covariates_of(target)
    without = SampledPosterior.from_spec(target.network, target.model, inputs[kept], data[kept])
    data[[1, 4]] = np.nan
    target = given(target, data)
    state = target.initial_state(streams("left out", 6), sigmas=None)
    at = state.position, state.precisions
    pairs = [
        *zip(target.potential_and_gradient(*at), without.potential_and_gradient(*at), strict=True),
        (target.log_likelihood(*at), without.log_likelihood(*at)),
    ]
    proposals = [each.rejection_proposal(streams("proposal", 6)) for each in (target, without)]
    pairs += zip(*proposals, strict=True)
    for ours, expected in pairs:
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-11)


@WHOLE_OR_MISSING
@pytest.mark.parametrize("name", MODELS)
def test_own_targets_for_every_chain_give_each_its_gradient(name: str, missing: bool) -> None:
    """A hazard of pieces then has cells that some chains do not reach."""
    target, n_chains = target_of(name, n_cases=7), 4
    state = target.initial_state(streams("own targets", n_chains), sigmas=None)
    data = target.sample_targets(state.position, state.precisions, streams("targets", n_chains))
    assert data.shape == (n_chains, 7, target.n_targets)
    if missing:
        for chain in range(n_chains):
            data[chain, chain : chain + 2, chain % target.n_targets] = np.nan
    conditioned = target.with_targets(data)
    choices: list[dict[str, Any]] = [{}, {"partition": np.array([2, 0, 1, 1]), "n_partitions": 3}]
    for options in choices:
        energy, gradient = conditioned.potential_and_gradient(state.position, state.precisions, **options)
        for chain in range(n_chains):
            one = slice(chain, chain + 1)
            single = dict(options, partition=options["partition"][one]) if options else {}
            expected = given(target, data[chain]).potential_and_gradient(
                state.position[one], state.precisions[one], **single
            )
            np.testing.assert_allclose(energy[one], expected[0], rtol=1e-12)
            np.testing.assert_allclose(gradient[one], expected[1], rtol=1e-10, atol=1e-12)
    noise, _ = conditioned.sample_noise(state, streams("noise", n_chains, iteration=1))
    assert np.isfinite(noise.precisions).all()


@pytest.mark.parametrize(("dtype", "missing"), [("float32", False), ("float64", False), ("float64", True)])
@pytest.mark.parametrize("name", MODELS)
def test_draws_do_not_depend_on_the_batch(name: str, dtype: str, missing: bool) -> None:
    assert_independent(target_of(name, missing=missing, dtype=dtype, n_cases=20))


def test_a_trajectory_that_blows_up_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    for name in MODELS:
        target = target_of(name, dtype="float32")
        state = target.initial_state(streams("blow-up", 2), sigmas=0.5)
        for value in (1e30, np.inf, np.nan):
            position = np.full_like(state.position, value)
            energy, gradient = target.potential_and_gradient(position, state.precisions)
            assert not np.any(energy < np.inf) or name in ("binary", "class")
            assert gradient.shape == position.shape
    assert len(recwarn) == 0
