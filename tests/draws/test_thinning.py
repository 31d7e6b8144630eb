"""Some draws of a store are those that whole reads have there, and a bounded number of blocks is read."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rayfbnn.draws.draws import committed
from rayfbnn.draws.thinning import thinned
from tests.support.store.standin_store import make_spec, make_store


@pytest.mark.parametrize("at_most", [1, 3, 6, 9, 50])
def test_thinned_draws_are_evenly_spaced_and_end_with_the_last(at_most: int) -> None:
    run = committed(make_store(make_spec(), n_draws=50))
    some = thinned(run, at_most)
    step = -(-50 // at_most)
    expected = range(49 - (some.n_draws - 1) * step, 50, step)
    assert some.n_draws <= at_most and len(expected) == some.n_draws
    for read in ("read_positions", "read_precisions"):
        whole = getattr(run.store, read)(slice(0, 50), slice(1, 3))
        drawn = getattr(some.store, read)(slice(0, some.n_draws), slice(1, 3))
        np.testing.assert_array_equal(drawn, whole[:, expected])
    energies = some.store.read_stat("energy", slice(0, some.n_draws))
    np.testing.assert_array_equal(energies, run.store.read_stat("energy", slice(0, 50))[:, expected])


def test_a_long_run_is_read_in_sixteen_blocks_from_the_first_to_the_last() -> None:
    store = make_store(make_spec(draws_per_block=2), n_draws=1000)
    store.stats["energy"][...] = np.arange(1000)
    some = thinned(committed(store), 500)
    numbers = some.store.read_stat("energy", slice(0, some.n_draws))[0]
    assert len(numbers) == 32 and len(set(numbers // 2)) == 16
    assert numbers[0] == 0 and numbers[-1] == 999
    assert all(earlier < later for earlier, later in pairwise(numbers))
