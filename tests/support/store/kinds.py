"""Small real stores and studies that together have every kind of record, in every state worth forging."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayfbnn import api
from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.spec import RunSpec
from rayfbnn.store.extension import RoundVerdict
from rayfbnn.store.locking import HOLDER
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from rayfbnn.study.members import Member
from tests.support.small import make_store, small_spec, write_train
from tests.support.store.fits import fit_spec, make_fit
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
        store.verdicts.append(RoundVerdict(5, 5, "all", "converged", "not converged", False, 1.5, 7))
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
