"""Studies of a run that takes a tenth of a second: looks, decisions, members, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli
from rayfbnn.errors import (
    ConfigError,
    RayStartError,
    SamplingError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreMismatchError,
    StoreMissingError,
)
from rayfbnn.run import running
from rayfbnn.run.running import RunOptions
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study, driving
from rayfbnn.study.plan import FAILURES, Member
from rayfbnn.version import RESULTS
from tests.support.small import assert_same_draws, small_spec
from tests.support.store.buckets import s3_server

LAX = Rule(max_rhat=9, max_mcse=9, least_draws=5, looks=2, cases=3)
STRICT = Rule(max_rhat=1.0000001, looks=2, least_draws=5, cases=3)
HERE: dict[str, Any] = {"workers": 0, "progress": False}


def tiny_spec(folder: Path, **replaced: Any) -> RunSpec:
    """The small configuration with two chains in one batch, and blocks of a whole phase."""
    return small_spec(folder, **{"chains": 2, "chains_per_batch": 2, "draws_per_block": 10, **replaced})


def make(folder: Path, *, rule: Rule = LAX, seeds: Any = 3, **options: Any) -> Study:
    return Study.create(folder / "study", tiny_spec(folder), seeds=seeds, rule=rule, **options)


def rayfbnn(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["study", *(str(argument) for argument in arguments)])


def decisions(study: Study) -> dict[str, str]:
    """The SHA-256 of every record of a look, by its path in the study."""
    folder = Path(str(study.place)) / "looks"
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*.json"))
    }


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study that takes both of its looks, and is not ok; copies of it share its identity."""
    study = make(tmp_path_factory.mktemp("complete"), rule=STRICT)
    study.run(**HERE)
    return study


@pytest.fixture
def copy_of_complete(complete: Study, tmp_path: Path) -> Study:
    shutil.copytree(str(complete.place), tmp_path / "study")
    return Study.open(tmp_path / "study")


def test_a_study_stops_at_the_first_look_that_is_ok(tmp_path: Path) -> None:
    study = make(tmp_path)
    status = study.run(**HERE)
    assert status.ok is True and study.ok
    (look,) = study.looks()
    assert (look.iterations, look.draws, look.seeds, look.action) == (5, 5, (1, 2, 3), "stop")
    assert look.max_rhat is not None and set(look.digests) == {1, 2, 3}
    assert [member.state for member in status.configurations[0].members] == ["ready"] * 3


def test_a_study_that_is_never_ok_ends_and_names_quantities_and_members(complete: Study) -> None:
    first, last = complete.looks()
    assert (first.action, last.action, last.iterations) == ("continue", "end", 10)
    assert complete.status().ok is False and not complete.ok
    assert any(reason.startswith("log_likelihood: nested R-hat") for reason in last.reasons)
    assert all("seeds farthest from the middle: " in reason for reason in last.reasons)
    result = rayfbnn("run", complete.place, "--workers", 0)
    assert result.exit_code == cli.NOT_CONVERGED
    assert "sigma_noise: nested R-hat" in result.stdout


def test_chains_that_do_not_mix_end_with_3_and_a_report_of_what_and_who(tmp_path: Path) -> None:
    """Trajectories of a millionth of a step: each member stays where its draw from the prior put it."""
    operations = [{"op": "heatbath"}, {"op": "hybrid", "steps": 1, "stepsize": 1e-6}]
    spec = tiny_spec(tmp_path, phase=[{"iterations": 10, "operations": operations}])
    rule = Rule(looks=2, least_draws=5, cases=3)
    study = Study.create(tmp_path / "study", spec, seeds=4, superchains=True, rule=rule)
    result = rayfbnn("run", study.place, "--workers", 0)
    assert result.exit_code == cli.NOT_CONVERGED
    assert "the configuration: 4 members: 4 ready" in result.stdout
    last = study.looks()[-1]
    assert last.action == "end" and last.draws == 10
    for name, judged in last.quantities.items():
        assert not judged.ok and len(judged.apart) == 3, name
        assert f"    {name}: nested R-hat " in result.stdout


def test_members_are_the_runs_that_sample_makes(complete: Study, tmp_path: Path) -> None:
    api.sample(tiny_spec(tmp_path, seed=2), tmp_path / "alone.zarr", **HERE)
    assert_same_draws(complete.members.place(Member(0, 2)), tmp_path / "alone.zarr")


def test_a_second_run_changes_no_decision(copy_of_complete: Study, complete: Study) -> None:
    before = decisions(complete)
    assert len(before) == 2
    copy_of_complete.run(**HERE)
    assert decisions(copy_of_complete) == before


def test_a_decision_follows_from_the_draws_to_its_last_byte(copy_of_complete: Study) -> None:
    """A driver that was killed between its look and its record leaves nothing; the next writes the same."""
    before = decisions(copy_of_complete)
    shutil.rmtree(Path(str(copy_of_complete.place)) / "looks")
    copy_of_complete.run(**HERE)
    assert decisions(copy_of_complete) == before


def test_an_interrupted_study_goes_on_to_the_same_decisions(
    complete: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study is created anew, so that its plan has the same bytes but for the path of the table."""
    source = Path(str(complete.place))
    (tmp_path / "study" / "members").mkdir(parents=True)
    shutil.copy(source / "study.json", tmp_path / "study")
    study = Study(tmp_path / "study", complete.plan)
    first = Member(0, 1)
    Store.create(
        study.members.place(first),
        complete.members.spec(first).with_iterations(5),
        complete.members.with_cases().data,
        kernel=complete.members.with_cases().root.kernel,
    )
    calls = 0
    real = driving._sample

    def stop_at_the_third(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(driving, "_sample", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        study.run(**HERE)
    assert study.looks() == [] and not study.is_complete
    study.run(**HERE)
    assert decisions(study) == decisions(complete)


@pytest.mark.long
def test_a_member_of_another_driver_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, held, pauses = make(tmp_path), ["once"], []
    real = driving._sample

    def busy_at_first(study: Study, work: driving.Work, *executor: Any) -> None:
        if work.member.seed == 2 and held:
            raise StoreBusyError("is in use by another")
        real(study, work, *executor)

    def release(seconds: float) -> None:
        pauses.append(seconds)
        held.clear()

    monkeypatch.setattr(driving, "_sample", busy_at_first)
    lines = list(driving.drive(study, RunOptions(workers=0), sleep=release))
    assert len(lines) == 4 and lines[-1].endswith(": ok")
    assert pauses and study.ok


def test_a_member_that_was_stopped_is_not_called_ready(tmp_path: Path) -> None:
    """A worker stops where its node will be taken away, and another goes on."""
    study = make(tmp_path)

    def stopped_once(work: Any) -> Any:
        for one in work:
            yield driving.Ended(one, "stopped")
            yield driving.run_member(study, one)

    lines = list(driving.drive(study, RunOptions(workers=0), stopped_once))
    assert len(lines) == 4 and lines[-1].endswith(": ok")


def test_a_study_without_ray_goes_on_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(**options: Any) -> None:
        raise RayStartError("cannot start Ray on this machine")

    monkeypatch.setattr(driving, "RayExecutor", fails)
    monkeypatch.setattr(running, "RayExecutor", None)
    assert make(tmp_path).run(workers=2, progress=False).ok
    assert "This study goes on without Ray" in caplog.text


@pytest.mark.long
def test_drivers_in_processes_come_to_the_same_decisions(complete: Study, tmp_path: Path) -> None:
    source = Path(str(complete.place))
    shutil.copytree(
        source, tmp_path / "study", ignore=shutil.ignore_patterns("looks", "*0002.zarr", "*0003.zarr")
    )
    study = Study.open(tmp_path / "study")
    study.run(workers=2, progress=False)
    assert decisions(study) == decisions(complete)


def test_a_study_of_the_format_before_goes_on(complete: Study, tmp_path: Path) -> None:
    """It had one hash of cases for all configurations."""
    study = make(tmp_path, rule=STRICT)
    path = Path(str(study.place)) / "study.json"
    document = json.loads(path.read_text()) | {"format_version": 2, SEAL: NO_SEAL}
    document["data_hash"] = [entry.pop("data_hash") for entry in document["configurations"]][0]
    path.write_bytes(seal(document))
    before = Study.open(study.place)
    before.run(**HERE)
    assert [look.max_rhat for look in before.looks()] == [look.max_rhat for look in complete.looks()]
    path.write_bytes(seal(document | {"format_version": 1, SEAL: NO_SEAL}))
    with pytest.raises(StoreError, match="is a study of format 1, but this version reads format 3"):
        Study.open(study.place)
    path.write_bytes(seal(document | {"configurations": "none", SEAL: NO_SEAL}))
    with pytest.raises(StoreCorruptError, match="is not the plan of a study"):
        Study.open(study.place)


def test_seeds_that_are_added_get_a_look_of_their_own(copy_of_complete: Study) -> None:
    study = copy_of_complete
    before = decisions(study)
    assert study.add(2) == (4, 5) and not study.is_complete
    study.run(**HERE)
    third = study.looks()[2]
    assert (third.number, third.iterations, third.seeds) == (3, 10, (1, 2, 3, 4, 5))
    assert before.items() < decisions(study).items()
    with pytest.raises(ConfigError, match="seeds: 4 is already in the study"):
        study.add([9, 4])
    assert study.seeds() == (1, 2, 3, 4, 5)


def test_a_member_that_fails_is_reported_and_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, real = make(tmp_path, seeds=[3, 5, 8]), driving._sample

    def fail(study: Study, work: driving.Work, *executor: Any) -> None:
        if work.member.seed == 5:
            raise SamplingError(f"{study.members.place(work.member)}: the first energy is not finite")
        real(study, work, *executor)

    monkeypatch.setattr(driving, "_sample", fail)
    status = study.run(**HERE)
    assert status.ok is False
    last = study.looks()[-1]
    assert last.failed == {5: "the first energy is not finite"} and last.seeds == (3, 5, 8)
    assert last.reasons[0] == "seed 5 failed: the first energy is not finite"
    states = {member.seed: member.state for member in status.configurations[0].members}
    assert states == {3: "ready", 5: "failed", 8: "ready"}


@pytest.mark.long
def test_a_grid_has_every_combination_and_is_ranked(tmp_path: Path) -> None:
    varied = ["phase=[{iterations=4,operations=[{op='heatbath'}]}]", "model.noise=0.3:3,0.9:3"]
    study = make(tmp_path, seeds=2, vary=varied)
    assert [one.varied[1] for one in study.configurations] == ["model.noise=0.3:3", "model.noise=0.9:3"]
    study.run(**HERE)
    best, other = study.rank(tmp_path / "train.csv")
    assert best.difference == 0 and best.log_probability >= other.log_probability
    tables = [study.predict(tmp_path / "train.csv", configuration=number).table for number in (0, 1)]
    lost = tables[best.configuration]["log_probability"] - tables[other.configuration]["log_probability"]
    assert other.difference == pytest.approx(lost.mean())
    assert other.difference_se == pytest.approx(lost.std() / len(lost) ** 0.5)  # paired, case by case
    page = study.report(tmp_path / "study.html", data=tmp_path / "train.csv").read_text()
    assert "model.noise=0.9:3" in page and "Ranking" in page and page.count("<svg") == 4
    # The cases are the training cases, twelve of them, so each is left out.
    assert best.fit == other.fit == "cannot tell" and ">fit</th>" in page


def test_keys_that_go_together_are_combined_with_other_keys(tmp_path: Path) -> None:
    together = "network.hidden.0.units=2,3; phase.0.operations=[{op='heatbath'}],[{op='negate'}]"
    study = make(tmp_path, seeds=2, vary=[together, "model.noise=0.3:3,0.9:3"])
    points = [
        (spec.network.hidden[0].units, spec.phase[0].operations[0].op, one.varied[2])
        for one in study.configurations
        for spec in [study.members.spec(Member(one.number, 2))]
    ]
    assert points == [
        (2, "heatbath", "model.noise=0.3:3"),
        (2, "heatbath", "model.noise=0.9:3"),
        (3, "negate", "model.noise=0.3:3"),
        (3, "negate", "model.noise=0.9:3"),
    ]


@pytest.mark.long
def test_studies_are_merged_but_never_the_same_seed_twice(complete: Study, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rule": STRICT}
    other = Study.create(tmp_path / "other", tiny_spec(tmp_path), seeds=[7, 9], **options)
    other.run(**HERE)
    look = complete.diagnose(others=[other])
    assert look.seeds == (1, 2, 3, 7, 9) and look.draws == 10
    prediction = complete.predict(tmp_path / "train.csv", others=[other])
    assert prediction.summary["draws"] == 5 * 2 * 10
    with pytest.raises(ConfigError, match="seed 1 is in .* too; the same seed gives the same draws"):
        complete.diagnose(others=[complete])
    (tmp_path / "different").mkdir()
    spec = tiny_spec(tmp_path / "different", model__noise="0.5:3")
    different = Study.create(tmp_path / "different" / "study", spec, seeds=[20, 21], **options)
    with pytest.raises(StoreMismatchError, match="the configurations are not those of"):
        complete.diagnose(others=[different])


def test_chains_of_a_superchain_start_at_one_place(tmp_path: Path) -> None:
    study = make(tmp_path, superchains=True)
    assert all(one.keys["initial"] == {"from_prior": True, "shared": True} for one in study.configurations)
    assert study.members.spec(Member(0, 2)).initial.shared


# Refusals, after which everything is as it was.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds: a study needs at least one"),
        ({"seeds": [1, 2, 1]}, "seeds: 1 is given twice"),
        ({"seeds": [-1]}, "seeds: must be whole numbers from 0"),
        ({"vary": ["model.noise="]}, "vary: model.noise has no value"),
        ({"vary": ["model.noise"]}, "vary: must be key.path=a,b,c"),
        ({"vary": ["model.noise=1,1"]}, "the same value twice"),
        ({"vary": ["chains=2", "chains=4"]}, "vary: chains is given twice"),
        ({"vary": ["seed=1,2"]}, "vary: seed cannot be varied"),
        ({"vary": ["data.inputs=[x1],[x2]"]}, "vary: data.inputs cannot be varied"),
        ({"vary": ["chans=2,4"]}, r"configuration 0 \(chans=2\): chans"),
        ({"vary": ["chains=2,4; chains_per_batch=2"]}, "chains has 2 and chains_per_batch has 1"),
        ({"vary": ["chains=2,4; chains=6,8"]}, "vary: chains is given twice"),
        ({"vary": ["chains=2,4; chains_per_batch=2,2", "chains=6"]}, "vary: chains is given twice"),
        ({"vary": ["chains=2,2; chains_per_batch=1,1"]}, "chains, chains_per_batch has the same value twice"),
        ({"vary": ["chains=2,4;"]}, 'vary: must be key.path=a,b,c, got ""'),
        (
            {"vary": ["chains=2,4; model.noise=0.3:3,loud"]},
            r"configuration 1 \(chains=4, model.noise=loud\): ",
        ),
        (
            {"set": ["phase=[{iterations=4,keep=false,operations=[{op='heatbath'}]}]"]},
            "the last phase must be kept",
        ),
    ],
)
def test_a_wrong_study_is_refused_and_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    spec = tiny_spec(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=message):
        Study.create(tmp_path / "study", spec, **{"seeds": 2, **options})
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_rhat": 1.0}, "max_rhat: must be a number above 1"),
        ({"max_mcse": float("nan")}, "max_mcse: must be a number above 0"),
        ({"looks": 0}, "looks: must be a whole number of at least 1"),
        ({"looks": 1001}, "looks: must be at most 1000"),
    ],
)
def test_a_rule_without_sense_is_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rule(**limits)


@pytest.mark.long
def test_a_creation_that_crashed_is_completed(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "study" / "study.json").unlink()
    with pytest.raises(StoreMissingError, match=r"is not a study: it has no study\.json"):
        Study.open(tmp_path / "study")
    assert make(tmp_path).run(**HERE).ok is True
    with pytest.raises(StoreExistsError, match="is already a study"):
        make(tmp_path)


def test_a_member_of_another_configuration_is_an_error(copy_of_complete: Study, tmp_path: Path) -> None:
    member = Path(str(copy_of_complete.members.place(Member(0, 2))))
    shutil.rmtree(member)
    api.sample(tiny_spec(tmp_path, seed=2, model__noise="0.9:3"), member, **HERE)
    with pytest.raises(StoreMismatchError, match=r"is not a member of this study:\n  model\.noise"):
        copy_of_complete.diagnose()


@pytest.mark.parametrize("record", ["study.json", "looks/c0000/000001.json"])
def test_a_changed_record_is_an_error(copy_of_complete: Study, record: str) -> None:
    file = Path(str(copy_of_complete.place)) / record
    file.write_bytes(
        file.read_bytes().replace(b'"number": 1', b'"number": 2').replace(b"rayfbnn", b"raybfnn")
    )
    if record == "study.json":
        with pytest.raises(StoreCorruptError, match="does not match its checksum"):
            Study.open(str(copy_of_complete.place))
    else:
        with pytest.raises(StoreCorruptError, match="does not match its checksum"):
            copy_of_complete.looks()


def test_a_record_under_the_name_of_another_is_an_error(copy_of_complete: Study) -> None:
    looks = Path(str(copy_of_complete.place)) / "looks" / "c0000"
    count = len(list(looks.iterdir()))
    shutil.copy(looks / "000001.json", looks / f"{count + 1:06d}.json")
    with pytest.raises(StoreCorruptError, match="belongs to another study or has another number"):
        copy_of_complete.looks()


def test_a_failure_of_another_member_is_an_error(copy_of_complete: Study) -> None:
    members = copy_of_complete.members
    members.fail(Member(0, 1), "no reason")
    folder = Path(str(copy_of_complete.place)) / FAILURES
    shutil.copy(folder / f"{Member(0, 1).name}.json", folder / f"{Member(0, 2).name}.json")
    assert members.failure(Member(0, 1)) == "no reason"
    with pytest.raises(StoreCorruptError, match="about another member or another study"):
        members.failure(Member(0, 2))


def test_a_study_of_another_version_is_refused_before_a_member_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path)
    monkeypatch.setattr("rayfbnn.version.__version__", "9.9.9")
    with pytest.raises(StoreMismatchError, match=r"but this is 9\.9\.9, and its draws may differ"):
        study.run(**HERE)
    monkeypatch.undo()
    monkeypatch.setattr("rayfbnn.version.RESULTS", RESULTS + 1)
    with pytest.raises(StoreMismatchError, match=rf"with results {RESULTS}, .*, and its draws may differ"):
        study.run(**HERE)
    assert not study.members.is_there(Member(0, 2)) and not study.members.is_there(Member(0, 3))


def test_a_study_without_draws_says_so(tmp_path: Path) -> None:
    study = make(tmp_path)
    with pytest.raises(StoreError, match="run the study first"):
        study.diagnose()
    with pytest.raises(StoreError, match="run the study first"):
        study.predict(tmp_path / "train.csv")
    assert [member.state for member in study.status().configurations[0].members] == [
        "under way",
        "not begun",
        "not begun",
    ]


@pytest.mark.long
def test_the_shell_has_the_same_verbs(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(tiny_spec(tmp_path).to_toml())
    study, limits = tmp_path / "study", ("--max-rhat", 9, "--max-mcse", 9, "--least-draws", 5, "--looks", 2)
    result = rayfbnn("create", study, tmp_path / "run.toml", "--seeds", "4,8", *limits)
    assert result.exit_code == 0 and "2 members; run them with" in result.stdout, result.output
    result = rayfbnn("run", study, "--workers", 0, "--json", "--log-format", "json")
    assert result.exit_code == 0 and json.loads(result.stdout)["ok"] is True
    assert (study / "members" / "c0000-s0000000004.zarr.log.jsonl").exists()
    assert "ok: all members agree" in rayfbnn("status", study).stdout
    assert rayfbnn("diagnose", study).exit_code == 0
    out = tmp_path / "new.csv"
    assert rayfbnn("predict", study, "--data", tmp_path / "train.csv", "--out", out).exit_code == 0
    assert out.exists()
    assert "added the seeds 9, 10" in rayfbnn("add", study, "--seeds", 2).stdout
    assert rayfbnn("report", study, "--out", tmp_path / "page.html").exit_code == 0
    assert rayfbnn("run", tmp_path / "nothing").exit_code == 2
    assert rayfbnn("add", study, "--seeds", "two").exit_code == 2


@pytest.mark.long
def test_a_study_in_a_bucket_decides_as_one_on_a_disk(tmp_path: Path) -> None:
    with s3_server():
        address, spec = "s3://bucket/studies/one", tiny_spec(tmp_path)
        study = Study.create(address, spec, seeds=3, rule=LAX)
        assert study.run(**HERE).ok is True
        local = make(tmp_path)
        local.run(**HERE)
        (ours,), (theirs,) = Study.open(address).looks(), local.looks()
        assert ours == theirs
        study.add([6])
        assert study.run(**HERE).ok is True and study.looks()[1].seeds == (1, 2, 3, 6)
        with pytest.raises(StoreExistsError, match="is already a study"):
            Study.create(address, spec, seeds=3)
        with pytest.raises(ConfigError, match="has files that do not belong to a study"):
            Study.create("s3://bucket/studies", spec, seeds=3)


def test_members_with_a_wide_table_keep_its_default_batches(tmp_path: Path) -> None:
    """The table decides the size of batches, and phases that are written out must not change it."""
    table = pd.DataFrame(np.random.default_rng(1).normal(size=(250, 2)), columns=["x1", "y"])
    keys = {"data": {"targets": ["y"]}, "model": {"kind": "real"}, "chains": 2, "iterations": 2}
    study = Study.create(tmp_path / "study", keys, seeds=2, data=table)
    for member in (Member(0, seed) for seed in (1, 2)):
        if not study.members.is_there(member):
            study.members.create(member, 2)
        assert study.members.open(member).spec.chains_per_batch == 2
