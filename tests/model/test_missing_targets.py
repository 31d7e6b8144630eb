"""Missing targets have no influence on likelihood, gradient, noise and stepsizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.model import cases
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from tests.support.model.architectures import everything, mismatch_of_blocks, mutated, worst_error
from tests.support.problems import MODELS, log_density, network, problem, streams


def with_missing(
    model: str, *, whole_cases: bool = False, posterior: Any = SampledPosterior
) -> SampledPosterior:
    """The problem with some targets missing, or all targets of some cases."""
    target = problem(model, posterior=posterior)
    data = targets_of(target)
    data[[1, 4]] = np.nan
    if not whole_cases and data.shape[1] > 1:
        data[1, 0], data[2, 1] = 0.0, np.nan
    posterior_on_data: SampledPosterior = posterior.from_spec(
        target.network, target.model, target.inputs[:-1].T, data
    )
    return posterior_on_data


def targets_of(target: SampledPosterior) -> Any:
    if target.model.kind == "class":
        return target.targets.argmax(axis=0)[:, None].astype(float)
    return target.targets.T.copy()


@pytest.mark.parametrize("model", MODELS)
def test_cases_without_targets_are_as_if_left_out(model: str) -> None:
    target = with_missing(model, whole_cases=True)
    kept = [0, 2, 3, 5, 6]
    without = SampledPosterior.from_spec(
        target.network, target.model, target.inputs[:-1, kept].T, targets_of(problem(model))[kept]
    )
    state = target.initial_state(streams("left out", 6), sigmas=None)
    position, precisions = state.position, state.precisions
    for a, b in zip(
        target.potential_and_gradient(position, precisions),
        without.potential_and_gradient(position, precisions),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(
        target.log_likelihood(position, precisions), without.log_likelihood(position, precisions), rtol=1e-12
    )
    proposals = [target_.rejection_proposal(streams("proposal", 6)) for target_ in (target, without)]
    for a, b in zip(*proposals, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("model", MODELS)
def test_gradient_is_the_central_difference(model: str) -> None:
    assert worst_error(with_missing(model), n_draws=20, name=f"missing {model}") < 1e-6


@pytest.mark.parametrize("n_partitions", [2, 3, 7])
@pytest.mark.parametrize("model", MODELS)
def test_partial_gradients_average_to_the_full_one(model: str, n_partitions: int) -> None:
    assert mismatch_of_blocks(with_missing(model), n_partitions=n_partitions) < 1e-12


@pytest.mark.parametrize("model", MODELS)
def test_log_density_of_the_cases_sums_to_the_log_likelihood(model: str) -> None:
    target = with_missing(model)
    state = target.initial_state(streams("cases", 5), sigmas=None)
    data = targets_of(target)
    assert target.observed is not None
    if data.shape[1] == target.observed.shape[0]:
        data[target.observed.T == 0] = np.nan
    outputs = target.outputs(state.position, target.inputs[:-1].T)
    by_case = log_density(target, outputs, data, state.precisions)
    np.testing.assert_allclose(
        by_case.sum(axis=1), target.log_likelihood(state.position, state.precisions), rtol=1e-11
    )


def test_missing_cells_of_each_chain_are_its_own() -> None:
    target, n_chains = problem("t by target"), 4
    state = target.initial_state(streams("own cells", n_chains), sigmas=None)
    data = target.sample_targets(state.position, state.precisions, streams("targets", n_chains))
    for chain in range(n_chains):
        data[chain, chain : chain + 2, chain % 2] = np.nan
    whole, n_blocks = target.with_targets(data), 3
    blocks = np.arange(n_chains) % n_blocks
    choices: list[dict[str, Any]] = [{}, {"partition": blocks, "n_partitions": n_blocks}]
    for options in choices:
        energy, gradient = whole.potential_and_gradient(state.position, state.precisions, **options)
        for chain in range(n_chains):
            one = slice(chain, chain + 1)
            alone = SampledPosterior.from_spec(
                target.network, target.model, target.inputs[:-1].T, data[chain]
            )
            single = {**options, "partition": blocks[one]} if options else {}
            expected = alone.potential_and_gradient(state.position[one], state.precisions[one], **single)
            np.testing.assert_allclose(energy[one], expected[0], rtol=1e-12)
            np.testing.assert_allclose(gradient[one], expected[1], rtol=1e-10, atol=1e-12)
    noise, _ = whole.sample_noise(state, streams("noise", n_chains, iteration=1))
    assert np.isfinite(noise.precisions).all()


def test_the_curvature_of_a_target_is_that_of_its_observed_cases() -> None:
    spec = network({"io": "1", "bo": "1"}, outputs=2, units=(), activations=())
    target = problem("gaussian by target", spec=spec)
    data = targets_of(target)
    data[:3, 1] = np.nan
    some = SampledPosterior.from_spec(target.network, target.model, target.inputs[:-1].T, data)
    precisions = target.initial_state(streams("curvature", 3), sigmas=None).precisions
    noise = noise_precisions(precisions, target.precision_layout)
    bias = precisions[:, [target.precision_layout.common["bo"]]]
    expected = 1 / np.sqrt(bias + np.array([7, 4]) * noise)
    np.testing.assert_allclose(some.stepsizes(precisions)[:, -2:], expected, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_draws_do_not_depend_on_the_batch(model: str) -> None:
    target = with_missing(model)
    whole = everything(target, range(16))
    for batch in (range(1), range(3), range(5, 8)):
        for name, values in everything(target, batch).items():
            expected = whole[name][batch.start : batch.stop]
            assert np.array_equal(values, expected, equal_nan=True), f"{name}, chains {batch}"


def test_a_gradient_from_missing_classes_is_seen() -> None:
    bug = ("by_target *= weights[..., None, :, :]", "pass")
    target = with_missing("class", posterior=mutated(cases, bug))
    assert worst_error(target, n_draws=5, name="missing class") > 1e-3
