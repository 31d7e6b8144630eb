"""Studies whose members have ladders: looks judge the evidence of each member and of all together."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfbnn.errors import ConfigError
from rayfbnn.study.files import Due, take_look
from rayfbnn.study.rule import Rule
from rayfbnn.study.study import Study
from tests.support.store.ladder_runs import SETTINGS, ladder_spec, run_in_phases

RULE = Rule(looks=2, least_draws=4, max_rhat=2.0, max_mcse=2.0, cases=2)


def test_members_with_ladders_are_run_judged_and_pooled(tmp_path: Path) -> None:
    spec = ladder_spec(tmp_path, iterations=40, settings={"annealing": 20, "adaptation": 40})
    study = Study.create(tmp_path / "study", spec, seeds=2, rule=RULE, vary=["ladder.levels=4,5"])
    assert [one.iterations for one in study.configurations] == [40, 40]
    levels = [one.keys["ladder"]["levels"] for one in study.configurations]
    assert levels == [4, 5]
    lone = Study.create(tmp_path / "lone", spec, seeds=2, rule=RULE)
    status = lone.run(workers=0, progress=False)
    assert status.ok is not None
    looks = status.configurations[0].looks
    assert [look.iterations for look in looks] in ([20], [20, 40]) and set(looks[0].digests) == {1, 2}
    prediction = lone.predict(tmp_path / "train.csv")
    assert [one.chains for one in prediction.stores] == [4, 4]
    assert lone.diagnose().seeds == (1, 2)


def test_a_look_names_the_members_whose_ladders_disagree_in_evidence(tmp_path: Path) -> None:
    stores = {}
    for seed in (7, 8):
        spec = ladder_spec(tmp_path, iterations=60, seed=seed, settings=SETTINGS)
        stores[seed] = run_in_phases(tmp_path / f"run{seed}.zarr", spec, gap=30.0)
    look = take_look(Due(1, 60, (7, 8), is_last=True), 60, stores, {}, RULE)
    assert "the evidence of the ladders of these seeds is 'not converged': 7, 8" in look.reasons
    assert not look.ok


def test_a_look_pools_the_ladders_of_two_members(tmp_path: Path) -> None:
    """All ladders of a member agree, but those of the second have found a lighter part of the posterior."""
    stores = {}
    for seed, light in ((7, ()), (8, (0, 1, 2, 3))):
        spec = ladder_spec(tmp_path, iterations=100, seed=seed, settings=SETTINGS | {"hot": 3.0})
        stores[seed] = run_in_phases(tmp_path / f"run{seed}.zarr", spec, gap=30.0, light=light)
    look = take_look(Due(1, 100, (7, 8), is_last=True), 100, stores, {}, RULE)
    evidence = [reason for reason in look.reasons if "evidence" in reason]
    assert evidence == ["the evidence of the ladders of all seeds together is 'not converged'"]
    one = take_look(Due(1, 100, (7,), is_last=True), 100, {7: stores[7]}, {}, RULE)
    assert not [reason for reason in one.reasons if "evidence" in reason]


def test_superchains_would_give_ladders_a_common_start(tmp_path: Path) -> None:
    spec = ladder_spec(tmp_path)
    with pytest.raises(ConfigError, match="initial.shared: ladders must not share a start"):
        Study.create(tmp_path / "study", spec, seeds=2, superchains=True)
    assert not (tmp_path / "study").exists()
