"""The rule by which a study stops: nested R-hat, its limits, and how often it stops too early."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from rayfbnn.study.files import Due, Look, due_look
from rayfbnn.study.rule import Rule, agreement, judge, plain_nested_rhat, reasons
from rayfbnn.study.sealed import grid
from tests.support.study.simulated import Simulated

RULE = Rule()
FALSE_STOPS = (
    0.05  # the share that docs/studies.md promises, of studies stopped above twice the allowed excess
)
DOUBLE = 1.02


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape)


@pytest.mark.parametrize(
    ("numbers", "limits", "sentence"),
    [
        ({"rhat": 1.01235}, {"max_rhat": 1.0123456}, ": nested R-hat 1.01235 is above 1.012346; "),
        ({"rhat": 1.02}, {}, ": nested R-hat 1.02 is above 1.01; "),
        ({"mcse": 0.0500001}, {}, ": the error of its mean 0.0500001 sd is above 0.05; "),
        ({"mcse": 0.03, "drift": 0.041}, {}, "with the error of 0.03 sd, added in squares, that 0.0508"),
        (
            {"growth": 0.02015},
            {},
            "0.02015 of the whole from the first half of the draws to the second, above 0.02",
        ),
        ({"growth": 0.0201004}, {}, "grows by 0.0201004 of the whole"),
    ],
)
def test_numbers_just_beyond_their_limit_are_seen_to_be(
    numbers: dict[str, float], limits: dict[str, float], sentence: str
) -> None:
    one = judge(normal(4, 4, 100), (1, 2, 3, 4), RULE)
    fine = {"rhat": 1.0, "mcse": 0.01, "drift": 0.0, "late": 0.0, "growth": 0.0}
    (reason,) = reasons({"f0": one.model_copy(update=fine | numbers)}, 100, {}, Rule(**limits))
    assert sentence in reason


def test_a_quantity_without_a_mean_is_judged_by_its_median() -> None:
    values = np.random.default_rng(4).standard_cauchy((20, 4, 400))
    one = judge(values, tuple(range(20)), RULE)
    assert one.ok and one.center == "median" and one.mean is None and one.sd is None
    medians = np.median(values, axis=(1, 2))
    # 68 % of a Cauchy distribution lie within tan(0.34 pi) = 1.82.
    assert one.mcse == pytest.approx(medians.std(ddof=1) / math.sqrt(20) / 1.82, rel=0.1)
    apart = judge(values + 0.8 * normal(20, 1, 1), tuple(range(20)), Rule(max_rhat=2))
    (reason,) = reasons({"sigma": apart}, 400, {}, Rule(max_rhat=2))
    assert reason.startswith("sigma: the error of its median (its tails are too heavy for a mean) 0.0")
    assert " of half its central 68 % is above 0.05; seeds farthest from the middle: " in reason


@pytest.mark.parametrize("df", [5, 30])
def test_tails_that_a_mean_can_bear_leave_it_the_mean(df: int) -> None:
    values = np.random.default_rng(4).standard_t(df, (20, 4, 400))
    one = judge(values, tuple(range(20)), RULE)
    assert one.center == "mean" and one.mean == pytest.approx(values.mean(), rel=1e-5)
    assert one.sd == pytest.approx(values.std(), rel=1e-5)


def test_numbers_on_record_have_six_digits() -> None:
    values = 1234.56789 + normal(4, 4, 100)
    one = judge(values, (1, 2, 3, 4), RULE)
    error = values.mean(axis=(1, 2)).std(ddof=1) / 2 / values.std()
    expected = [values.mean(), values.std(), agreement(values).rhat, error]
    assert [one.mean, one.sd, one.rhat, one.mcse] == [float(f"{value:.6g}") for value in expected]


def test_nested_rhat_is_the_formula() -> None:
    """Two superchains of two chains of two draws can be computed by hand."""
    values = np.array([[[0.0, 2.0], [2.0, 4.0]], [[4.0, 6.0], [6.0, 8.0]]])
    # Means of superchains 2 and 6: B = 8. In each: variance of the means 1, 3 is 2, and in chains 2. W = 4.
    assert plain_nested_rhat(values) == pytest.approx(math.sqrt(1 + 8 / 4))


@pytest.mark.parametrize("n_draws", [1, 2, 3, 4, 5, 50])
def test_few_and_many_draws_give_nearly_one_if_stationary_and_more_if_not(n_draws: int) -> None:
    stationary = normal(16, 16, n_draws)
    assert agreement(stationary).rhat < 1.06
    remembered = stationary + 0.5 * np.random.default_rng(8).standard_normal((16, 1, 1))
    assert agreement(remembered).rhat > 1.06
    assert agreement(stationary * np.linspace(0.2, 3, 16)[:, None, None]).rhat > 1.06  # the tails differ


@pytest.mark.parametrize("n_draws", [1, 2, 3])
@pytest.mark.parametrize("is_tail", [False, True])
def test_few_draws_are_judged_by_normal_scores_of_their_ranks(n_draws: int, is_tail: bool) -> None:
    """Vehtari et al. (2021), eq. 14: the score of rank r among S draws is Phi^-1((r - 3/8) / (S + 1/4))."""
    apart = np.array([0.1, 1.0, 10.0])[:, None, None]
    values = normal(3, 4, n_draws) * apart if is_tail else normal(3, 4, n_draws) + apart
    folded = np.abs(values - np.median(values))
    expected = []
    for one in (values, folded):
        ranks = [1 + (one < value).sum() for value in one.ravel()]
        scores = [NormalDist().inv_cdf((rank - 3 / 8) / (one.size + 1 / 4)) for rank in ranks]
        expected.append(plain_nested_rhat(np.reshape(scores, one.shape)))
    assert (expected[1] > expected[0]) == is_tail
    assert agreement(values).rhat == pytest.approx(max(expected))


def test_ranks_take_values_without_variance() -> None:
    assert math.isfinite(agreement(np.random.default_rng(3).standard_cauchy((8, 4, 40))).rhat)
    assert math.isnan(agreement(np.ones((4, 2, 10))).rhat)
    assert math.isnan(agreement(normal(1, 4, 10)).rhat)
    assert math.isnan(agreement(np.full((4, 2, 10), np.inf)).rhat)


def test_a_quantity_is_ok_within_both_limits_and_names_who_is_apart() -> None:
    values = normal(8, 4, 400)
    assert judge(values, tuple(range(8)), RULE).ok
    values[2] += 3
    judged = judge(values, (10, 11, 12, 13, 14, 15, 16, 17), RULE)
    assert not judged.ok and 12 in judged.apart and len(judged.apart) == 3
    (reason,) = reasons({"sigma_noise": judged}, 400, {}, RULE)
    assert reason.startswith("sigma_noise: nested R-hat 1.") and "12" in reason
    few = judge(normal(2, 1, 8), (1, 2), Rule(max_rhat=9, max_mcse=0.01))
    assert not few.ok and few.mcse is not None and few.mcse > 0.01


def test_a_quantity_that_never_changes_is_a_reason() -> None:
    judged = judge(np.ones((4, 2, 10)), (1, 2, 3, 4), RULE)
    assert not judged.ok
    assert reasons({"sigma_ih0": judged}, 500, {}, RULE) == ("sigma_ih0 never changes",)


def test_too_few_draws_and_failures_are_reasons() -> None:
    assert reasons({}, 99, {4: "no proposal is accepted"}, RULE) == (
        "seed 4 failed: no proposal is accepted",
        "99 draws of each chain are fewer than 100",
    )


def look(number: int, iterations: int, action: str, seeds: tuple[int, ...] = (1, 2)) -> Look:
    return Look.model_construct(
        number=number, iterations=iterations, seeds=seeds, ok=action == "stop", action=action
    )


def test_looks_follow_each_other_at_fixed_lengths() -> None:
    lengths = [25, 50, 100]
    assert due_look([], lengths, (1, 2)) == Due(1, 25, (1, 2), False)
    assert due_look([look(1, 25, "continue")], lengths, (1, 2)) == Due(2, 50, (1, 2), False)
    assert due_look([look(2, 50, "continue")], lengths, (1, 2)) == Due(3, 100, (1, 2), True)
    for action in ("stop", "end"):
        assert due_look([look(3, 100, action)], lengths, (1, 2)) is None
    assert due_look([look(1, 50, "stop")], lengths, (1, 2, 3)) == Due(2, 50, (1, 2, 3), False)


def test_commas_in_brackets_and_quotes_do_not_divide_values() -> None:
    assert grid(['network.hidden=[{units=2,activation="tanh"}],[]', "chains=1, 2"]) == [
        ('network.hidden=[{units=2,activation="tanh"}]', "chains=1"),
        ('network.hidden=[{units=2,activation="tanh"}]', "chains=2"),
        ("network.hidden=[]", "chains=1"),
        ("network.hidden=[]", "chains=2"),
    ]
    assert grid([]) == [()]
    assert grid(["model.noise='a,b',\"c\""]) == [("model.noise='a,b'",), ('model.noise="c"',)]


def false_stops(studies: Simulated, count: int) -> float:
    """Share of studies that stop at a look whose true nested R-hat is above twice the allowed excess."""
    true = {draws: studies.true_rhat(draws) for draws in studies.looks}
    generator = np.random.default_rng(11)
    stops = [studies.stops_at(generator, RULE) for _ in range(count)]
    return sum(draws is not None and true[draws] > DOUBLE for draws in stops) / count


def test_chains_that_never_mix_do_not_stop_a_study() -> None:
    generator = np.random.default_rng(5)
    studies = Simulated(rho=0.5, spread=1.0, apart=3.0)
    assert [studies.stops_at(generator, RULE) for _ in range(20)] == [None] * 20


def test_independent_draws_stop_at_the_first_look() -> None:
    generator = np.random.default_rng(5)
    studies = Simulated(rho=0.0)
    assert [studies.stops_at(generator, RULE) for _ in range(20)] == [100] * 20


@pytest.mark.long
@pytest.mark.parametrize("rho", [0.5, 0.9, 0.95, 0.98, 0.99, 0.995])
def test_few_studies_of_known_autocorrelation_stop_early(rho: float) -> None:
    assert false_stops(Simulated(rho=rho), 200) <= FALSE_STOPS


@pytest.mark.long
@pytest.mark.parametrize(("apart", "most"), [(1.0, FALSE_STOPS), (2.0, 0.0), (4.0, 0.0)])
def test_few_or_no_studies_of_chains_that_never_mix_stop(apart: float, most: float) -> None:
    """Modes one standard deviation apart have a true R-hat of 1.03 alone, with four chains a member."""
    assert false_stops(Simulated(rho=0.9, spread=1.0, apart=apart), 200) <= most
