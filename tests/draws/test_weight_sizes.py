"""The sizes of weights are root mean squares of their groups, whatever is read at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rayfbnn.draws.quantities import weight_sizes
from tests.support.store.standin_store import make_run, make_spec


@pytest.mark.parametrize("per_chunk", [1, 7, 20])
def test_sizes_are_root_mean_squares_of_groups(per_chunk: int) -> None:
    run = replace(make_run(make_spec(), n_draws=20), draws_per_chunk=per_chunk, chains_per_batch=3)
    sizes = weight_sizes(run)
    groups = run.parameter_layout.views(run.store.positions)
    assert list(sizes) == [f"rms_{group}" for group in groups]
    for group, weights in groups.items():
        expected = np.sqrt(np.square(weights.reshape(4, 20, -1).astype(float)).mean(axis=2))
        np.testing.assert_allclose(sizes[f"rms_{group}"], expected, rtol=1e-6)
