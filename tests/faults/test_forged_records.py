"""Every field of every kind of record may be forged, and no verb ends in a traceback or without an end.

The forgeries are made from real stores and studies, which together have every type of record. The quick
tests choose some forgeries and verbs by a fixed rule, so that each type and each verb occurs. The long test
takes the full product.
"""

from __future__ import annotations

import shutil
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.errors import RayFBNNError
from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import RunOptions, run_rounds, unfinished_batches
from rayfbnn.spec import RunSpec
from rayfbnn.store.locking import HOLDER
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from rayfbnn.study.driving import drive
from rayfbnn.study.plan import Member
from tests.support.marks import some_long
from tests.support.small import make_store, small_spec, write_train
from tests.support.store.fits import fit_spec, make_fit
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
from tests.support.store.forging import VERDICT, limited
from tests.support.store.ladder_runs import SETTINGS, ladder_spec

_AUTOMATIC = {"op": "hybrid", "steps": "auto", "stepsize": "auto", "scaling": "auto"}
_TUNED: list[dict[str, Any]] = [
    {"iterations": 4, "keep": "warmup", "operations": [_AUTOMATIC]},
    {"iterations": 5, "operations": [_AUTOMATIC]},
]
_SHORT = [
    {"iterations": 6, "operations": [{"op": "sample-sigmas"}, {"op": "hybrid", "steps": 3, "stepsize": 0.1}]}
]
# A table with every kind of column, for each kind of target.
_MIXED = "x1,x2,colour,size,constant,y,class,count,time\n" + "".join(
    f"{row / 7 - 1:.3f},{'' if row == 3 else row % 5},{'red' if row % 3 else 'blue'},{row % 4},1,"
    f"{row % 7 - 3},{'ab'[row % 2]},{row % 6},{(-1) ** (row % 3 == 1) * (row + 1) / 9:.3f}\n"
    for row in range(14)
)
_NETWORK = {"hidden": [{"units": 2, "activation": "tanh"}]}


def _mixed(model: dict[str, Any], target: str, **keys: Any) -> Callable[[Path, Path], None]:
    def make(path: Path, folder: Path) -> None:
        (folder / "mixed.csv").write_text(_MIXED)
        data = {
            "train": "mixed.csv",
            "inputs": ["x1", "x2", "colour", "size"],
            "targets": [target],
            "missing": "indicator",
            "standardize": ["inputs together"],
        }
        raw = {"chains": 4, "chains_per_batch": 2, "model": model, "network": _NETWORK}
        api.sample(
            RunSpec.from_dict({**raw, "data": data, **keys}, base_dir=folder), path, workers=0, progress=False
        )

    return make


def _sampled(path: Path, spec: RunSpec, *, last: int | None = None, after: int | None = None) -> None:
    """Sample a run up to the iteration `last`, or stop it after so many steps of progress."""
    store = make_store(path, spec)
    with store.lock(), InProcess() as executor:
        for number, _ in enumerate(run_rounds(store, executor, last=last)):
            if number == after:
                executor.request_stop()
        if last is None and after is None:
            store.gather(0, everything=True)


def _plain(path: Path, folder: Path) -> None:
    _sampled(path, small_spec(folder))


def _tuned(path: Path, folder: Path) -> None:
    """A tuned run with a verdict, made longer after it, and with a note on its driver."""
    spec = small_spec(folder, phase=_TUNED, chains=2)
    _sampled(path, spec)
    store = Store.open(path)
    with store.lock():
        store.verdicts.append(VERDICT)
        store.extend(store.spec.with_iterations(7), 7)
    (path / "commits" / HOLDER).write_bytes(seal({"host": "elsewhere", "pid": 7, SEAL: NO_SEAL}))


def _fit(method: str, *, steps: int | None = None) -> Callable[[Path, Path], None]:
    def make(path: Path, folder: Path) -> None:
        store = make_fit(path, fit_spec(folder, method))
        with store.lock(), InProcess() as executor:
            for number, _ in enumerate(run_rounds(store, executor)):
                if number == steps:
                    executor.request_stop()

    return make


def _independent(verb: Callable[..., object]) -> Callable[[Path, Path], None]:
    def make(path: Path, folder: Path) -> None:
        write_train(folder)
        verb(small_spec(folder, model__noise="3"), path, draws=6)

    return make


STORES: dict[str, Callable[[Path, Path], None]] = {
    "plain": _plain,
    "plain, cut": lambda path, folder: _sampled(path, small_spec(folder), last=11),
    "tuned": _tuned,
    "tuned, cut in tuning": lambda path, folder: _sampled(
        path, small_spec(folder, phase=_TUNED, chains=4, draws_per_block=1), after=7
    ),
    "ladder": lambda path, folder: _sampled(path, ladder_spec(folder)),
    "ladder, cut at its start": lambda path, folder: _sampled(path, ladder_spec(folder), after=5),
    "ladder, cut in annealing": lambda path, folder: _sampled(path, ladder_spec(folder), last=7),
    "ladder, cut in adaptation": lambda path, folder: _sampled(
        path, ladder_spec(folder, settings={"levels": "auto", "adaptation": 20}), after=4 * 15
    ),
    "ladder of powers": _mixed({"kind": "class"}, "class", iterations=8, ladder=SETTINGS | {"levels": 3}),
    "laplace": _fit("laplace"),
    "bbb": _fit("bbb"),
    "bbb, cut": _fit("bbb", steps=5),
    "vep": _fit("vep"),
    "map": _fit("map"),
    "prior": _independent(api.prior),
    "exact": _independent(api.reject),
    "dispersion": _mixed({"kind": "count", "dispersion": "0.7:4:5"}, "count", phase=_SHORT),
    "t noise": _mixed({"kind": "real", "noise": "0.3:3:4:4"}, "y", phase=_SHORT),
    "survival": _mixed({"kind": "survival", "hazard": "constant"}, "time", phase=_SHORT),
    "parts": lambda path, folder: _sampled(path, small_spec(folder, data__parts=2, phase=_SHORT)),
}


def make_study(path: Path, folder: Path) -> None:
    """A study with looks, a member that failed, and seeds added afterwards."""
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    rule = Rule(max_rhat=1.0000001, least_draws=5, looks=2, cases=3)
    study = Study.create(path, spec, seeds=3, rule=rule)
    study.members.fail(Member(0, 3), "the first energy is not finite")
    study.run(workers=0, progress=False)
    study.add([4])


MOST_CHARACTERS = 21_000  # of a message
_STEPS = 6  # of progress, before a resumed run is asked to stop
CASES = "x1,x2,colour,size,y,class,count,time\n.1,.2,red,1,.5,a,2,1.5\n-.3,1,blue,2,.1,b,0,.3\n"  # new.csv


def _resume(path: Path) -> None:
    store = Store.open(path)
    if store.kind in ("prior", "exact"):
        api.resume(path, workers=0, progress=False)
    with store.lock(), InProcess() as executor:
        if store.kind == "mcmc" and not unfinished_batches(store, store.spec.total_iterations):
            n = store.spec.phase[-1].iterations + 2
            spec = store.spec.with_iterations(n)
            store.extend(spec, spec.kept_draws)
        for number, _ in enumerate(run_rounds(store, executor)):
            if number == _STEPS:
                executor.request_stop()
        store.gather(0, everything=True)


STORE_VERBS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: api.open(path).load(),
    "status": lambda path: str(api.status(path)),
    "show": lambda path: str(api.show(str(path))),
    "diagnose": lambda path: str(api.diagnose(path)),
    "predict": lambda path: api.predict(path, data=path.parent / "new.csv"),
    "loo": lambda path: str(api.loo(path)),
    "report": lambda path: api.report(path, out=path.parent / "report.html", progress=False),
    "export": lambda path: api.export(path, out=path.parent / "model.npz"),
    "load": lambda path: api.load(path),
    "evidence": lambda path: api.evidence(path, runs=2, temperatures=3, progress=False),
    "verify": lambda path: str(api.verify(path)),
    "repair": lambda path: str(api.verify(path, repair=True, dry_run=True)),
    "resume": _resume,
}


def _run_study(path: Path) -> None:
    study = Study.open(path)
    options = RunOptions(workers=0, address=None, max_failures=3, progress=False, log_format="text")
    for number, _ in enumerate(drive(study, options, sleep=lambda seconds: None)):
        if number == 2:
            return


STUDY_VERBS: dict[str, Callable[[Path], object]] = {
    "status": lambda path: str(Study.open(path).status()),
    "diagnose": lambda path: str(Study.open(path).diagnose()),
    "predict": lambda path: Study.open(path).predict(path.parent / "train.csv"),
    "report": lambda path: Study.open(path).report(
        path.parent / "report.html", data=path.parent / "train.csv"
    ),
    "run": _run_study,
    "add": lambda path: Study.open(path).add(1),
}


def harm(path: Path, verbs: Mapping[str, Callable[[Path], object]]) -> str:
    """Use a store or study with verbs in a child process, and return the harm that came to it, or ""."""
    said = limited(lambda: _used(path, verbs), waiting=600)  # by the clock; other programs may be at work
    return "" if said[-1] == _HARMLESS else ": ".join(said[-2:])


def _used(path: Path, verbs: Mapping[str, Callable[[Path], object]]) -> Iterator[str]:
    warnings.simplefilter("ignore")
    for name, use in verbs.items():
        yield name
        try:
            use(path)
        except RayFBNNError as exc:
            if len(str(exc)) > MOST_CHARACTERS:
                yield f"a message of {len(str(exc))} characters: {str(exc)[:300]}"
                return
        except BaseException:
            yield "".join(traceback.format_exc())[-3500:]
            return
    yield _HARMLESS


_HARMLESS = "no harm"
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


@pytest.mark.parametrize("name", some_long(QUICK, ["tuned", "ladder of powers"]))
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
        if number % (9 if field.is_of_configuration else 2) == 0
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
