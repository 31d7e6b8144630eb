"""Densities of many draws at all cases are computed for a few draws at a time."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.model import approximated_precisions as module
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.posterior import forward
from tests.support.ring.parts import position_of, target_of

N_DRAWS = 8


def test_a_few_draws_at_a_time_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = target_of("gaussian")
    target = ApproximatedPosterior.from_spec(
        whole.network, whole.model, whole.inputs[:-1].T, whole.targets.T, dtype=whole.dtype
    ).tempered(0.7)
    position, precisions = position_of(whole, N_DRAWS)
    together = target.log_joint(position, precisions), target.residual_squares(position)

    sizes: list[int] = []

    def counted(position: object, *others: object, **named: object) -> object:
        sizes.append(len(position))  # type: ignore[arg-type]
        return forward(position, *others, **named)  # type: ignore[arg-type]

    units = sum(layer.units for layer in target.network.hidden) + target.network.outputs
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 3 * 2 * 8 * units * target.n_cases)
    monkeypatch.setattr(module, "forward", counted)
    monkeypatch.setattr("rayfbnn.model.network.forward", counted)
    apart = target.log_joint(position, precisions), target.residual_squares(position)
    assert sizes == [3, 3, 2, 3, 3, 2]
    for ours, expected in zip(apart, together, strict=True):
        assert ours is not None and expected is not None
        np.testing.assert_array_equal(ours, expected)
