"""Drifts that all members of a study share: what the rule sees of them, and how often it is fooled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.study import Rule, Study
from rayfbnn.study.rule import Judged, agreement, judge, reasons
from tests.support.model.linear import exact_outputs, linear_data, linear_spec
from tests.support.pages import ROOT
from tests.support.study import simulated
from tests.support.study.simulated import Simulated, members_agree

RULE = Rule()
FALSE_STOPS = 0.05  # the share of studies that docs/studies.md promises at most
PAGE = ROOT / "docs" / "studies.md"


def normal(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def judged(values: Array) -> Judged:
    return judge(values, tuple(range(len(values))), RULE)


def test_a_shift_is_the_error_that_early_draws_cause() -> None:
    """A tenth of the draws lies ten standard deviations off: the mean of all is off by one."""
    values = normal(10, 4, 1000)
    values[:, :, :100] += 10
    drift = agreement(values).drift
    assert drift.shift == pytest.approx(1, abs=0.02)
    assert drift.late == 0 and drift.growth == 0


def test_a_late_drift_is_the_change_between_the_last_two_quarters() -> None:
    values = normal(10, 4, 1000)
    values[:, :, 750:] += 1
    drift = agreement(values).drift
    second_half = values[:, :, 500:]
    change = values[:, :, 750:].mean() - values[:, :, 500:750].mean()
    assert drift.late == pytest.approx(change / second_half.std(), rel=0.05)


def test_growth_is_that_of_the_variance_of_the_means_of_chains() -> None:
    """In the second half each chain lies about one standard deviation to one side: half of the draws."""
    values = normal(20, 4, 1000)
    values[:, :, 500:] += normal(20, 4, 1, seed=3)
    drift = agreement(values).drift
    expected = (values[:, :, 500:].mean(axis=2).var() - values[:, :, :500].mean(axis=2).var()) / values.var()
    assert drift.growth == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        (lambda t: 0.01 * t, "its mean or spread still changes in all members alike"),
        (lambda t: 3 * 0.98**t, "early draws differ from late ones in all members alike"),
        (lambda t: np.where(t < 5, 50.0, 0.0), "early draws differ from late ones in all members alike"),
    ],
)
def test_a_drift_of_the_mean_is_a_reason_though_members_agree(
    moved: Callable[[Array], Array], words: str
) -> None:
    one = judged(normal(10, 4, 400) + moved(np.arange(400)))
    assert members_agree(one, RULE) and not one.ok
    (reason,) = reasons({"y[0]": one}, 400, {}, RULE)
    assert reason.startswith(f"y[0]: {words}")


@pytest.mark.parametrize("start", [0.3, 3.0])
def test_a_drift_of_the_spread_is_a_reason_though_members_agree(start: float) -> None:
    one = judged(normal(10, 4, 400) * (1 + (start - 1) * 0.98 ** np.arange(400)))
    assert members_agree(one, RULE) and not one.ok and one.drift is not None and one.drift > 0.05


def test_chains_that_diffuse_from_one_place_below_noise_are_a_reason() -> None:
    """A walk that hardly moves, below noise of one standard deviation: the chains' means move apart."""
    walk = 0.04 * np.cumsum(normal(10, 8, 200), axis=2)
    one = judged(walk + normal(10, 8, 200, seed=8))
    assert not one.ok and one.growth is not None and one.growth > RULE.max_rhat**2 - 1
    assert any("its chains still move apart" in reason for reason in reasons({"y": one}, 200, {}, RULE))


def test_a_chain_that_never_changes_is_a_reason_and_its_member_is_named() -> None:
    values = normal(20, 4, 400)
    values[3, 1] = 0.67  # as far from the middle as half of all draws
    one = judged(values)
    assert members_agree(one, RULE) and one.stuck == (3,) and not one.ok
    assert reasons({"y": one}, 400, {}, RULE) == ("y never changes in a chain of each of these seeds: 3",)


@pytest.mark.parametrize("places", [(0.0,), (0.0, 1.0), tuple(range(10))])
def test_chains_that_never_change_at_all_are_a_reason(places: tuple[float, ...]) -> None:
    """The variance within members is zero."""
    values = np.broadcast_to(np.resize(places, 10)[:, None, None], (10, 4, 100)).astype(float)
    assert not judged(values).ok


@pytest.mark.parametrize("n_draws", [1, 2, 3])
def test_draws_too_few_to_see_a_drift_are_a_reason(n_draws: int) -> None:
    one = judge(normal(40, 40, n_draws), tuple(range(40)), Rule(max_rhat=1.1, least_draws=1))
    assert one.drift is None
    sentences = reasons({"y": one}, n_draws, {}, Rule(max_rhat=1.1, least_draws=1))
    assert sentences == (f"{n_draws} draws of each chain are fewer than 4",)


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1e12, 1e150])
def test_the_verdict_does_not_depend_on_the_unit(scale: float) -> None:
    values = normal(10, 4, 200)
    assert judged(values * scale).ok
    assert not judged((values + 0.02 * np.arange(200)) * scale).ok


def test_a_linear_model_far_from_its_posterior_is_not_ok_though_all_members_agree(tmp_path: Path) -> None:
    """One small step an iteration from the default start: every output is ten or more sd from the truth."""
    spec = linear_spec(chains=4, iterations=100, stepsize=0.08)
    study = Study.create(tmp_path / "study", spec, seeds=10, data=linear_data(), rule=Rule(looks=1))
    mean, sd = exact_outputs()
    assert study.run(workers=0, progress=False).ok is False
    (look,) = study.looks()
    for name, one in look.quantities.items():
        assert members_agree(one, RULE), name
        assert not one.ok, name
        if name.startswith("y["):
            case = int(name[2:-1])
            assert one.mean is not None and abs(one.mean - mean[case]) > 10 * sd[case]
    assert look.max_drift is not None and look.max_drift > 1


@pytest.mark.parametrize(("rho", "distance"), [(0.98, 3), (0.99, 10), (0.999, 10)])
def test_studies_from_a_common_start_do_not_stop_while_their_means_are_off(
    rho: float, distance: float
) -> None:
    stops = simulated.stops(simulated.common(rho, distance, 10, 8), 10)
    by_agreement, by_rule = stops.false
    assert by_agreement >= 7 and by_rule == 0


@pytest.mark.parametrize(("members", "chains"), [(20, 4), (10, 8), (8, 2)])
def test_the_test_of_drift_does_not_delay_stationary_studies(members: int, chains: int) -> None:
    for rho in (0.0, 0.8):
        stops = simulated.stops(simulated.stationary(rho, members, chains), 10)
        assert stops.first[0] == stops.first[1] and stops.last == (10, 10)


def test_nearly_all_studies_of_many_stationary_quantities_stop_at_the_first_look() -> None:
    """A study of thirty independent quantities is delayed with a probability of at most 6 %."""
    stops = []
    for study in range(10):
        values = normal(30, 10, 4, 100, seed=study)
        quantities = {f"y[{number}]": judged(one) for number, one in enumerate(values)}
        stops.append(reasons(quantities, 100, {}, RULE) == ())
    assert sum(stops) >= 8  # 1 in 50 otherwise


def test_one_quantity_that_drifts_among_many_is_named() -> None:
    quantities = {f"y[{number}]": judged(normal(10, 4, 400, seed=number)) for number in range(20)}
    quantities["y[7]"] = judged(normal(10, 4, 400, seed=7) + 3 * 0.99 ** np.arange(400))
    (reason,) = reasons(quantities, 400, {}, RULE)
    assert reason.startswith("y[7]: ")


@pytest.mark.parametrize("every", [2, 5, 20])
def test_thinning_hides_no_drift(every: int) -> None:
    values = simulated.common(0.995, 10, 10, 8).draw(np.random.default_rng(2))
    one = judged(values[:, :, ::every])
    assert one.drift is not None and one.drift > 0.05 and not one.ok


def n_ok(draw: Callable[[int], Array]) -> int:
    """How many of ten studies the rule lets stop."""
    return sum(judged(draw(study)).ok for study in range(10))


def slow_below_noise(rho: float, study: int) -> Array:
    """A slow part three times as wide as the noise, in 100 draws from a start at its standard deviation."""
    slow = Simulated(rho, spread=0.0, common=1.0, looks=(100,)).draw(np.random.default_rng(study))
    return 3 * slow + normal(20, 4, 100, seed=100 + study)


def test_the_rule_is_as_blind_as_the_page_says() -> None:
    """Drifts below the noise in 100 draws of 20 members of four chains, and which of them more draws show."""
    assert n_ok(lambda study: normal(20, 4, 100, seed=study) + 0.001 * np.arange(100)) >= 8
    assert n_ok(lambda study: normal(20, 4, 800, seed=study) + 0.001 * np.arange(800)) == 0
    assert n_ok(lambda study: slow_below_noise(0.9999, study)) <= 3
    assert n_ok(lambda study: slow_below_noise(0.99999, study)) >= 8


@pytest.mark.long
def test_the_tables_of_the_page_are_those_of_the_simulations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    titles = ("| common start |", "| spread starts |", "| stationary |")
    tables = [line for line in simulated.lines() if line]
    assert [line for line in page.splitlines() if line in tables or line.startswith(titles)] == tables


def test_the_page_has_few_false_stops_in_every_cell() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    spread = next(number for number, row in enumerate(rows) if row.startswith("| spread starts"))
    stationary = next(number for number, row in enumerate(rows) if row.startswith("| stationary"))
    common = next(number for number, row in enumerate(rows) if row.startswith("| common start"))
    cells = [
        row.strip("| ").split(" | ")[1:]
        for row in (*rows[common + 1 : spread], *rows[spread + 1 : stationary])
    ]
    stops = [int(cell.split(", ")[1]) for row in cells for cell in row]
    assert len(stops) == 6 * len(simulated.COMMON_RHOS) + 3 * len(simulated.SPREAD_RHOS)
    assert max(stops) <= FALSE_STOPS * simulated.STUDIES
