"""Links, foreign files and forged records in a study do no harm: they are refused in one line."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayfbnn import cli
from rayfbnn.errors import ConfigError, RayFBNNError, StoreCorruptError, StoreError, StoreForeignError
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from tests.support.small import small_spec, write_train
from tests.support.store.damages import (
    FILE,
    FOLDER,
    LINKS,
    Damage,
    content,
    in_place_of,
    leave_behind,
    make_outside,
    moved,
    put,
)
from tests.support.store.forging import chain_again, document, forge, places, sealed, set_at

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
PLANTS: dict[str, Damage] = {
    **dict(
        in_place_of(
            LINKS | FILE,
            *("looks", "looks/c0000", "additions", "failures", "members", MADE, NEW, UNFINISHED),
        )
    ),
    **dict(in_place_of(LINKS | FOLDER, f"{MADE}.log.jsonl", f"{NEW}.log.jsonl")),
    **dict(in_place_of(LINKS, "study.json", "additions/000001.json", "additions/000002.json")),
    **{
        f"{name} was moved, and a link left": moved(name)
        for name in ("looks", "looks/c0000", "additions", "failures", "members", MADE, "study.json")
    },
    **{f"{name} is foreign": put(name, FOLDER["a folder"]) for name in FOREIGN},
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
    make_outside(folder / "victim")
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
    PLANTS["additions is a broken link"](here / "study", here / "victim")
    check_refused(verb, here)


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTS)
def test_every_verb_refuses_every_hostile_study_in_one_line(name: str, here: Path) -> None:
    PLANTS[name](here / "study", here / "victim")
    for verb in VERBS:
        check_refused(verb, here)


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("name", ["failures/c0000-s0000000004.zarr.json", "looks/c0000/000003.json"])
def test_a_link_in_the_place_of_a_record_is_not_followed(name: str, kind: str, here: Path) -> None:
    """It is met only by those who read or write the record, which `run` does."""
    put(name, LINKS[kind])(here / "study", here / "victim")
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


@pytest.mark.parametrize("kind", LINKS | FILE)
@pytest.mark.parametrize("name", ["members", MADE, f"members/.{Path(MADE).name}.creating"])
def test_no_study_is_made_through_a_link(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here, victim = tmp_path, make_outside(tmp_path / "victim")
    write_train(here)
    (here / "made" / name).parent.mkdir(parents=True)
    put(name, (LINKS | FILE)[kind])(here / "made", victim)
    before = content(here)
    with pytest.raises((ConfigError, StoreError)):
        Study.create(here / "made", small_spec(here), seeds=1)
    assert content(here) == before


@pytest.mark.parametrize("name", ["thesis", "members/.thesis", "members/.c0000-s0000000002.zarr.creating"])
def test_no_study_is_made_among_files_of_others(name: str, here: Path) -> None:
    (here / "made" / name).mkdir(parents=True)
    before = content(here)
    with pytest.raises(ConfigError, match=f"has files that do not belong to a study, such as {name}"):
        Study.create(here / "made", small_spec(here), seeds=1)
    assert content(here) == before


# Records that someone has made to do harm are refused, or used without any.

PLAN, LOOK, ADDITION = "study.json", "looks/c0000/000001.json", "additions/000001.json"
FAILURE = "failures/c0000-s0000000003.zarr.json"
HOSTILE: list[Any] = [None, True, -1, 2**70, 1e308, float("nan"), "../x", "x" * 1_000_001, [], ["1"], {}]
NUMBERS = [None, -1, 2**70, 1e308]
# Values that a reader has no reason to refuse, by file and key: texts, limits, and what a look found.
HARMLESS: dict[str, dict[str, list[Any]]] = {
    PLAN: {
        "version": ["../x"],
        "configurations.0.varied": [[], ["1"]],
        "rule.max_rhat": [2**70, 1e308],
        "rule.max_mcse": [2**70, 1e308],
    },
    LOOK: {
        "quantities": [{}],
        **{
            f"quantities.sigma_ih0.{name}": NUMBERS
            for name in ("mean", "sd", "rhat", "mcse", "drift", "late", "growth")
        },
        "quantities.sigma_ih0.ok": [True],
        "quantities.sigma_ih0.apart": [[]],
        "quantities.sigma_ih0.stuck": [[]],
        "failed": [{}],
        "failed.3": ["../x"],
        "digests": [{}],
        "ok": [True],
        "reasons": [[], ["1"]],
        "reasons.0": ["../x"],
    },
    FAILURE: {"reason": ["../x"]},
}


def fields(record: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a record, but for those in a configuration, and one of many quantities."""
    first = {name: next(iter(record[name]), None) for name in ("quantities", "digests") if name in record}
    for path in places(record):
        is_first = (
            path[1] in (0, first.get(path[0])) if len(path) > 1 and path[0] in (*first, "reasons") else True
        )
        if is_first and "keys" not in path[:-1]:
            yield path


def happens(path: Path) -> str:
    try:
        study = Study.open(path)
        study.status()
        study.looks()
        study.seeds()
        study.diagnose()
    except RayFBNNError:
        return "refused"
    return "used"


@pytest.mark.parametrize(
    "file", [ADDITION, *(pytest.param(file, marks=pytest.mark.long) for file in (PLAN, LOOK, FAILURE))]
)
def test_hostile_values_in_a_record_do_no_harm(file: str, original: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    shutil.copytree(original / "study", study)
    records = [
        path.relative_to(original / "study")
        for path in (original / "study").rglob("*.json")
        if ".zarr" not in str(path.parent)
    ]
    used: dict[str, list[Any]] = {}
    for path in fields(document(original / "study" / file)):
        for value in HOSTILE:
            for record in records:
                shutil.copy(original / "study" / record, study / record)
            forge(study / file, lambda record, path=path, value=value: set_at(record, path, value))
            if happens(study) == "used":
                used.setdefault(".".join(map(str, path)), []).append(value)
    assert used == HARMLESS.get(file, {})


def _larger(study: Path, *, configurations: int, seeds: int) -> None:
    """Let the plan have more configurations, whose temperatures differ, and more seeds."""
    for folder in ("looks", "additions", "failures"):
        shutil.rmtree(study / folder)

    def change(plan: dict[str, Any]) -> None:
        (one,) = plan["configurations"]
        plan["configurations"] = [
            one | {"varied": [f"a={number}"], "keys": one["keys"] | {"temperature": 1 + number / 10_000}}
            for number in range(configurations)
        ]
        plan["seeds"] = list(range(1, seeds + 1))

    forge(study / PLAN, change)


def _with_additions(study: Path, *, configurations: int, seeds: int) -> None:
    """Let additions of at most 10,000 seeds, each small enough for one call, give that many seeds."""
    _larger(study, configurations=configurations, seeds=10)
    (study / "additions").mkdir()
    for number, first in enumerate(range(11, seeds + 1, 10_000), 1):
        record = {
            "study": "",
            "number": number,
            "seeds": list(range(first, min(first + 10_000, seeds + 1))),
            "after_looks": [0] * configurations,
        }
        (study / f"additions/{number:06d}.json").write_bytes(sealed(record))
    chain_again(study)


@pytest.mark.parametrize("make", [_larger, _with_additions])
@pytest.mark.parametrize(
    ("configurations", "seeds", "is_used"),
    [
        (1, 10_000, True),
        (11, 10_000, False),
        pytest.param(1000, 100, True, marks=pytest.mark.long),
        pytest.param(1000, 101, False, marks=pytest.mark.long),
        pytest.param(10, 10_000, True, marks=pytest.mark.long),
        (1000, 10_000, False),
    ],
)
def test_a_small_plan_does_not_stand_for_millions_of_members(
    make: Callable[..., None],
    configurations: int,
    seeds: int,
    is_used: bool,
    original: Path,
    tmp_path: Path,
) -> None:
    study = Path(shutil.copytree(original / "study", tmp_path / "study"))
    make(study, configurations=configurations, seeds=seeds)
    begun = time.process_time()
    if is_used:
        status = Study.open(study).status()
        assert sum(len(one.members) for one in status.configurations) == configurations * seeds
    else:
        with pytest.raises(StoreCorruptError, match="at most 100000"):
            Study.open(study)
    assert time.process_time() - begun < 30


@pytest.mark.parametrize(
    ("seeds", "vary", "message"),
    [
        (100_000_000, [], "seeds: a study has at most 10000, got 100000000"),
        (range(10**9), [], "seeds: a study has at most 10000, got 1000000000"),
        (10_000, ["iterations={1..11}"], "at most 100000 members, got 11 configurations with 10000 seeds"),
        (2, ["iterations={0..999999999}"], "must be a range of 1 to 1000 numbers"),
        (2, ["iterations={1..1000}", "seed_of_y={1..1000}"], "at most 1000 configurations, got 1000000"),
    ],
)
def test_a_study_of_too_many_members_is_not_created(
    seeds: Any, vary: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        Study.create(tmp_path / "study", small_spec(tmp_path), seeds=seeds, vary=vary)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("seeds", [100_000_000, range(10, 10**9)])
def test_too_many_seeds_are_not_added(seeds: Any, original: Path) -> None:
    with pytest.raises(ConfigError, match="at most 10000"):
        Study.open(original / "study").add(seeds)
    assert Study.open(original / "study").seeds() == (1, 2, 3, 4)
