"""Claims about every update of a target: batches, dtypes, blow-ups, and impossible starts."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Dynamic, Hybrid, HybridMax, Metropolis, Metropolis1, Slice1
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.problems import chain_streams
from tests.support.targets import banana, wall

UPDATES: dict[str, Operation] = {
    "hybrid": Hybrid(steps=7, stepsize=0.3, window=3, partitions=3, stepsize_jitter=5.0),
    "hybrid-max": HybridMax(max_steps=6, max_ok=2, stepsize=0.5, partitions=3),
    "dynamic": Dynamic(steps=5, stepsize=0.3, partitions=3, permuted=True),
    "metropolis": Metropolis(stepsize=0.3, stepsize_jitter=-1.0),
    "metropolis-1": Metropolis1(stepsize=0.6, stepsize_jitter=-1.0),
    "metropolis-1 at random": Metropolis1(stepsize=0.6, random=True),
    "slice-1": Slice1(stepsize=0.6, stepsize_jitter=-1.0),
}
TRAJECTORIES = (
    Hybrid(steps=5, stepsize=0.2),
    HybridMax(max_steps=5, max_ok=3, stepsize=0.2),
    Dynamic(steps=5, stepsize=0.2),
)


def started(operation: Operation, n_chains: int, dtype: str = "float64"):
    """Return the update, a state and streams."""
    streams = chain_streams(47, n_chains, iteration=7)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    momentum = streams.normal(Purpose.MOMENTUM, (3,))
    state = ChainState(position.astype(dtype), momentum.astype(dtype), np.ones((n_chains, 1)))
    return partial(updating(type(operation)), target=banana(), **vars(operation)), state, streams


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UPDATES)
def test_chains_do_not_depend_on_their_batch_and_keep_their_dtype(name: str, dtype: str) -> None:
    update, state, streams = started(UPDATES[name], 16, dtype)
    together, info = update(state, streams)
    assert (together.position != state.position).any(axis=0).all()
    assert together.position.dtype == together.momentum.dtype == dtype
    for size in (1, 2, 3, 5, 8):
        for first in range(0, 16 - size + 1, size):
            rows = slice(first, first + size)
            alone, alone_info = update(state.of_chains(rows), streams.of_some(rows))
            assert np.array_equal(alone.position, together.position[rows])
            assert np.array_equal(alone.momentum, together.momentum[rows])
            if info is not None:
                assert np.array_equal(alone_info.energy_change, info.energy_change[rows])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", UPDATES)
def test_an_impossible_starting_energy_stops_and_names_the_chain(name: str, value: float) -> None:
    update, state, _ = started(UPDATES[name], 4)
    state.position[2, 1] = value
    streams = Streams(1, np.arange(40, 44, dtype=np.uint64), iteration=7, operation=3)
    with pytest.raises(SamplingError, match=r"iteration 7, operation 3: .* chain 42 is not finite"):
        update(state, streams)


@pytest.mark.parametrize("operation", TRAJECTORIES)
def test_a_chain_that_blows_up_stays_and_is_counted(operation: Operation) -> None:
    state = ChainState(
        np.array([[0.1, 0.2], [2.9, 0.0], [0.3, 0.0]]),
        np.array([[0.5, 0.5], [9.0, 0.0], [0.1, 0.1]]),
        np.ones((3, 1)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        update = updating(type(operation))
        after, info = update(state, chain_streams(3, 3), target=wall(2), **vars(operation))
    assert list(info.diverged) == [False, True, False]
    assert info.energy_change[1] == np.inf and not getattr(info, "accepted", info.diverged * 0)[1]
    assert np.array_equal(after.position[1], state.position[1])
    assert np.array_equal(after.momentum[1], state.momentum[1])
    assert not np.array_equal(after.position[0], state.position[0])
    assert np.isfinite(after.position).all() and np.isfinite(after.momentum).all()
