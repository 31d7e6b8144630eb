"""Orders of partial gradients: what they are, and that chains which draw their own stay independent."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import scipy.special

from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.hybrid_max import HybridMax
from rayfbnn.mcmc.leapfrog import drawn_order, reversed_order
from rayfbnn.selftest.pivots import is_exact
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.mutants import mutant
from tests.support.problems import chain_streams
from tests.support.targets import ANHARMONIC, anharmonic_cdf, anharmonic_draws

N_CHAINS = 200_000


@pytest.mark.parametrize("n_partitions", [2, 3, 4, 7])
def test_cyclic_orders_go_round_from_partition_zero(n_partitions: int) -> None:
    order = drawn_order(chain_streams(3, 400), n_partitions, "cyclic")
    assert order is not None and order.dtype == np.int64
    forwards = np.arange(n_partitions)
    is_forwards = (order == forwards).all(axis=1)
    is_backwards = (order == -forwards % n_partitions).all(axis=1)
    assert (is_forwards | is_backwards).all()
    if n_partitions > 2:
        assert 150 < is_forwards.sum() < 250


def test_the_reversal_of_a_cyclic_order_is_the_other_direction() -> None:
    order = drawn_order(chain_streams(3, 50), 5, "cyclic")
    assert np.array_equal(reversed_order(order), -order % 5)


def test_a_direction_depends_on_the_chain_and_the_iteration_alone() -> None:
    streams = chain_streams(3, 60)
    first, second = (drawn_order(streams.at(iteration=number), 3, "cyclic") for number in (1, 2))
    assert first is not None and second is not None
    assert not np.array_equal(first, second)
    assert np.array_equal(drawn_order(chain_streams(3, 6).at(iteration=1), 3, "cyclic"), first[:6])


def test_there_is_no_order_of_one_partition() -> None:
    assert drawn_order(chain_streams(3, 5), 1, None) is None


@pytest.mark.parametrize(
    "operation",
    [
        Hybrid(steps=2, stepsize=0.1, partitions=3, order="cyclic"),
        HybridMarginal(("precisions",), steps=2, stepsize=0.1, partitions=3, order="cyclic"),
        HybridMax(max_steps=2, max_ok=1, stepsize=0.1, partitions=3, order="cyclic"),
    ],
    ids=lambda operation: operation.op,
)
def test_the_description_names_the_order(operation: Hybrid | HybridMarginal | HybridMax) -> None:
    assert operation.description().endswith("3 partial gradients per step in cyclic order")


def are_independent(changed: ModuleType) -> bool:
    """Compare the correlation between the chains 2 i and 2 i + 1 after one update from exact draws with 0."""

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = chain_streams(seed, n_chains)
        momentum = streams.normal(Purpose.MOMENTUM, (1,))
        state = ChainState(anharmonic_draws(streams), momentum, np.ones((n_chains, 1)))
        after, _ = changed.hybrid(
            state,
            streams.at(iteration=1),
            target=ANHARMONIC,
            steps=1,
            stepsize=1.15,
            partitions=3,
            partition_order="cyclic",
        )
        values = anharmonic_cdf(after.position[:, 0]) - 0.5
        z = np.corrcoef(values[::2], values[1::2])[0, 1] * np.sqrt(n_chains // 2)
        return [float(2 * scipy.special.ndtr(-abs(z)))]

    return is_exact(p_values, name="independence of chains", n_chains=N_CHAINS)


def test_chains_that_draw_their_own_directions_stay_independent() -> None:
    assert are_independent(hmc)


def test_a_direction_that_two_chains_share_is_killed() -> None:
    """Each chain's own distribution is still right, so that only the correlation shows it."""
    drawn = "order = drawn_order(streams, partitions, partition_order)"
    shared = f"{drawn}[xp.arange(streams.n_chains) // 2 * 2]"
    assert not are_independent(mutant(hmc, (drawn, shared)))
