"""A block's draws, acceptance and measurements are those of its iterations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rayfbnn.mcmc.automatic import Measured
from rayfbnn.mcmc.operations import Hybrid
from rayfbnn.mcmc.schedule import IterationInfo
from rayfbnn.run.job import BlockPlan, Collected
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import STATS
from rayfbnn.store.records import Block
from rayfbnn.streams import Streams
from tests.support.small import small

TUNED = Hybrid(steps=2, stepsize="auto")
SPEC = RunSpec.from_dict(
    small(phase=[{"iterations": 3, "operations": [{"op": "hybrid", "steps": 2, "stepsize": 0.1}]}])
)
(PROPOSES,) = SPEC.phase[0].operations
STREAMS = Streams(1, np.arange(2, dtype=np.uint64))
DENSITIES = set(STATS) - {"accepted", "diverged", "energy_change"}
NOTHING = np.full(2, np.nan)


def state_of(number: int) -> ChainState:
    """The state of two chains after an iteration."""
    return ChainState(*(np.full((2, n), float(number)) for n in (3, 3, 1)))


def collected(infos: list[IterationInfo], **options: bool) -> Collected:
    block = Collected(**options)
    for number, info in enumerate(infos, 1):
        densities = {name: np.full(2, float(number)) for name in DENSITIES}
        block.add(state_of(number), info, densities, STREAMS.at(iteration=number))
    return block


def committed(block: Collected) -> Block:
    block.send_all(state_of(block.n_iterations))
    return block.block(SPEC, BlockPlan(0, 1, block.n_iterations, "posterior", 0))


def test_acceptance_is_the_mean_over_the_updates_that_there_were() -> None:
    assert math.isnan(Collected().acceptance)
    infos = [
        IterationInfo(np.array(accepted), NOTHING, np.array([0.0, 1.0]), {PROPOSES: np.array(accepted)})
        for accepted in ([1.0, 0.0], [1.0, np.nan], [1.0, 1.0])
    ]
    block = collected(infos)
    assert block.acceptance == pytest.approx(4 / 5)
    summary = committed(block).summary
    assert (summary["accepted_sum"], summary["n_accepted"], summary["diverged"]) == (4, 5, 3)
    assert (summary["accepted_sum_0_0"], summary["n_accepted_0_0"]) == (4, 5)


def test_measurements_of_an_operation_are_summed_over_iterations() -> None:
    parts = [
        Measured(2, (1, 2), (5, 7), ((1,), (2,)), (3,), (4,)),
        Measured(2, (1, 2), (1, 2), ((3,), (4,)), (5,), (6,)),
    ]
    infos = [IterationInfo(NOTHING, NOTHING, np.zeros(2), measured={TUNED: part}) for part in parts]
    assert committed(collected(infos[:1])).tuning == (parts[0],)
    assert committed(collected(infos)).tuning == (parts[0] + parts[1],)
    assert committed(collected([IterationInfo(NOTHING, NOTHING, np.zeros(2))])).tuning == ()


def test_draws_are_kept_only_where_they_are_to_be() -> None:
    infos = [IterationInfo(np.ones(2), np.zeros(2), np.zeros(2))] * 3
    without = committed(collected(infos))
    assert without.positions is None and without.precisions is None and not without.stats
    kept = committed(collected(infos, keep=True))
    assert kept.positions is not None
    np.testing.assert_array_equal(kept.positions, np.full((2, 3, 3), [[1.0], [2.0], [3.0]]))
    np.testing.assert_array_equal(kept.stats["log_prior"], [[1, 2, 3]] * 2)
    np.testing.assert_array_equal(kept.state.position, np.full((2, 3), 3.0))
