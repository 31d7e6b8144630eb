"""The posterior of some cases: the prior, and the data terms of these cases times a weight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.mcmc import sghmc
from rayfbnn.model import batches
from tests.support.mutants import mutant
from tests.support.ring.parts import MODELS, position_of, target_of

N = 11


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize("name", MODELS)
def test_all_cases_in_any_order_have_the_whole_energy(name: str, missing: bool) -> None:
    target = target_of(name, missing=missing).tempered(0.7)
    position, precisions = position_of(target, 3)
    cases = np.stack([np.roll(np.arange(N), n) for n in range(3)])
    some = target.of_cases(cases, 1.0)
    for ours, whole in zip(
        some.potential_and_gradient(position, precisions),
        target.potential_and_gradient(position, precisions),
        strict=True,
    ):
        np.testing.assert_allclose(ours, whole, rtol=1e-11, atol=1e-11)


def mean_over_batches(name: str, module: object = batches) -> tuple[Array, Array]:
    """Return the mean of the gradient over all batches of two cases of five, and the whole gradient."""
    target = target_of(name, n_cases=5)
    position, precisions = position_of(target, 1)
    pairs = np.array(list(itertools.combinations(range(5), 2)))
    chains = [np.repeat(values, len(pairs), axis=0) for values in (position, precisions)]
    posterior = module.of_cases(target, pairs, 5 / 2)  # type: ignore[attr-defined]
    mean = posterior.potential_and_gradient(*chains)[1].mean(axis=0)
    return mean, target.potential_and_gradient(position, precisions)[1][0]


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_over_all_batches_is_the_whole_gradient(name: str) -> None:
    mean, whole = mean_over_batches(name)
    np.testing.assert_allclose(mean, whole, rtol=1e-11, atol=1e-11)


def test_a_gradient_without_the_weight_is_seen() -> None:
    changed = mutant(batches, ("posterior.inverse_temperature * weight", "posterior.inverse_temperature"))
    mean, whole = mean_over_batches("gaussian", changed)
    assert np.abs(mean - whole).max() > 1e-3


def test_filling_of_cases_that_counts_is_seen() -> None:
    changed = mutant(batches, ("if is_cell is not None", "if False"))
    mean, whole = mean_over_batches("hazard of pieces", changed)
    assert np.abs(mean - whole).max() > 1e-3


def variances(module: object) -> tuple[Array, Array]:
    """Return the mean estimate of the variance from the halves of a batch of 4 of 6, and the variance."""
    target = target_of("gaussian", n_cases=6)
    position, precisions = position_of(target, 1)
    orders = np.array(list(itertools.permutations(range(6), 4)))
    chains = [np.repeat(values, len(orders), axis=0) for values in (position, precisions)]
    gradient, variance = module.gradient_and_variance(target, *chains, orders)  # type: ignore[attr-defined]
    whole = target.potential_and_gradient(position, precisions)[1][0]
    np.testing.assert_allclose(gradient.mean(axis=0), whole, rtol=1e-11, atol=1e-11)
    return variance.mean(axis=0), gradient.var(axis=0)


def test_the_estimated_variance_has_the_true_one_as_its_mean() -> None:
    estimated, exact = variances(sghmc)
    np.testing.assert_allclose(estimated, exact, rtol=1e-9)


@pytest.mark.parametrize(("old", "new"), [("1 - n / target.n_cases", "1.0"), ("a * b / n**2", "a * b / n")])
def test_a_wrong_estimate_of_the_variance_is_seen(old: str, new: str) -> None:
    estimated, exact = variances(mutant(sghmc, (old, new)))
    assert np.abs(estimated / exact - 1).max() > 0.1


def test_a_chain_has_the_gradient_of_its_own_cases() -> None:
    target = target_of("class")
    position, precisions = position_of(target, 4)
    cases = np.arange(4)[:, None] + np.arange(5)
    together = target.of_cases(cases, 2.0).potential_and_gradient(position, precisions)[1].copy()
    for chain in range(4):
        one = slice(chain, chain + 1)
        alone = target.of_cases(cases[one], 2.0).potential_and_gradient(position[one], precisions[one])[1]
        assert np.array_equal(alone[0], together[chain])
