"""Rejection sampling: draws are exact, independent of the number proposed at once, and the search ends."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.rejection import most_expected, rejection_draws
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams


def triangle(streams: Streams) -> tuple[Array, Array, Array]:
    """Uniform proposals accepted with their own value as probability: density 2 x on (0, 1)."""
    position = streams.uniform(Purpose.INITIAL_PARAMETER, (2,))
    return position, position[:, :1], np.log(position[:, 0])


def drawn(propose=triangle, *, seed: int = 3, draws: int = 1_000, chains_per_round: int = 256, **options):
    options = {"max_proposals": 10**6, **options}
    parts = rejection_draws(propose, seed=seed, draws=draws, chains_per_round=chains_per_round, **options)
    positions, precisions = zip(*parts, strict=True)
    return np.concatenate(positions), np.concatenate(precisions)


def test_draws_have_the_target_distribution() -> None:
    position, _ = drawn(draws=50_000, chains_per_round=10_000)
    assert ks_p_value(position[:, 0] ** 2) > 1e-5
    assert ks_p_value(position[:, 1]) > 1e-5


def test_accepting_all_or_by_another_power_is_killed() -> None:
    for power in (0.0, 0.5, 2.0):

        def propose(streams: Streams, power: float = power) -> tuple[Array, Array, Array]:
            position, precisions, log_acceptance = triangle(streams)
            return position, precisions, power * log_acceptance

        position, _ = drawn(propose, draws=5_000, chains_per_round=10_000)
        assert ks_p_value(position[:, 0] ** 2) < 1e-5


def test_proposals_have_an_operation_that_no_run_has() -> None:
    """So a run and its check share no random numbers, even with one seed."""
    places = []

    def propose(streams: Streams) -> tuple[Array, Array, Array]:
        places.append((streams.seed, streams.iteration, streams.operation))
        return triangle(streams)

    drawn(propose, seed=3, draws=500)
    assert set(places) == {(3, 1, 2**32 - 1)} and len(places) > 1


def test_as_many_draws_as_asked_for_and_their_own_precisions() -> None:
    for draws in (1, 7, 1_000):
        position, precisions = drawn(draws=draws)
        assert len(position) == draws
        assert np.array_equal(position[:, :1], precisions)


def test_draws_do_not_depend_on_the_size_of_a_round() -> None:
    whole, _ = drawn(draws=300, chains_per_round=1_000)
    for size in (1, 7, 256):
        part, _ = drawn(draws=300, chains_per_round=size)
        assert np.array_equal(part, whole)


def test_draws_share_no_numbers_with_a_run_of_the_same_seed() -> None:
    position, _ = drawn(draws=50)
    streams = chain_streams(3, 1_000)
    for iteration in (0, 1, 2):
        used = streams.at(iteration=iteration).uniform(Purpose.INITIAL_PARAMETER, (2,))
        assert not np.isin(position, used).any()


def test_progress_is_told_after_each_round() -> None:
    told: list[tuple[int, int]] = []
    drawn(draws=100, chains_per_round=50, on_progress=lambda accepted, tried: told.append((accepted, tried)))
    assert [tried for _, tried in told[:-1]] == [50 * (n + 1) for n in range(len(told) - 1)]
    assert told[-1][0] == 100
    assert told[-2][1] < told[-1][1] <= told[-2][1] + 50
    assert all(a <= b for (a, _), (b, _) in zip(told, told[1:], strict=False))


def test_an_acceptance_probability_above_one_is_a_bug() -> None:
    def propose(streams: Streams) -> tuple[Array, Array, Array]:
        position, precisions, log_acceptance = triangle(streams)
        return position, precisions, log_acceptance + 0.1

    with pytest.raises(AssertionError, match="above one"):
        drawn(propose)


def test_rounding_above_one_is_forgiven() -> None:
    def propose(streams: Streams) -> tuple[Array, Array, Array]:
        position, precisions, log_acceptance = triangle(streams)
        return position, precisions, np.full_like(log_acceptance, 1e-12)

    assert len(drawn(propose)[0]) == 1_000


def test_nan_is_a_rejection() -> None:
    def propose(streams: Streams) -> tuple[Array, Array, Array]:
        position, precisions, log_acceptance = triangle(streams)
        return position, precisions, np.where(position[:, 0] < 0.5, np.nan, log_acceptance)

    assert (drawn(propose)[0][:, 0] >= 0.5).all()


@pytest.mark.parametrize(("log_acceptance", "words"), [(-np.inf, "0 of 10"), (-8.0, r"[1-9] of 10")])
def test_too_few_accepted_stops_with_the_count_and_what_to_change(log_acceptance: float, words: str) -> None:
    def propose(streams: Streams) -> tuple[Array, Array, Array]:
        position, precisions, _ = triangle(streams)
        return position, precisions, np.full(streams.n_chains, log_acceptance)

    with pytest.raises(SamplingError, match=words + r" draws after 5,000 proposals .*fewer draws"):
        drawn(propose, draws=10, max_proposals=5_000)


def never(streams: Streams) -> tuple[Array, Array, Array]:
    position, precisions, _ = triangle(streams)
    return position, precisions, np.full(streams.n_chains, -np.inf)


@pytest.mark.parametrize("chains_per_round", [100, 1_000])
def test_a_hopeless_case_stops_early_and_says_what_to_change(chains_per_round: int) -> None:
    told: list[int] = []
    words = r"max_proposals = 1,000,000 cannot suffice; use fewer training cases.* less vague priors.*"
    with pytest.raises(SamplingError, match=r"0 of 1,000 draws .*" + words + "--max-proposals"):
        drawn(never, chains_per_round=chains_per_round, on_progress=lambda _, tried: told.append(tried))
    # With 1,000 draws per million proposals, 28 are expected in 28,000; none at all has probability 1e-12.
    assert told[-1] == 28_000 if chains_per_round == 1_000 else 27_600 < told[-1] <= 27_700


def test_a_case_that_can_just_succeed_is_not_given_up() -> None:
    """About half of the proposals are accepted, and a little more than half is enough."""
    position, _ = drawn(draws=10_000, chains_per_round=50, max_proposals=20_600)
    assert len(position) == 10_000


@pytest.mark.parametrize("n_accepted", [0, 1, 3, 10, 100])
def test_the_most_that_could_have_been_expected_is_a_bound(n_accepted: int) -> None:
    chance = scipy.special.pdtr(n_accepted, most_expected(n_accepted))  # the probability of so few or fewer
    assert 1e-16 < chance <= 1e-6
    mean = most_expected(n_accepted)
    assert np.exp(-((mean - n_accepted) ** 2) / (2 * mean)) == pytest.approx(1e-6)  # Chernoff's bound


def test_the_last_count_of_proposals_does_not_depend_on_the_size_of_a_round() -> None:
    counts = []
    for size in (1, 7, 256):
        told: list[tuple[int, int]] = []
        drawn(draws=300, chains_per_round=size, on_progress=lambda *pair, told=told: told.append(pair))
        counts.append(told[-1])
    assert len(set(counts)) == 1 and counts[0][0] == 300
