"""Links and foreign files in a study lead nowhere: every verb refuses it in one line, and changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayfbnn import cli
from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError, StoreForeignError
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from tests.support.small import small_spec, write_train
from tests.support.store.planted import content, leave_behind, make_victim

Plant = Callable[[Path, Path], object]  # takes the study, and a folder elsewhere

MADE, NEW = "members/c0000-s0000000001.zarr", "members/c0000-s0000000004.zarr"  # stores, there and not yet
UNFINISHED = "members/.c0000-s0000000004.zarr.creating"
VERBS = {
    "run": ("run", "STUDY", "--workers", "0", "--log-format", "json"),
    "add": ("add", "STUDY", "--seeds", "1"),
    "status": ("status", "STUDY"),
    "diagnose": ("diagnose", "STUDY"),
    "predict": ("predict", "STUDY", "--data", "train.csv", "--out", "new.csv"),
    "report": ("report", "STUDY", "--out", "new.html"),
}


def _put(name: str, make: Callable[[Path, Path], object]) -> Plant:
    """Something in the place of what has a name in a study."""

    def plant(study: Path, victim: Path) -> None:
        path = study / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make(path, victim)

    return plant


def _moved(name: str) -> Plant:
    """A link to the real folder or file, which was moved elsewhere."""

    def plant(study: Path, victim: Path) -> None:
        (study / name).rename(victim / "moved")
        (study / name).symlink_to(victim / "moved")

    return plant


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a folder": lambda path, victim: path.symlink_to(victim),
    "a link to a file": lambda path, victim: path.symlink_to(victim / "thesis.txt"),
    "a broken link": lambda path, victim: path.symlink_to(victim / "new"),
    "a pipe": lambda path, victim: os.mkfifo(path),
}
FILE: dict[str, Callable[[Path, Path], object]] = {"a file": lambda path, victim: path.write_text("mine")}
FOLDER: dict[str, Callable[[Path, Path], object]] = {"a folder": lambda path, victim: path.mkdir()}
IN_THE_PLACE_OF: dict[str, dict[str, Callable[[Path, Path], object]]] = {
    "looks": KINDS | FILE,
    "looks/c0000": KINDS | FILE,
    "additions": KINDS | FILE,
    "failures": KINDS | FILE,
    "members": KINDS | FILE,
    MADE: KINDS | FILE,
    NEW: KINDS | FILE,
    UNFINISHED: KINDS | FILE,
    f"{MADE}.log.jsonl": KINDS | FOLDER,
    f"{NEW}.log.jsonl": KINDS | FOLDER,
    "study.json": KINDS,
    "additions/000001.json": KINDS,
    "additions/000002.json": KINDS,
}
FOREIGN = (
    "thesis.txt",
    "members/thesis.txt",
    "members/.thesis",
    "members/c0000-s0000000099.zarr",
    "members/c0000-s0000000099.zarr.log.jsonl",
    "members/.c0000-s0000000099.zarr.creating",
    "members/c0001-s0000000001.zarr",
    "members/c0000-s1.zarr",
    "members/.c0000-s0000000001.zarr",
    "members/c0000-s0000000001.zarr.creating",
    "members/.c0000-s0000000001.zarr.log.jsonl",
)
PLANTS: dict[str, Plant] = {
    **{
        f"{name}: {kind}": _put(name, make)
        for name, kinds in IN_THE_PLACE_OF.items()
        for kind, make in kinds.items()
    },
    **{
        f"{name}: moved, and a link left": _moved(name)
        for name in ("looks", "looks/c0000", "additions", "failures", "members", MADE, "study.json")
    },
    **{f"{name} is foreign": _put(name, lambda path, victim: path.mkdir()) for name in FOREIGN},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a look, a member that failed, and a seed that was added and has no member yet."""
    folder = tmp_path_factory.mktemp("original")
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    rule = Rule(max_rhat=1.0000001, least_draws=5, looks=2, cases=3)
    study = Study.create(folder / "study", spec, seeds=3, rule=rule)
    study.members.fail(Member(0, 3), "the first energy is not finite")
    study.run(workers=0, progress=False)
    study.add([4])
    make_victim(folder / "victim")
    return folder


@pytest.fixture
def here(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(original, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


def check_refused(verb: str, here: Path) -> None:
    before = content(here)
    arguments = ["study" if argument == "STUDY" else argument for argument in VERBS[verb]]
    result = CliRunner().invoke(cli.app, ["study", *arguments])
    assert result.exit_code in (1, 2), result.output
    assert result.stderr.startswith(f"rayfbnn study {verb}: ") and result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert content(here) == before


@pytest.mark.parametrize(
    "name",
    [
        name if number % 5 == 0 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(PLANTS)
    ],
)
def test_a_study_with_a_link_or_a_foreign_file_is_refused(name: str, here: Path) -> None:
    PLANTS[name](here / "study", here / "victim")
    before = content(here)
    with pytest.raises((ConfigError, StoreCorruptError)):
        Study.open(here / "study")
    assert content(here) == before


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_a_study_with_a_link_in_one_line(verb: str, here: Path) -> None:
    PLANTS["additions: a broken link"](here / "study", here / "victim")
    check_refused(verb, here)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["failures/c0000-s0000000004.zarr.json", "looks/c0000/000003.json"])
def test_a_link_in_the_place_of_a_record_is_not_followed(name: str, kind: str, here: Path) -> None:
    """It is met only by those who read or write the record, which `run` does."""
    _put(name, KINDS[kind])(here / "study", here / "victim")
    check_refused("run", here)


def test_a_folder_of_others_that_a_member_would_be_made_in_is_left_alone(here: Path) -> None:
    (here / "study" / UNFINISHED).mkdir()
    (here / "study" / UNFINISHED / "thesis.txt").write_text("years of work")
    before = content(here)
    with pytest.raises(
        StoreForeignError, match=r"contains thesis\.txt, which is not part of an unfinished store"
    ):
        Study.open(here / "study").run(workers=0, progress=False)
    assert content(here) == before


def test_a_member_whose_making_was_killed_is_made_again(here: Path) -> None:
    assert leave_behind(here / "study" / NEW) == here / "study" / UNFINISHED
    study = Study.open(here / "study")
    study.run(workers=0, progress=False)
    assert study.members.is_there(Member(0, 4)) and not (here / "study" / UNFINISHED).exists()


def test_a_study_whose_making_was_killed_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "made" / "members").mkdir(parents=True)
    left = leave_behind(tmp_path / "made" / MADE)
    assert Study.create(tmp_path / "made", small_spec(tmp_path), seeds=1).seeds() == (1,)
    assert not left.exists()


def test_the_path_of_a_study_may_be_a_link(here: Path) -> None:
    (here / "link").symlink_to("study")
    Study.open(here / "link").add([5])
    assert Study.open(here / "study").seeds() == (1, 2, 3, 4, 5)
    (here / "empty").mkdir()
    (here / "new").symlink_to("empty")
    assert Study.create(here / "new", small_spec(here), seeds=1).seeds() == (1,)


def test_a_folder_that_is_swapped_for_a_link_while_a_study_runs_is_not_written_through(here: Path) -> None:
    study = Study.open(here / "study")
    shutil.rmtree(here / "study" / "additions")
    (here / "study" / "additions").symlink_to(here / "victim" / "empty")
    (here / "study" / "failures").rename(here / "failures")
    (here / "study" / "failures").symlink_to(here / "victim")
    before = content(here)
    with pytest.raises(StoreError, match="is a link or a file; folders of"):
        study.add([9])
    with pytest.raises(StoreError, match="is a link or a file; folders of"):
        study.members.fail(Member(0, 4), "no reason")
    assert content(here) == before


@pytest.mark.parametrize("kind", KINDS | FILE)
@pytest.mark.parametrize("name", ["members", MADE, f"members/.{Path(MADE).name}.creating"])
def test_no_study_is_made_through_a_link(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here, victim = tmp_path, make_victim(tmp_path / "victim")
    write_train(here)
    (here / "made" / name).parent.mkdir(parents=True)
    (KINDS | FILE)[kind](here / "made" / name, victim)
    before = content(here)
    with pytest.raises((ConfigError, StoreError)):
        Study.create(here / "made", small_spec(here), seeds=1)
    assert content(here) == before


@pytest.mark.parametrize("name", ["members/.thesis", "members/.c0000-s0000000002.zarr.creating"])
def test_no_study_is_made_among_hidden_files_of_others(name: str, here: Path) -> None:
    (here / "made" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="has files that do not belong to a study"):
        Study.create(here / "made", small_spec(here), seeds=1)
