"""Every field of every kind of record may be forged, and no verb ends in a traceback or without an end.

The forgeries are made from real stores and studies, which together have every type of record. The quick
tests choose forgeries and verbs by a fixed rule, so that each field and each verb occurs. The long test takes
the full product.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from rayfbnn.errors import RayFBNNError
from tests.support.store.forgeries import (
    Field,
    ForgedArrays,
    Forgery,
    all_kinds,
    fields,
    forged_arrays,
    forgeries,
    kinds_in,
    records,
)
from tests.support.store.kinds import STORES, make_study
from tests.support.store.using import CASES, STORE_VERBS, STUDY_VERBS, harm

QUICK = ("plain", "bbb", "tuned", "ladder", "ladder of powers", "study")  # have every kind of record
NO_ANSWER = {
    "evidence": QUICK,
    "loo": ("tuned", "bbb"),
}  # runs that are too short for a verb, or not of its kind
_MOST = 15  # forgeries that have the right type, of a store


class Originals(dict[str, Path]):
    """The stores and the study by name, each made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        folder = self._folder / str(len(self))
        folder.mkdir()
        (folder / "new.csv").write_text(CASES)
        self[name] = folder / ("study" if name == "study" else "run.zarr")
        (make_study if name == "study" else STORES[name])(self[name], folder)
        return self[name]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(tmp_path_factory.mktemp("originals"))


def verbs_of(name: str) -> Mapping[str, Callable[[Path], object]]:
    return STUDY_VERBS if name == "study" else STORE_VERBS


def turns(verbs: Mapping[str, Callable[[Path], object]], number: int) -> dict[str, Callable[[Path], object]]:
    """Return one of the verbs, which changes with the number."""
    name = list(verbs)[number % len(verbs)]
    return {name: verbs[name]}


def fields_of(originals: Originals, name: str) -> list[Field]:
    """Return the fields of a store that those before it do not have."""
    known = {field.of for other in QUICK[: QUICK.index(name)] for field in fields(originals[other])}
    new = {field.of: field for field in fields(originals[name]) if field.of not in known}
    return list(new.values())


def harms(
    original: Path,
    forged: Iterable[Forgery | ForgedArrays],
    verbs: Callable[[int], Mapping[str, Callable[[Path], object]]],
) -> list[str]:
    """Return the harm that forgeries do to the verbs that `verbs` gives for their numbers."""
    found = []
    for number, forgery in enumerate(forged):
        folder = original.parent.parent / "forged"
        shutil.copytree(original.parent, folder)
        forgery.apply(folder / original.name)
        if said := harm(folder / original.name, verbs(number)):
            found.append(f"{forgery}: {said}")
        shutil.rmtree(folder)
    return found


def test_every_kind_of_record_has_forgeries_of_every_field(originals: Originals) -> None:
    seen: set[str] = set()
    forged: set[str] = set()
    for name in QUICK:
        seen = seen.union(*(kinds_in(record) for _, record in records(originals[name])))
        for field in fields_of(originals, name):
            assert len(forgeries(originals[name], field)) >= 20
            forged.add(field.of)
    kinds = all_kinds()
    assert seen == kinds.keys()
    assert forged >= {f"{kind}.{name}" for kind, names in kinds.items() for name in names}


@pytest.mark.parametrize("name", QUICK)
def test_honest_stores_and_studies_are_used(name: str, originals: Originals, tmp_path: Path) -> None:
    for verb, use in verbs_of(name).items():
        folder = Path(shutil.copytree(originals[name].parent, tmp_path / verb))
        try:
            use(folder / originals[name].name)
        except RayFBNNError as exc:
            assert name in NO_ANSWER.get(verb, ()), exc


@pytest.mark.parametrize("name", QUICK)
def test_no_forged_field_does_harm(name: str, originals: Originals) -> None:
    chosen = [
        forgeries(originals[name], field)[7 * number % 20]
        for number, field in enumerate(fields_of(originals, name))
        if number % 3 == 0 or not field.is_of_configuration
    ]
    assert harms(originals[name], chosen, lambda number: turns(verbs_of(name), number)) == []


@pytest.mark.parametrize("name", QUICK)
def test_no_forged_field_of_the_right_type_does_harm(name: str, originals: Originals) -> None:
    own = [field for field in fields_of(originals, name) if not field.is_of_configuration]
    every = [one for field in own for one in forgeries(originals[name], field)]
    chosen = [one for one in every[:: max(1, len(every) // (5 * _MOST))] if one.has_type(originals[name])]
    assert len(chosen) >= _MOST // 3
    arrays = [] if name == "study" else forged_arrays(originals[name])[::4]
    assert harms(originals[name], [*chosen, *arrays], lambda number: turns(verbs_of(name), number)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [*STORES, "study"])
def test_no_forgery_of_all_does_harm(name: str, originals: Originals) -> None:
    root = originals[name]
    every = [one for field in fields(root) for one in forgeries(root, field)]
    arrays = [] if name == "study" else forged_arrays(root)
    assert harms(root, [*every, *arrays], lambda number: verbs_of(name)) == []
