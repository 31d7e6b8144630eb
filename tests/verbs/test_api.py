"""The verbs from Python: their checks and refusals, and that resume produces the same bits."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfbnn
from rayfbnn import api
from rayfbnn.errors import (
    ConfigError,
    DataError,
    RayFBNNError,
    SamplingError,
    StoreBusyError,
    StoreCorruptError,
    StoreExistsError,
    StoreMismatchError,
    WorkerError,
)
from rayfbnn.selftest.selftest import selftest
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.root import read_root
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from rayfbnn.version import RESULTS
from tests.support.small import assert_same_draws, contents, small, small_spec, write_train

HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("finished")
    api.sample(small_spec(folder), folder / "run.zarr", **HERE)
    return folder / "run.zarr"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_public_names_are_there() -> None:
    for name in rayfbnn.__all__:
        assert getattr(rayfbnn, name) is not None
    assert rayfbnn.sample is api.sample
    assert {"sample", "verify", "Study", "RayFBNNError", "__version__"} < set(rayfbnn.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rayfbnn.nothing


def test_every_verb_is_public_and_nothing_else_is() -> None:
    names: dict[str, Any] = {}
    exec("from rayfbnn import *", names)
    del names["__builtins__"]
    assert sorted(names) == sorted(rayfbnn.__all__) == dir(rayfbnn)
    verbs = {name: value for name, value in names.items() if inspect.isfunction(value)}
    assert verbs == {name: getattr(api, name) for name in api.__all__}


def test_type_checkers_and_the_documentation_see_the_same_verbs() -> None:
    assert rayfbnn.__file__ is not None
    source = Path(rayfbnn.__file__).read_text()
    imported = re.findall(r"^    from (rayfbnn\.verbs\.\w+) import (\w+) as \2$", source, re.MULTILINE)
    assert {name: module for module, name in imported} == {
        name: getattr(api, name).__module__ for name in api.__all__
    }


def test_no_folder_of_the_package_has_the_name_of_a_verb() -> None:
    """An import of such a folder would put the module in the verb's place."""
    assert rayfbnn.__file__ is not None
    modules = {path.stem for path in Path(rayfbnn.__file__).parent.iterdir()}
    assert modules.isdisjoint(set(rayfbnn.__all__) - {"__version__"})


def test_a_specification_may_be_tables_or_a_file(tmp_path: Path, finished: Path) -> None:
    spec = small_spec(tmp_path)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    api.sample(tmp_path / "run.toml", tmp_path / "file.zarr", **HERE)
    tables = small(data__train=str(tmp_path / "train.csv"))
    api.sample(tables, tmp_path / "tables.zarr", **HERE)
    assert_same_draws(tmp_path / "file.zarr", finished)
    assert_same_draws(tmp_path / "tables.zarr", finished)


def test_set_replaces_keys(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    api.sample(spec, tmp_path / "run.zarr", set=["chains=2", "phase.2.iterations=3"], **HERE)
    store = Store.open(tmp_path / "run.zarr")
    assert (store.n_chains, store.committed_draws) == (2, 3)


def test_draws_are_an_xarray_tree(finished: Path) -> None:
    tree = api.open(finished)
    assert tree["posterior"].sizes["chain"] == 5
    assert tree["posterior"].sizes["draw"] == 10
    np.testing.assert_array_equal(
        tree["sample_stats"]["log_likelihood_total"].values, contents(finished)["log_likelihood"]
    )


# Refusals of sample, before anything is created.


def _refused(folder: Path, kind: type[RayFBNNError], **settings: Any) -> str:
    spec = settings.pop("spec", None) or small_spec(folder)
    before = tree(folder)
    path = settings.pop("path", folder / "run.zarr")
    with pytest.raises(kind) as caught:
        api.sample(spec, path, **{**HERE, **settings})
    assert tree(folder) == before
    return str(caught.value)


def test_sample_refuses_a_path_that_exists(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "folder", "dangling"):
        assert name in _refused(tmp_path, StoreExistsError, path=tmp_path / name)


def test_sample_refuses_a_folder_it_may_not_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so another user is simulated.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written to" in _refused(tmp_path, ConfigError)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"workers": 0, "address": "auto"}, "workers: 0 runs in this process"),
        ({"max_failures": -1}, "max_failures: must be at least 0, got -1"),
        ({"set": ["chains=0"]}, "chains"),
        ({"set": ["nothing=1"]}, "nothing: unknown key"),
        ({"set": ["chains"]}, "chains"),
        ({"set": ['device="gpu"']}, "device: there is no GPU"),
        (
            {"set": ["phase.2.operations.2.partitions=13"]},
            "partitions: must be at most 12, the number of training cases",
        ),
    ],
)
def test_sample_refuses_bad_arguments(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    assert named in _refused(tmp_path, ConfigError, **settings)


def test_sample_without_ray_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if Ray were not installed
    assert "Ray is not installed" in _refused(tmp_path, WorkerError, workers=None)


# Resume.


def test_resume_of_a_finished_run_changes_nothing(copied: Path) -> None:
    before = contents(copied)
    summary = api.resume(copied, **HERE)
    assert summary.draws == 10
    assert contents(copied)["positions"].tobytes() == before["positions"].tobytes()


def test_a_longer_run_is_the_run_that_was_planned_longer(tmp_path: Path, copied: Path) -> None:
    api.resume(copied, iterations=14, **HERE)
    spec = small_spec(tmp_path)
    api.sample(spec.with_iterations(14), tmp_path / "planned.zarr", **HERE)
    assert contents(copied)["positions"].shape[1] == 14
    assert_same_draws(copied, tmp_path / "planned.zarr")


def test_resume_accepts_the_same_specification_and_a_longer_last_phase(tmp_path: Path, copied: Path) -> None:
    spec = small_spec(tmp_path)
    assert api.resume(copied, spec=spec, **HERE).draws == 10
    assert api.resume(copied, spec=spec.with_iterations(12), **HERE).draws == 12


CHANGES: dict[str, tuple[str, Any]] = {
    "seed": ("seed", 8),
    "chains": ("chains", 6),
    "chains_per_batch": ("chains_per_batch", 3),
    "draws_per_block": ("draws_per_block", 5),
    "dtype": ("dtype", "float64"),
    "device": ("device", "gpu"),
    "model.noise": ("model__noise", "0.3:4"),
    "network.priors.ih0": ("network__priors__ih0", "0.7:4"),
    "network.hidden[0].units": ("network__hidden", [{"units": 4, "activation": "tanh"}]),
    "data.standardize": ("data__standardize", []),
    "initial.sigmas": ("initial", {"sigmas": 0.4}),
}


@pytest.mark.parametrize("key", CHANGES)
def test_resume_refuses_another_specification_and_names_the_key(
    tmp_path: Path, copied: Path, key: str
) -> None:
    name, value = CHANGES[key]
    before = tree(copied)
    with pytest.raises(StoreMismatchError) as caught:
        api.resume(copied, spec=small_spec(tmp_path, **{name: value}), **HERE)
    assert f"{key}: was" in str(caught.value)
    assert caught.value.exit_code == 2
    assert tree(copied) == before


def test_resume_names_every_difference(tmp_path: Path, copied: Path) -> None:
    raw = small(seed=9, chains=4)
    raw["phase"][0]["operations"][2]["stepsize"] = 0.25
    raw["phase"][-1]["iterations"] = 8
    write_train(tmp_path)
    with pytest.raises(StoreMismatchError) as caught:
        api.resume(copied, spec=RunSpec.from_dict(raw, base_dir=tmp_path), **HERE)
    for key in ("seed", "chains", "phase[0].operations[2].stepsize", "phase[2].iterations"):
        assert f"{key}: was" in str(caught.value)


@pytest.fixture
def own_run(tmp_path: Path) -> Path:
    """A finished run of one batch whose training file may be changed."""
    api.sample(small_spec(tmp_path, chains=2), tmp_path / "run.zarr", **HERE)
    return tmp_path / "run.zarr"


def test_resume_refuses_a_run_of_another_version(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(copied)
    monkeypatch.setattr("rayfbnn.version.__version__", "9.9.9")
    with pytest.raises(StoreMismatchError, match=f"made by rayfbnn {rayfbnn.__version__}, but this is 9.9.9"):
        api.resume(copied, iterations=100, **HERE)
    assert tree(copied) == before


def test_resume_run_and_repair_refuse_a_run_with_other_results(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, spec = tree(copied), Store.open(copied).spec
    assert Store.open(copied).root.results == RESULTS
    monkeypatch.setattr("rayfbnn.version.RESULTS", RESULTS + 1)
    calls: list[Callable[[], object]] = [
        lambda: api.resume(copied, iterations=100, **HERE),
        lambda: api.sample_or_resume(spec, copied, **HERE),
        lambda: api.verify(copied, repair=True),
    ]
    for call in calls:
        with pytest.raises(StoreMismatchError, match=f"with results {RESULTS}, but this has results"):
            call()
    assert tree(copied) == before
    assert len(api.predict(copied, data=spec.train_path).table)


def test_a_store_from_before_results_were_recorded_has_the_first_ones(copied: Path) -> None:
    file = copied / "zarr.json"
    root = json.loads(file.read_text())
    del root["attributes"]["results"]
    file.write_bytes(seal(root | {"attributes": root["attributes"] | {SEAL: NO_SEAL}}))
    assert read_root(FileSystem(), copied).results == 1


def test_resume_refuses_other_data_and_another_order_and_names_the_place(own_run: Path) -> None:
    train = own_run.parent / "train.csv"
    header, *rows = train.read_text().splitlines()
    changed = [*rows[:4], "0.5," + rows[4].split(",", 1)[1], *rows[5:]]
    for other, place in (
        (changed, r"row 5, column x1: .* in the store, 0\.5 in the file"),
        (rows[::-1], "row 1, column x1"),
    ):
        train.write_text("\n".join([header, *other]) + "\n")
        with pytest.raises(StoreMismatchError, match=place):
            api.resume(own_run, data=train, **HERE)


def test_resume_does_not_open_the_training_file_that_the_store_names(own_run: Path) -> None:
    (own_run.parent / "train.csv").unlink()
    os.mkfifo(own_run.parent / "train.csv")  # reading it would wait for ever
    assert api.resume(own_run, iterations=11, **HERE).draws == 11


def test_resume_takes_the_same_data_from_another_place(own_run: Path, tmp_path: Path) -> None:
    (own_run.parent / "train.csv").rename(tmp_path / "moved.csv")
    assert api.resume(own_run, data=tmp_path / "moved.csv", iterations=11, **HERE).draws == 11
    (tmp_path / "other.csv").write_text("x1,x2,y\n1,2,3\n4,5,6\n")
    with pytest.raises(StoreMismatchError, match="number of rows: 12 in the store, 2 in the file"):
        api.resume(own_run, data=tmp_path / "other.csv", **HERE)
    with pytest.raises(DataError, match="no such file"):
        api.resume(own_run, data=tmp_path / "none.csv", **HERE)


def test_a_store_in_use_is_refused_and_unchanged(copied: Path) -> None:
    with Store.open(copied).lock():
        before = tree(copied)
        with pytest.raises(StoreBusyError, match=f"process {os.getpid()}"):
            api.resume(copied, iterations=20, **HERE)
        assert tree(copied) == before


def test_one_store_locks_nobody_else_out(tmp_path: Path, copied: Path) -> None:
    with Store.open(copied).lock():
        api.sample(small_spec(tmp_path), tmp_path / "other.zarr", **HERE)


# Reading verbs.


def test_predict_pools_stores_and_writes_a_table(tmp_path: Path, finished: Path) -> None:
    spec = small_spec(tmp_path, seed=8)
    api.sample(spec, tmp_path / "other.zarr", **HERE)
    alone = api.predict(finished, data=tmp_path / "train.csv")
    pooled = api.predict(
        [finished, tmp_path / "other.zarr"], data=tmp_path / "train.csv", out=tmp_path / "out.csv"
    )
    assert (alone.summary["draws"], pooled.summary["draws"]) == (50, 100)
    assert pooled.summary["cases"] == 12
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 13


@pytest.mark.parametrize(
    ("settings", "kind", "named"),
    [
        ({"out": "out.txt"}, ConfigError, "out: must end in .csv or .parquet"),
        ({"out": "none/out.csv"}, ConfigError, "there is no folder"),
        ({"path": []}, ConfigError, "path: no store given"),
    ],
)
def test_predict_refuses_bad_arguments(
    tmp_path: Path,
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    kind: type[RayFBNNError],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_train(tmp_path)
    before = tree(tmp_path)
    arguments = {"path": finished, "data": "train.csv", **settings}
    with pytest.raises(kind, match=named):
        api.predict(arguments.pop("path"), **arguments)
    assert tree(tmp_path) == before


def test_diagnose_gives_json(finished: Path) -> None:
    read = json.loads(api.diagnose(finished, cases=2).to_json())
    assert read["ok"] is False  # ten draws are too few
    assert {"mean", "sd", "rhat", "ess_bulk", "ess_tail", "mcse"} <= set(read["quantities"]["sigma_noise"])


def test_show_refuses_to_replace_keys_of_a_store(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"set: .*run.zarr is fixed, got chains=2; leave it out"):
        api.show(finished, set=["chains=2"])


@pytest.mark.usefixtures("undrawn_pictures")
def test_plot_looks_at_the_folder_it_writes_to(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, folder = tmp_path / "parent", tmp_path / "parent" / "pictures"
    folder.mkdir(parents=True)
    read_only = parent
    # Root may write anywhere, so another user is simulated.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != read_only)
    monkeypatch.chdir(folder)
    for out in (".", folder):
        assert api.plot(finished, out=out)
    with pytest.raises(ConfigError, match="parent cannot be written to"):
        api.plot(finished, out=parent / "new")
    read_only = folder
    with pytest.raises(ConfigError, match="pictures cannot be written to"):
        api.plot(finished, out=folder)


# Exact draws.


def test_exact_draws_are_rejected_into_a_store_and_checked_against_a_run(tmp_path: Path) -> None:
    raw = small(model__noise="0.5:3", data__standardize=[], draws_per_block=100)
    write_train(tmp_path, n_cases=3)
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    summary = api.reject(spec, tmp_path / "exact.zarr", draws=60, progress=False)
    assert (summary.chains, summary.draws) == (1, 60)
    assert summary.acceptance is not None and 0 < summary.acceptance < 0.5
    assert api.verify(tmp_path / "exact.zarr").ok
    again = api.reject(spec, tmp_path / "again.zarr", draws=60, proposals_per_round=77, progress=False)
    assert (again.draws, again.acceptance) == (60, summary.acceptance)
    ours, theirs = (Store.open(tmp_path / name).read_positions() for name in ("exact.zarr", "again.zarr"))
    assert ours.tobytes() == theirs.tobytes()
    with pytest.raises(ConfigError, match="nothing to resume"):
        api.resume(tmp_path / "exact.zarr", **HERE)
    api.sample(spec, tmp_path / "run.zarr", set=["chains=2", "phase.2.iterations=100"], **HERE)
    result = api.check(tmp_path / "run.zarr", tmp_path / "exact.zarr")
    assert result.false_alarm_rate == 1e-3


@pytest.mark.parametrize(
    ("settings", "kind", "named"),
    [
        ({"draws": 0}, ConfigError, "draws: must be at least 1, got 0"),
        ({"draws": 5, "proposals_per_round": 0}, ConfigError, "proposals_per_round"),
        ({"draws": 5, "max_proposals": 0}, ConfigError, "max_proposals"),
        ({"draws": 100_000, "max_proposals": 50}, SamplingError, "50 proposals"),
    ],
)
def test_reject_that_cannot_succeed_leaves_nothing(
    tmp_path: Path, settings: dict[str, Any], kind: type[RayFBNNError], named: str
) -> None:
    spec = small_spec(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(kind, match=named):
        api.reject(spec, tmp_path / "exact.zarr", progress=False, **settings)
    assert tree(tmp_path) == before


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INF, -INF, -1, 1.5])
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("sample", "workers"),
        ("sample", "max_failures"),
        ("resume", "iterations"),
        ("resume", "workers"),
        ("predict", "skip"),
        ("diagnose", "cases"),
        ("diagnose", "skip"),
        ("reject", "draws"),
        ("reject", "proposals_per_round"),
        ("reject", "max_proposals"),
        ("prior", "draws"),
        ("evidence", "temperatures"),
        ("check", "cases"),
        ("check", "skip"),
        ("bench", "chains"),
        ("plot", "skip"),
        ("selftest", "seed"),
        ("selftest", "chains"),
    ],
)
def test_a_count_must_be_a_whole_number(
    tmp_path: Path, finished: Path, verb: str, name: str, value: float
) -> None:
    new, train = tmp_path / "new.zarr", finished.parent / "train.csv"
    arguments: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("sample", "reject", "prior"), (small_spec(tmp_path), new)),
        **dict.fromkeys(("evidence", "bench"), (small_spec(tmp_path),)),
        **dict.fromkeys(("resume", "diagnose", "plot", "predict"), (finished,)),
        "check": (finished, finished),
        "selftest": (),
    }
    needed: dict[str, dict[str, Any]] = {
        "reject": {"draws": 5},
        "predict": {"data": train},
        "sample": HERE,
        "resume": HERE,
    }
    function = selftest if verb == "selftest" else getattr(api, verb)
    with pytest.raises(ConfigError, match=f"^{name}: must be .*got {value}"):
        function(*arguments[verb], **{**needed.get(verb, {}), name: value})
    assert not new.exists()


@pytest.mark.parametrize(
    ("verb", "name", "right", "values"),
    [
        ("diagnose", "max_rhat", "a number of at least 1", (INF, -INF, -1.0, 0.0, 0.99)),
        ("diagnose", "min_ess", "a number above 0", (INF, -INF, -1.0, 0.0)),
        ("evidence", "power", "above 0 and at most 100", (INF, -INF, -1, 0)),
        ("check", "false_alarm_rate", "between 0 and 1", (INF, -INF, -1, 0, 1)),
    ],
)
def test_a_number_must_be_in_its_range(
    tmp_path: Path, finished: Path, verb: str, name: str, right: str, values: tuple[float, ...]
) -> None:
    arguments = {"diagnose": (finished,), "evidence": (small_spec(tmp_path),), "check": (finished, finished)}
    for value in (NAN, *values):
        with pytest.raises(ConfigError, match=f"{name}: must be {right}.* got {value}"):
            getattr(api, verb)(*arguments[verb], **{name: value})


def test_the_extreme_thresholds_that_are_possible_are_taken(finished: Path) -> None:
    thresholds = api.diagnose(finished, max_rhat=1, min_ess=1e-9).thresholds
    assert (thresholds["max_rhat"], thresholds["min_ess"]) == (1, 1e-9)


def test_a_corrupt_store_is_never_written_over(tmp_path: Path, copied: Path) -> None:
    (copied / "zarr.json").write_text("{}")
    before = tree(copied)
    with pytest.raises(StoreCorruptError):
        api.resume(copied, **HERE)
    with pytest.raises(StoreExistsError):
        api.sample(small_spec(tmp_path), copied, **HERE)
    assert tree(copied) == before
