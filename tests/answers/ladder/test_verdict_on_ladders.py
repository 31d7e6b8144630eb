"""The verdict on ladders: neither R-hat nor round trips make it good, and phases are named with their gap."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.answers.diagnostics import Diagnosis
from rayfbnn.answers.judging.ladder_evidence import LadderEvidence, Phase, common_level, error_by_halves
from rayfbnn.answers.judging.ladder_verdict import judge_ladders, overruled, weighed_by_evidence
from rayfbnn.answers.judging.verdicts import Verdict, VerdictEvidence, judge_hyperparameters, summarize
from rayfbnn.draws.ladders import LadderDraws
from rayfbnn.draws.subsets import chosen
from rayfbnn.draws.view import committed
from rayfbnn.output.facts import html_of
from rayfbnn.reporting.report import glance_section
from rayfbnn.reporting.reported_run import ReportedCases, read_run
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.store.ladder_runs import ladder_spec, run_in_phases

GOOD = LadderEvidence(
    kind="noise",
    held=(0.5, 0.2, 0.1),
    ladders=(0, 1, 2, 3),
    measured="log_rss",
    rhat=(1.001, 1.002, 1.004, 1.006),
    rejection=(0.5, 0.5, 0.5),
    common=0,
    log_z=(-97.0, -97.1, -96.9, -97.05),
    errors=(0.1, 0.1, 0.1, 0.1),
    families=("chains", "prior", "chains", "prior"),
    trips=(16, 15, 17, 16),
    phases=(Phase((0, 1, 2, 3), 1285.0, 0.05, -97.0, 0.0),),
)


def test_agreement_from_both_sides_is_converged() -> None:
    verdict = judge_ladders(GOOD)
    assert verdict.grade == "converged" and verdict.is_sound
    assert verdict.remarks[0] == "the ladders agree in log RSS at all 4 levels (R-hat at most 1.01)"


def test_low_rhat_and_many_round_trips_do_not_make_a_verdict_good() -> None:
    """On UCI energy, ladders in the lighter phase had 16 round trips and an R-hat of 1.04."""
    heavy, light = Phase((0, 2), 1285.0, 0.05, -97.0, 0.0), Phase((1, 3), 1170.0, 0.07, -141.0, 44.0)
    verdict = judge_ladders(
        replace(
            GOOD,
            rhat=(1.0, 1.0, 1.009, 1.009),
            common=2,
            log_z=(-97.0, -141.0, -96.9, -141.1),
            phases=(heavy, light),
        )
    )
    assert verdict.grade == "not converged" and not verdict.is_sound
    assert "differs by 0.071 nats within families and 44 between them" in verdict.decided_by
    assert "ladders 1 and 3: log likelihood 1170, noise 0.07, lighter by 44 nats" in "\n".join(
        verdict.remarks
    )


def test_ladders_from_one_side_prove_nothing() -> None:
    """Ladders that were filled with the same chains agree perfectly."""
    verdict = judge_ladders(replace(GOOD, families=("chains",) * 4))
    assert verdict.grade == "cannot tell"
    assert verdict.decided_by == "all these ladders started from one side; evidence needs both"


def test_evidence_that_is_too_imprecise_cannot_tell() -> None:
    verdict = judge_ladders(replace(GOOD, log_z=(-97.0, -97.9, -96.2, -97.0), errors=(0.6,) * 4))
    assert verdict.grade == "cannot tell" and "standard error of 0.6 nats only" in verdict.decided_by


def test_a_spread_that_chance_explains_is_no_disagreement() -> None:
    """With probability 0.01 the standard deviation of two of four is above 4.6 errors, of eight of 16 2.0."""
    values = (-97.0, -97.1, -97.55, -97.0)  # standard deviations 0.39 and 0.07
    assert judge_ladders(replace(GOOD, log_z=values, errors=(0.09,) * 4)).grade == "cannot tell"
    assert judge_ladders(replace(GOOD, log_z=values, errors=(0.08,) * 4)).grade == "not converged"
    # A difference of both families is above 4.6 errors of one of four ladders, too.
    apart = replace(GOOD, log_z=(-97.0, -97.4, -97.0, -97.4))
    assert judge_ladders(replace(apart, errors=(0.1,) * 4)).grade == "cannot tell"
    assert judge_ladders(replace(apart, errors=(0.085,) * 4)).grade == "not converged"
    many = replace(
        GOOD,
        ladders=tuple(range(16)),
        families=("chains", "prior") * 8,
        log_z=(-97.0, -97.1, -97.7, -97.1) * 4,  # standard deviations 0.37 and 0
        trips=(5,) * 16,
        phases=(Phase(tuple(range(16)), 1285.0, 0.05, -97.0, 0.0),),
    )
    assert judge_ladders(replace(many, errors=(0.19,) * 16)).grade == "cannot tell"
    assert judge_ladders(replace(many, errors=(0.18,) * 16)).grade == "not converged"


def test_slow_changes_count_as_errors_of_log_z() -> None:
    """Log Z that changes by 2 from half to half has an error of 1, whatever the autocorrelations say."""
    noise = Streams(4, np.arange(4, dtype=np.uint64)).normal(Purpose.PROPOSAL, (400, 2)) / 2
    drift = np.where(np.arange(400) < 200, -1.0, 1.0)
    levels = LadderDraws(
        kind="noise",
        held=(0.5,),
        ladders=(0, 1, 2, 3),
        families=GOOD.families,
        measured="log_rss",
        measure=noise,
        forward=noise[:, :, :1] - drift[:, None] + 1 / 8,
        reverse=noise[:, :, 1:] + drift[:, None] + 1 / 8,
        replica=np.zeros((4, 400)),
        trips=np.zeros(4, dtype=int),
    )
    assert error_by_halves(levels, 0) == pytest.approx(1.0, abs=0.1)
    # In the second half, neighbours are so far apart that log Z of this half could be anything.
    apart = np.where(drift > 0, 30.0, 1 / 8)[:, None]
    unknown = replace(levels, forward=noise[:, :, :1] + apart, reverse=noise[:, :, 1:] + apart)
    assert error_by_halves(unknown, 0) >= 1


def test_ladders_without_a_climb_show_nothing() -> None:
    """With a hot level at the posterior, R-hat, log Z and round trips are perfect whatever was missed."""
    flat = judge_ladders(replace(GOOD, held=(0.1, 0.09, 0.085), log_z=(0.0,) * 4))
    assert flat.grade == "cannot tell" and not flat.is_sound
    assert flat.decided_by.startswith("the hottest level, noise 0.1, is hardly hotter than the coldest")
    assert flat.advice == ("sample again with a larger ladder.hot, or without one",)
    powers = replace(GOOD, kind="powers", measured="data_energy", held=(0.9, 0.95, 0.98))
    assert judge_ladders(powers).advice == ("sample again with a smaller ladder.hot, or without one",)
    assert judge_ladders(replace(powers, held=(0.01, 0.1, 0.5))).grade == "converged"


def test_ladders_without_a_level_in_common_cannot_tell() -> None:
    verdict = judge_ladders(replace(GOOD, rhat=(1.2, 1.3, 1.4, 1.5), common=None))
    assert verdict.grade == "cannot tell"
    assert "no level in common to compare log Z from: R-hat is at least 1.20" in verdict.decided_by


def test_rhat_and_round_trips_are_necessary() -> None:
    high = judge_ladders(replace(GOOD, rhat=(1.001, 1.002, 1.008, 1.03)))
    assert high.grade == "not converged" and high.is_sound
    assert high.remarks[0] == "converged for noise of 0.1 and more, in standard deviations of the targets"
    still = judge_ladders(replace(GOOD, trips=(3, 0, 2, 0)))
    assert still.grade == "not converged"
    assert still.decided_by == "no replica has made a round trip between both ends in ladders 1 and 3"


def test_the_number_of_levels_that_agree_is_told() -> None:
    hot = judge_ladders(replace(GOOD, rhat=(1.02, 1.002, 1.004, 1.006)))
    assert hot.remarks[0] == "the ladders agree in log RSS at 3 of 4 levels, but not at the hottest"
    none = judge_ladders(replace(GOOD, rhat=(1.02, math.nan, 1.03, 1.04)))
    assert none.remarks[0] == "the ladders agree in log RSS at no level"
    assert "at 4 of 4 levels: nan at noise 0.2" in none.decided_by


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        ({"rhat": (1.0, 1.0, 1.0, 1.0104)}, "above 1.01 at 1 of 4 levels: 1.0104 at the posterior"),
        ({"rhat": (1.0502, 1.3, 1.4, 1.5), "common": None}, "R-hat is at least 1.0502 at the hotter levels"),
        ({"errors": (0.3004,) * 4}, "the standard error of log Z is 0.3004 nats (at most 0.3)"),
        ({"log_z": (-97.0, -97.301, -97.0, -97.301)}, "0 nats within families and 0.301 between them (at"),
        ({"log_z": (-97.0, -97.0, -97.425, -97.0)}, "differs by 0.301 nats within families and 0.21 between"),
    ],
)
def test_numbers_just_beyond_their_limit_are_seen_to_be(evidence: dict[str, Any], sentence: str) -> None:
    verdict = judge_ladders(replace(GOOD, **{"errors": (0.01,) * 4} | evidence))
    assert not verdict.ok and sentence in "\n".join(verdict.reasons)


def test_the_common_level_is_the_hottest_at_which_ladders_agree() -> None:
    assert common_level((1.0, 1.01, 1.2, 1.3)) == 0
    assert common_level((1.1, 1.04, 1.2, 1.0)) == 1
    assert common_level((math.nan, 1.0, 1.0, 1.0)) == 1
    # Ladders that agree at cold levels only may have parted above them; on yacht they had.
    assert common_level((1.2, 1.2, 1.0, 1.0)) is None


def test_log_z_is_not_known_where_levels_share_no_draws() -> None:
    """Bennett's ratio then gives any number: on UCI energy one that was 130 nats below the others."""
    apart = replace(
        GOOD,
        log_z=(-97.0, -230.0, -96.9, -97.05),
        errors=(0.1, math.inf, 0.1, 0.1),
        phases=(Phase((0, 2, 3), 1285.0, 0.05, -97.0, 0.0), Phase((1,), 1170.0, 0.07, -230.0, 133.0)),
    )
    verdict = judge_ladders(apart)
    assert verdict.grade == "cannot tell" and not verdict.is_sound and apart.weights == (0.25,) * 4
    assert "log Z of ladder 1 is not known" in verdict.decided_by
    assert "unknown in ladder 1" in verdict.remarks[1] and "its weight is not known" in verdict.remarks[3]
    assert "more ladder.levels or ladder.adaptation" in verdict.advice[0]
    run, sentence = weighed_by_evidence("all draws", verdict)  # type: ignore[arg-type]  # not looked at
    assert (run, sentence) == ("all draws", "")


def test_phases_weigh_by_evidence_and_share_it_among_their_ladders() -> None:
    phases = (Phase((0, 1, 3), 0.0, 0.1, 2.0, 0.0), Phase((2,), 0.0, 0.1, 1.0, 1.0))
    heavy = 1 / (1 + math.exp(-1))
    assert np.allclose(
        replace(GOOD, phases=phases).weights, [heavy / 3, heavy / 3, 1 - heavy, heavy / 3], rtol=1e-12
    )


def test_a_verdict_on_predictions_is_not_better_than_the_evidence() -> None:
    usable = Verdict("predictions", "usable")
    assert overruled(usable, judge_ladders(GOOD)) == usable
    assert overruled(usable, judge_ladders(replace(GOOD, errors=(0.6,) * 4))).grade == "cannot tell"
    apart = replace(GOOD, log_z=(-97.0, -99.0, -97.1, -99.1))
    assert overruled(usable, judge_ladders(apart)).grade == "not usable"
    # One length is advised, that of the ladders, and none if more iterations would not help.
    longer, longest = "continue with: resume --iterations 60", "continue with: resume --iterations 270"
    asked = replace(usable, advice=("more units", longer), resume=longer)
    ladders = replace(judge_ladders(apart), advice=(longest,))
    assert overruled(asked, ladders).advice == ("more units", longest)
    stuck = replace(judge_ladders(GOOD), obstacle="neighbours never exchange")
    assert overruled(asked, stuck).advice == ("more units",)
    assert overruled(asked, judge_ladders(GOOD)).advice == asked.advice


def test_sentences_on_ladders_keep_the_names_of_inputs(tmp_path: Path) -> None:
    names = ["sigma_inputs_hidden[chain 2]", "sigma_inputs_hidden[the chain]"]
    values = np.random.default_rng(1).normal(size=(4, 400)) + 5 * np.arange(4)[:, None]
    still = np.where(np.arange(4)[:, None] == 2, 0.0, values)
    summary = summarize([(names[0], values), (names[1], still)])
    summary = replace(summary, table=summary.table.assign(iterations=math.nan))
    evidence = VerdictEvidence(summary, 4, 400, "", (), ladder_spec(tmp_path), "run.zarr", "ladder")
    verdict = overruled(judge_hyperparameters(evidence), judge_ladders(GOOD))
    assert verdict.reasons[0] == f"quantities that never change in ladder 2: {names[1]}" and verdict.is_stuck
    assert all(f"{name} " in verdict.reasons[1] for name in names)


def _of_hundreds() -> LadderEvidence:
    """Evidence of 256 ladders in two large phases and twenty of one ladder, of which half make no trips."""
    ladders, n_small = tuple(range(256)), 20
    sizes = [ladders[:200], ladders[200:236], *((ladder,) for ladder in ladders[236:])]
    phases = tuple(Phase(of_one, 1200.0 - n, 0.05, -100.0 - n, float(n)) for n, of_one in enumerate(sizes))
    assert len(phases) == 2 + n_small
    return replace(
        GOOD,
        ladders=ladders,
        log_z=tuple(-100.0 - number % 2 - (number > 199) for number in ladders),
        errors=(0.1,) * 256,
        families=("chains", "prior") * 128,
        trips=(0, 0, 5, 5) * 64,
        phases=phases,
    )


def test_hundreds_of_ladders_are_counted_by_their_side_and_not_listed() -> None:
    verdict = judge_ladders(_of_hundreds())
    lines = [*verdict.reasons, *verdict.remarks, *verdict.advice]
    assert all(len(re.findall(r"[0-9][0-9.]*", line)) <= 10 for line in lines)
    assert "in 128 ladders (64 from chains, 64 from the prior)" in verdict.reasons[1]
    assert (
        "mean -100.2 and standard deviation 0.42 (128 ladders from chains), mean -101.2 and standard"
        " deviation 0.42 (128 ladders from the prior)"
    ) in verdict.remarks[1]
    phases = verdict.remarks[2:]
    assert phases[0].startswith("200 ladders (100 from chains, 100 from the prior): log likelihood 1200")
    assert phases[2].startswith("ladder 236: ") and len(phases) == 7
    assert phases[-1] == "16 further phases with 16 ladders, lighter by 6 nats and more"
    unknown = judge_ladders(replace(_of_hundreds(), errors=(math.inf,) * 250 + (0.1,) * 6))
    assert "log Z of 250 ladders (125 from chains, 125 from the prior) is not known" in unknown.decided_by
    assert unknown.remarks[-1] == "16 further phases with 16 ladders"


@pytest.fixture(scope="module")
def in_phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phases")
    spec = ladder_spec(folder, settings={"annealing": 4, "adaptation": 8}, iterations=60)
    run_in_phases(folder / "run.zarr", spec, gap=3.0)
    return folder / "run.zarr"


def test_diagnose_names_phases_with_their_gap(in_phases: Path) -> None:
    diagnosis = api.diagnose(in_phases, fit=False)
    assert isinstance(diagnosis, Diagnosis) and diagnosis.ladders is not None
    evidence = diagnosis.ladders.evidence
    assert evidence is not None and evidence.common == 0
    assert [phase.ladders for phase in evidence.phases] == [(0, 2), (1, 3)]
    assert abs(evidence.phases[1].gap - 3) < 4 * evidence.error  # 1 in 16,000 if correct; seed fixed
    assert diagnosis.ladders.grade == "not converged" and not diagnosis.ok
    assert not diagnosis.predictions.ok and not api.diagnose(in_phases, decisive="predictions", fit=False).ok
    assert "ladders: not converged" in str(diagnosis)
    document = json.loads(diagnosis.to_json())["ladders"]
    assert document["evidence"]["phases"][1]["ladders"] == [1, 3] and document["grade"] == "not converged"


def test_predictions_weigh_phases_and_have_equal_weights_beside_them(
    in_phases: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = in_phases.parent / "train.csv"
    both = api.predict(in_phases, data=data)
    assert both.equal_weights is not None and "its ladders count by exp(log Z)" in caplog.text
    heavy = api.predict(in_phases, data=data, chains=[0, 2]).table["y_mean"]
    light = api.predict(in_phases, data=data, chains=[1, 3]).table["y_mean"]
    equal, weighed = both.equal_weights.table["y_mean"], both.table["y_mean"]
    assert np.allclose(equal, (heavy + light) / 2, atol=1e-5)
    share = float(((weighed - heavy) @ (light - heavy)) / ((light - heavy) @ (light - heavy)))
    diagnosis = api.diagnose(in_phases, fit=False)
    assert isinstance(diagnosis, Diagnosis) and diagnosis.ladders is not None
    assert diagnosis.ladders.evidence is not None
    weight = sum(diagnosis.ladders.evidence.weights[1::2])
    assert abs(share - weight) < 0.02 and 0.01 < weight < 0.15  # counts of 60 draws are whole numbers
    assert "(equal weights " in str(both)
    assert json.loads(both.to_json())["equal_weights"]["draws"] == 240


def test_a_report_weighs_phases_as_predict_does(in_phases: Path, tmp_path: Path) -> None:
    data = in_phases.parent / "train.csv"
    store, both = Store.open(in_phases), api.predict(in_phases, data=data)
    cases = ReportedCases.chosen_from(store.data.inputs, store.data.targets, "", is_held_out=False)
    run = read_run("run", committed(store), cases, lambda what: None)
    assert np.allclose(run.prediction.table["y_mean"], both.table["y_mean"], rtol=1e-6)
    assert run.prediction.equal_weights is not None and both.equal_weights is not None
    assert np.allclose(
        run.prediction.equal_weights.table["y_mean"], both.equal_weights.table["y_mean"], rtol=1e-6
    )
    page = html_of(glance_section([run]))
    assert "4 ladders of 60" in page and "Phases remain, so its ladders count by exp(log Z)" in page
    assert "y rmse, equal weights" in page
    some = read_run("run", committed(store), cases, lambda what: None, draws=40)
    assert some.held.total == 40
    one_side = read_run("run", chosen(committed(store), chains=[0, 2]), cases, lambda what: None)
    assert one_side.weighing == "" and one_side.prediction.equal_weights is None


def test_some_ladders_of_one_side_cannot_tell(in_phases: Path) -> None:
    diagnosis = api.diagnose(in_phases, fit=False, chains=[0, 2])
    assert isinstance(diagnosis, Diagnosis) and diagnosis.ladders is not None
    assert diagnosis.ladders.grade == "cannot tell"


def test_plot_and_report_show_the_ladders(in_phases: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = api.plot(in_phases, out=tmp_path / "plots")
    assert "ladder.png" in [picture.name for picture in pictures]
    page = api.report(in_phases, out=tmp_path / "report.html").read_text()
    assert "lighter by" in page and "ejection of exchanges between neighbouring levels" in page
    assert page.count("round trips") >= 2
