"""The random numbers: Random123's known answers, their distributions, and their dependence on keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special
from scipy import stats

from rayfbnn.arrays import Array, gpu_is_available, to_host
from rayfbnn.kernels import choose
from rayfbnn.selftest.pivots import chi2_p_value, ks_p_value, square_p_value
from rayfbnn.streams import MAX_SEED, Purpose, Streams, Use, philox
from tests.support.known_answers import KNOWN_ANSWERS, KNOWN_ANSWERS_OF_7_ROUNDS

PLAIN_AND_COMPILED = pytest.mark.parametrize(
    "streams_class", [Streams, choose.streams_class("cpu")], ids=["plain", "compiled"]
)


def streams(n_chains: int = 4, *, seed: int = 1, first: int = 0) -> Streams:
    return Streams(seed, np.arange(first, first + n_chains, dtype=np.uint64), iteration=3, operation=2)


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "expected"),
    [(10, *each) for each in KNOWN_ANSWERS] + [(7, *each) for each in KNOWN_ANSWERS_OF_7_ROUNDS],
)
def test_philox_gives_the_known_answers(
    rounds: int, counter: list[int], key: list[int], expected: list[int]
) -> None:
    words = philox(
        tuple(np.array([word], dtype=np.uint64) for word in counter),
        tuple(np.array([word], dtype=np.uint64) for word in key),
        rounds=rounds,
    )
    assert [int(word[0]) for word in words] == expected


def test_every_purpose_has_a_number_of_its_own() -> None:
    numbers = [int(purpose) for purpose in Purpose.__members__.values()]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 2**8 for number in numbers)


def test_uniform_is_built_from_the_documented_counter() -> None:
    """Key (seed, chain), counter (block, purpose, operation, iteration), 52 bits from two words."""
    values = streams(2, seed=99, first=5).uniform(Purpose.ACCEPT, (3,), index=7, attempt=1)
    use = int(Purpose.ACCEPT) | 1 << 8 | 7 << 14
    for chain, number in itertools.product(range(2), range(3)):
        words = philox(
            tuple(np.array([word], dtype=np.uint64) for word in (number // 2, use, 2, 3)),
            tuple(np.array([word], dtype=np.uint64) for word in (99, 5 + chain)),
        )
        high, low = (int(word[0]) for word in (words[0:2] if number % 2 == 0 else words[2:4]))
        assert values[chain, number] == ((high >> 6) * 2**26 + (low >> 6) + 0.5) / 2**52


def test_uniforms_are_uniform_within_and_across_chains() -> None:
    values = streams(1_000).uniform(Purpose.MOMENTUM, (200,))
    assert ks_p_value(values) > 1e-5
    assert ks_p_value(values[0]) > 1e-5
    assert ks_p_value(values[:, 0]) > 1e-5
    assert 0 < values.min() and values.max() < 1


@pytest.mark.parametrize("what", ["chain", "iteration", "operation", "purpose", "index", "seed", "draw"])
def test_neighbouring_streams_are_independent(what: str) -> None:
    a, here = streams(100_000), {"shape": (2,)}
    other = {
        "chain": replace(a, chains=a.chains + np.uint64(1)),
        "iteration": a.at(iteration=4, operation=2),
        "operation": a.at(iteration=3, operation=3),
        "seed": replace(a, seed=2),
    }.get(what, a)
    u = a.uniform(Purpose.ACCEPT, **here)[:, 0]
    v = other.uniform(
        Purpose.WINDOW_OFFSET if what == "purpose" else Purpose.ACCEPT, index=int(what == "index"), **here
    )[:, int(what == "draw")]
    assert not (u == v).any()
    assert square_p_value(u, v) > 1e-5


def test_normals_are_normal_also_in_pairs() -> None:
    values = scipy.special.ndtr(streams(1_000).normal(Purpose.MOMENTUM, (200,)))
    assert ks_p_value(values) > 1e-5
    assert square_p_value(values[:, 0], values[:, 1]) > 1e-5


def test_normals_of_single_precision_are_built_from_the_documented_words() -> None:
    """Words w, x: radius from w/2 rounded down, angle from x as a signed number, its lowest bit the sign.

    The words come from seven rounds, and the four numbers of a block lie 16 places apart.
    """
    values = streams(2, seed=99, first=5).single_normal(Purpose.FRICTION, (128,), index=7)
    assert values.dtype == np.float32
    use = int(Purpose.FRICTION) | 7 << 14
    for chain, block in itertools.product(range(2), range(32)):
        words = philox(
            tuple(np.array([word], dtype=np.uint64) for word in (block, use, 2, 3)),
            tuple(np.array([word], dtype=np.uint64) for word in (99, 5 + chain)),
            rounds=7,
        )
        numbers: list[float] = []
        for w, x in np.array(words, dtype=int).reshape(2, 2):
            radius = math.sqrt(-2 * math.log((w // 2 + 0.5) / 2**31))
            odd = x | 1
            angle = math.pi / 2 * (odd - 2**32 if odd >= 2**31 else odd) / 2**31
            numbers += [(-1) ** (x % 2) * radius * math.cos(angle), radius * math.sin(angle)]
        first = block // 16 * 64 + block % 16
        assert values[chain, first : first + 64 : 16] == pytest.approx(numbers, abs=1e-5)


@PLAIN_AND_COMPILED
def test_normals_of_single_precision_are_standard_normal(streams_class: type[Streams]) -> None:
    """Kolmogorov's statistic, and the correlation of numbers of one block and of neighbouring blocks."""
    numbers = streams_class(7, np.arange(20, dtype=np.uint64), 3).single_normal(Purpose.FRICTION, (4, 5000))
    values = numbers.astype(np.float64)
    assert stats.kstest(values.ravel(), "norm").pvalue > 1e-4
    limit = 5 / np.sqrt(values[:, 0].size)
    for other in (np.roll(values, 1, axis=1), np.roll(values, 1, axis=2), np.roll(values, 1, axis=0)):
        for power in (1, 2):
            assert abs(np.corrcoef((values**power).ravel(), (other**power).ravel())[0, 1]) < limit


@pytest.mark.parametrize("shape", [0.0005, 0.025, 0.25, 0.9, 1.0, 1.5, 10.0, 1e4])
def test_log_gammas_have_their_distribution(shape: float) -> None:
    log_values = streams(50_000).log_gamma(shape, Purpose.PRECISION_COMMON)
    # For small values the regularised integral is x**a / Gamma(a + 1), which does not underflow in the log.
    small = np.exp(shape * np.minimum(log_values, -30) - scipy.special.gammaln(shape + 1))
    uniform = np.where(log_values < -30, small, scipy.special.gammainc(shape, np.exp(log_values)))
    assert np.isfinite(log_values).all()
    assert ks_p_value(uniform) > 1e-5


def test_log_gamma_takes_a_shape_for_each_value() -> None:
    shapes = np.array([0.5, 1.0, 7.0])
    together = streams(100).log_gamma(shapes, Purpose.PRECISION_UNIT, (3,))
    for column, shape in enumerate(shapes):
        alone = streams(100).log_gamma(
            np.where(np.arange(3) == column, shape, 2.0), Purpose.PRECISION_UNIT, (3,)
        )
        assert np.array_equal(together[:, column], alone[:, column])


@PLAIN_AND_COMPILED
def test_log_gammas_of_several_uses_have_the_bits_of_each(streams_class: type[Streams]) -> None:
    source = streams_class(3, np.arange(200, dtype=np.uint64), iteration=2, operation=1)
    uses = [
        Use(Purpose.PRECISION_UNIT, index=4, n=3),
        Use(Purpose.PRECISION_COMMON, index=4, n=1),
        Use(Purpose.PRECISION_UNIT, index=5, n=2, first=1),
    ]
    shapes = np.tile([0.3, 0.9, 2.0, 0.1, 50.0, 1.0], (200, 1))
    alone = [
        source.log_gamma(part, use.purpose, (use.n,), index=use.index, first=use.first)
        for part, use in zip(np.split(shapes, [3, 4], axis=1), uses, strict=True)
    ]
    assert np.array_equal(source.log_gammas(shapes, uses), np.concatenate(alone, axis=1))


@PLAIN_AND_COMPILED
def test_a_piece_of_a_request_has_the_bits_of_the_whole(streams_class: type[Streams]) -> None:
    source = streams_class(3, np.arange(50, dtype=np.uint64), iteration=2, operation=1)
    whole = source.uniform(Purpose.NOISE_CASE, (41,), attempt=2)
    assert np.array_equal(source.uniform(Purpose.NOISE_CASE, (7,), attempt=2, first=34), whole[:, 34:])
    shapes = np.random.default_rng(1).uniform(0.3, 4.0, (50, 31))
    gammas = source.log_gamma(shapes, Purpose.NOISE_CASE, (31,))
    for first, end in ((0, 5), (5, 6), (6, 31)):
        piece = source.log_gamma(shapes[:, first:end], Purpose.NOISE_CASE, (end - first,), first=first)
        assert np.array_equal(piece, gammas[:, first:end])


def test_integers_are_uniform() -> None:
    values = streams(50_000).integers(7, Purpose.WINDOW_OFFSET)
    assert values.dtype == np.int64
    assert chi2_p_value(np.bincount(values, minlength=7)) > 1e-5


@pytest.mark.parametrize(
    "draw",
    [
        lambda source: source.permutation(4, Purpose.PARTITION_ORDER),
        lambda source: source.shuffle(4, Purpose.MINIBATCH),
    ],
    ids=["permutation", "shuffle"],
)
def test_permutations_are_uniform_over_all(draw: Callable[[Streams], Array]) -> None:
    orders = draw(streams(50_000))
    assert (np.sort(orders, axis=1) == np.arange(4)).all()
    codes = orders @ np.array([64, 16, 4, 1])
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == math.factorial(4)
    assert chi2_p_value(counts) > 1e-5


def test_shuffles_bring_every_number_to_every_place() -> None:
    """All pairs of number and place in 200 equally often, so that all words of a group are in use."""
    n = 200
    orders = streams(20_000).shuffle(n, Purpose.MINIBATCH).astype(np.int64)
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    counts = np.bincount((orders * n + np.arange(n)).ravel(), minlength=n * n)
    # Rows and columns of the table have the same sums, which takes its degrees of freedom.
    expected = len(orders) / n
    statistic = ((counts - expected) ** 2).sum() / expected * (n - 1) / n
    assert stats.chi2.sf(statistic, (n - 1) ** 2) > 1e-5 and stats.chi2.cdf(statistic, (n - 1) ** 2) > 1e-5


def test_shuffles_of_iterations_are_independent() -> None:
    first, second = (
        streams(20_000).at(iteration=iteration).shuffle(5, Purpose.MINIBATCH).astype(np.int64)
        for iteration in (1, 2)
    )
    counts = np.bincount(first[:, 0] * 5 + second[:, 0], minlength=25)
    assert chi2_p_value(counts) > 1e-5


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_numbers_do_not_depend_on_the_batch(size: int) -> None:
    whole = streams(16)
    for first in range(0, 16 - size + 1, size):
        own = slice(first, first + size)
        part = replace(whole, chains=whole.chains[own])
        for draw in (
            lambda s: s.uniform(Purpose.ACCEPT),
            lambda s: s.normal(Purpose.MOMENTUM, (7,)),
            lambda s: s.log_gamma(0.3, Purpose.PRECISION_UNIT, (5,)),
            lambda s: s.permutation(4, Purpose.PARTITION_ORDER),
            lambda s: s.shuffle(70, Purpose.MINIBATCH),
            lambda s: s.integers(9, Purpose.WINDOW_OFFSET),
        ):
            assert np.array_equal(draw(part), draw(whole)[own])


def test_longer_requests_begin_with_the_shorter() -> None:
    longer = streams().uniform(Purpose.MOMENTUM, (40,))
    assert np.array_equal(streams().uniform(Purpose.MOMENTUM, (9,)), longer[:, :9])


def test_extreme_seeds_chains_and_iterations_are_allowed() -> None:
    assert MAX_SEED == 2**32 - 1
    far = Streams(MAX_SEED, np.array([2**32 - 1], dtype=np.uint64), iteration=2**32 - 1, operation=2**32 - 1)
    assert 0 < far.uniform(Purpose.ACCEPT)[0] < 1


@pytest.mark.parametrize("wrong", [{"attempt": 64}, {"index": 2**18}])
def test_a_counter_that_would_wrap_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        streams().uniform(Purpose.ACCEPT, **wrong)


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_is_available(), reason="needs CuPy and a GPU")
def test_the_gpu_draws_the_same_uniforms_bit_for_bit() -> None:
    import cupy

    here = streams(1_000)
    there = replace(here, chains=cupy.asarray(here.chains))
    assert np.array_equal(
        to_host(there.uniform(Purpose.MOMENTUM, (33,))), here.uniform(Purpose.MOMENTUM, (33,))
    )
    normals = to_host(there.normal(Purpose.MOMENTUM, (33,)))
    assert abs(normals - here.normal(Purpose.MOMENTUM, (33,))).max() < 1e-12
    log_gammas = to_host(there.log_gamma(0.3, Purpose.PRECISION_UNIT, (5,)))
    assert abs(log_gammas - here.log_gamma(0.3, Purpose.PRECISION_UNIT, (5,))).max() < 1e-9


@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_uniform_is_open_at_both_ends(monkeypatch: pytest.MonkeyPatch, word: int) -> None:
    def extreme_words(counter: tuple[Any, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(np.full(counter[0].shape, word, dtype=np.uint64) for _ in range(4))

    monkeypatch.setattr("rayfbnn.streams.philox", extreme_words)
    values = Streams(1, np.arange(2, dtype=np.uint64)).uniform(Purpose.ACCEPT, (3,))
    assert ((values > 0) & (values < 1)).all()


def test_no_two_chains_or_seeds_share_a_stream() -> None:
    """Normals of 32 chains under each of two seeds: every pair of rows is uncorrelated."""
    rows = np.concatenate([streams(32, seed=seed).normal(Purpose.MOMENTUM, (20_000,)) for seed in (1, 2)])
    correlations = np.corrcoef(rows)[np.triu_indices(64, 1)]
    assert np.abs(correlations).max() * np.sqrt(20_000) < 6  # 1 in 250,000 over all 2,016 pairs; seed fixed
