"""Records of a study that someone has made to do harm are refused, or used without any."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import ConfigError, RayFBNNError, StoreCorruptError
from rayfbnn.store.records import SEAL, seal_of
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from tests.support.small import small_spec
from tests.support.store.forging import document, sealed

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


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a look, a member that failed, and a seed that was added afterwards."""
    folder = tmp_path_factory.mktemp("hostile")
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    rule = Rule(max_rhat=1.0000001, least_draws=5, looks=2, cases=3)
    study = Study.create(folder / "study", spec, seeds=3, rule=rule)
    study.members.fail(Member(0, 3), "the first energy is not finite")
    study.run(workers=0, progress=False)
    study.add([4])
    return folder / "study"


def keys(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, but for those in a configuration and in further quantities."""
    entries = list(content.items() if isinstance(content, dict) else enumerate(content))
    for name, value in entries[:1] if path in (("quantities",), ("reasons",), ("digests",)) else entries:
        if name != SEAL:
            yield (*path, name)
        if isinstance(value, dict | list) and name != "keys":
            yield from keys(value, (*path, name))


def changed(content: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    table: Any = content
    for name in path[:-1]:
        table = table[name]
    table[path[-1]] = value
    return content


def forge(study: Path, file: str, content: dict[str, Any]) -> None:
    """Write a file with a seal that fits, and let all records be of the study that the plan then is."""
    (study / file).write_bytes(sealed(content))
    if file == PLAN:
        identity = seal_of((study / PLAN).read_bytes(), study)
        for folder in ("looks", "additions", "failures"):
            for record in (study / folder).rglob("*.json"):
                record.write_bytes(sealed(document(record) | {"study": identity}))


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
    shutil.copytree(original, study)
    records = [
        path.relative_to(original) for path in original.rglob("*.json") if ".zarr" not in str(path.parent)
    ]
    used: dict[str, list[Any]] = {}
    for path in keys(document(original / file)):
        for value in HOSTILE:
            for record in records:
                shutil.copy(original / record, study / record)
            forge(study, file, changed(document(study / file), path, value))
            if happens(study) == "used":
                used.setdefault(".".join(map(str, path)), []).append(value)
    assert used == HARMLESS.get(file, {})


def _larger(study: Path, *, configurations: int, seeds: int) -> None:
    """Let the plan have more configurations, whose temperatures differ, and more seeds."""
    plan = document(study / PLAN)
    (one,) = plan["configurations"]
    plan["configurations"] = [
        one | {"varied": [f"a={number}"], "keys": one["keys"] | {"temperature": 1 + number / 10_000}}
        for number in range(configurations)
    ]
    plan["seeds"] = list(range(1, seeds + 1))
    for folder in ("looks", "additions", "failures"):
        shutil.rmtree(study / folder)
    forge(study, PLAN, plan)


def _with_additions(study: Path, *, configurations: int, seeds: int) -> None:
    """Let additions of at most 10,000 seeds, each small enough for one call, give that many seeds."""
    _larger(study, configurations=configurations, seeds=10)
    (study / "additions").mkdir()
    identity = seal_of((study / PLAN).read_bytes(), study)
    for number, first in enumerate(range(11, seeds + 1, 10_000), 1):
        record = {
            "study": identity,
            "number": number,
            "seeds": list(range(first, min(first + 10_000, seeds + 1))),
            "after_looks": [0] * configurations,
        }
        (study / f"additions/{number:06d}.json").write_bytes(sealed(record))


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
    study = Path(shutil.copytree(original, tmp_path / "study"))
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
        Study.open(original).add(seeds)
    assert Study.open(original).seeds() == (1, 2, 3, 4)
