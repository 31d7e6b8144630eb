"""The posterior of one part of the cases: its energy and gradient are those of a partial gradient."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.model.batches import cases_of_part, posterior_of_part
from tests.support import problems
from tests.support.ring.parts import MODELS, position_of, target_of


@pytest.mark.parametrize(("n_parts", "missing"), [(3, False), (4, True)], ids=["whole", "missing"])
@pytest.mark.parametrize("name", MODELS)
def test_a_part_has_the_bits_of_a_partial_gradient(name: str, missing: bool, n_parts: int) -> None:
    target = target_of(name, missing=missing, dtype="float32" if n_parts == 3 else "float64")
    target = target.tempered(0.7)
    position, precisions = position_of(target, 3)
    for part in (0, 1, n_parts - 1):
        alone = posterior_of_part(target, part, n_parts).tempered(float(n_parts))
        energy, gradient = alone.potential_and_gradient(position, precisions)
        expected_energy, expected = target.potential_and_gradient(
            position, precisions, partition=np.full(3, part), n_partitions=n_parts
        )
        assert np.array_equal(gradient, expected)
        np.testing.assert_allclose(energy, expected_energy, rtol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_together_have_the_likelihood_of_all_cases(name: str) -> None:
    target = target_of(name, missing=True)
    position, precisions = position_of(target, 3)
    parts = [posterior_of_part(target, part, 4) for part in range(4)]
    assert sum(part.n_cases for part in parts) == 11
    assert [cases_of_part(11, part, 4) for part in range(4)] == [(0, 2), (2, 5), (5, 8), (8, 11)]
    np.testing.assert_allclose(
        sum(part.log_likelihood(position, precisions) for part in parts),
        target.log_likelihood(position, precisions),
        rtol=1e-12,
    )


def test_targets_of_single_chains_are_cut_as_well() -> None:
    target = target_of("hazard of pieces")
    position, precisions = position_of(target, 3)
    data = target.sample_targets(position, precisions, problems.streams("targets", 3))
    informed = target.with_targets(data)
    for part in range(3):
        alone = posterior_of_part(informed, part, 3).tempered(3.0)
        _, gradient = alone.potential_and_gradient(position, precisions)
        _, expected = informed.potential_and_gradient(
            position, precisions, partition=np.full(3, part), n_partitions=3
        )
        assert np.array_equal(gradient, expected)


def test_more_parts_than_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="must be at most 11, the number of cases, got 12"):
        posterior_of_part(target_of("gaussian"), 0, 12)
