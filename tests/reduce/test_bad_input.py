"""What a reduction refuses: each error names the place, the exit code is not zero, and no file is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from rayfbnn import api, cli
from rayfbnn.answers import loo
from rayfbnn.answers.effects import columns_of, permutation_shares
from rayfbnn.answers.loo import leave_out
from rayfbnn.answers.measures import places
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import StoreCorruptError
from rayfbnn.reduce import tile
from rayfbnn.reduce.on_ray import OnRay
from rayfbnn.reduce.passes import TasksInProcess
from rayfbnn.reduce.tile import Reader
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from tests.support.drivers import finish, start
from tests.support.small import small_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}
PHASE = [{"iterations": 20, "operations": [{"op": "sample-sigmas"}, {"op": "heatbath"}, {"op": "hybrid"}]}]
PHASE[0]["operations"][2] |= {"steps": 5, "stepsize": 0.2}  # type: ignore[index]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one posterior with seeds 7 and 8, one of a larger network, and six new cases."""
    folder = tmp_path_factory.mktemp("bad")
    changes: dict[str, dict[str, Any]] = {
        "run": {},
        "other": {"seed": 8},
        "larger": {"seed": 9, "network__hidden": [{"units": 4, "activation": "tanh"}]},
    }
    for name, change in changes.items():
        api.sample(small_spec(folder, phase=PHASE, **change), folder / f"{name}.zarr", **HERE)
    rows = [f"{number / 5},{-number / 7},{number / 3}" for number in range(6)]
    (folder / "new.csv").write_text("\n".join(["x1,x2,y", *rows]) + "\n")
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run in a folder of its own."""
    shutil.copytree(folder / "run.zarr", tmp_path / "copy.zarr")
    return tmp_path / "copy.zarr"


def refused(tmp_path: Path, *arguments: object) -> str:
    """The one line of a command's error; the command must leave the file `out` and the folder as they are."""
    out = tmp_path / "out.csv"
    out.write_text("as it was")
    before = sorted(os.listdir(tmp_path))
    result: Result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code not in (0, None) and isinstance(result.exception, SystemExit), result.output
    assert out.read_text() == "as it was" and sorted(os.listdir(tmp_path)) == before
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("rayfbnn ")]
    assert result.stdout == ""
    return line


# Stores that do not belong together.


@pytest.mark.parametrize("verb", ["predict", "loo"])
@pytest.mark.parametrize("spelling", ["the same", "link", "another spelling"])
def test_a_store_is_not_given_twice(folder: Path, tmp_path: Path, verb: str, spelling: str) -> None:
    again = {
        "the same": folder / "run.zarr",
        "another spelling": folder / "run.zarr" / ".." / "run.zarr",
        "link": tmp_path / "link.zarr",
    }[spelling]
    (tmp_path / "link.zarr").symlink_to(folder / "run.zarr")
    data = ("--data", folder / "new.csv") if verb == "predict" else ()
    line = refused(tmp_path, verb, folder / "run.zarr", again, *data, "--out", tmp_path / "out.csv")
    assert line.endswith(f"path: {again} is given twice; give each store once")


def test_the_draws_of_a_copy_do_not_count_again(folder: Path, copy: Path, tmp_path: Path) -> None:
    """Nor do those of a copy that was lengthened."""
    out = ("--out", tmp_path / "out.csv")
    for _ in range(2):
        line = refused(tmp_path, "predict", folder / "run.zarr", copy, "--data", folder / "new.csv", *out)
        assert f"{copy}: has the same seed (7) as {folder / 'run.zarr'}" in line
        line = refused(tmp_path, "loo", folder / "run.zarr", copy, *out)
        assert line.endswith(
            f"{copy}: is a copy of {folder / 'run.zarr'} and has the same draws; give only one of the two"
        )
        api.resume(copy, iterations=30, **HERE)


def test_a_member_that_is_a_copy_of_another_is_not_pooled(folder: Path, tmp_path: Path) -> None:
    rule = Rule(max_rhat=9, max_mcse=9, least_draws=5, looks=1, cases=3)
    study = Study.create(tmp_path / "study", small_spec(tmp_path, phase=PHASE), seeds=2, rule=rule)
    study.run(**HERE)
    first, second = (Path(str(study.members.place(Member(0, seed)))) for seed in (1, 2))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    data = ("--data", folder / "new.csv", "--out", tmp_path / "out.csv")
    line = refused(tmp_path, "study", "predict", study.place, *data)
    assert f"{second}: is not a member of this study" in line


# A store that grows.


class Growing(TasksInProcess):
    """An executor that lengthens the store before the first task."""

    def map(
        self, function: Callable[[Reader, Any], Any], runs: Sequence[Draws], jobs: Sequence[Any]
    ) -> Iterator[Any]:
        lengthen(runs)
        return super().map(function, runs, jobs)


class GrowingOnRay(OnRay):
    """The same with tasks on Ray, whose workers open the store after it has grown."""

    def map(
        self, function: Callable[[Reader, Any], Any], runs: Sequence[Draws], jobs: Sequence[Any]
    ) -> Iterator[Any]:
        lengthen(runs)
        return super().map(function, runs, jobs)


def lengthen(runs: Sequence[Draws]) -> None:
    if runs[0].store.committed_draws < 50:
        api.resume(str(runs[0].path), iterations=50, **HERE)


@pytest.fixture(params=["here", pytest.param("on ray", marks=pytest.mark.ray)])
def growing(request: pytest.FixtureRequest) -> TasksInProcess | OnRay:
    if request.param == "here":
        return Growing()
    request.getfixturevalue("ray_session")
    return GrowingOnRay(None, None)


def test_the_answer_is_of_the_draws_that_were_there_at_the_start(
    folder: Path, copy: Path, growing: TasksInProcess | OnRay
) -> None:
    inputs = np.linspace(-1, 1, 20).reshape(-1, 2)
    run = committed(Store.open(copy))
    found = predict_from_draws([run], inputs, executor=growing)
    assert Store.open(copy).committed_draws == 50
    expected = predict_from_draws([committed(Store.open(folder / "run.zarr"))], inputs)
    pd.testing.assert_frame_equal(found.table, expected.table, check_exact=True)
    assert found.summary == expected.summary and found.summary["draws"] == 5 * 20


def test_cases_are_left_out_by_the_draws_that_were_there_at_the_start(
    folder: Path, copy: Path, growing: TasksInProcess | OnRay
) -> None:
    found = leave_out(committed(Store.open(copy)), executor=growing)
    assert Store.open(copy).committed_draws == 50
    expected = leave_out(committed(Store.open(folder / "run.zarr")))
    pd.testing.assert_frame_equal(found.table(), expected.table(), check_exact=True)
    assert found.n_draws == 5 * 20


# Damaged chunks.

DATA, OUT = "DATA", "OUT"
VERBS: dict[str, tuple[object, ...]] = {
    "predict": ("predict", "RUN", "--data", DATA, "--out", OUT),
    "predict by fewer draws": ("predict", "RUN", "--data", DATA, "--out", OUT, "--draws", 50),
    "predict by its error": ("predict", "RUN", "--data", DATA, "--out", OUT, "--max-mcse", "0.01"),
    "contributions": ("predict", "RUN", "--data", DATA, "--out", OUT, "--contributions"),
    "loo": ("loo", "RUN", "--out", OUT),
    "diagnose": ("diagnose", "RUN"),
    "diagnose predictions": ("diagnose", "RUN", "--for", "predictions", "--data", DATA),
    "report": ("report", "RUN", "--out", "page.html", "--no-progress"),
    "plot": ("plot", "RUN", "--out", "plots", "--data", DATA),
    "export": ("export", "RUN", "--out", "file.npz"),
}


def damaged(store: Path, array: str) -> Path:
    """Flip a bit of the last chunk of an array of draws; return the chunk."""
    chunk = max((store / "posterior" / array).glob("c.*"))
    raw = bytearray(chunk.read_bytes())
    raw[3] ^= 0x10
    chunk.write_bytes(raw)
    return chunk


@pytest.mark.parametrize("array", ["ho0", "sigma_noise"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_damaged_chunk_is_named(folder: Path, copy: Path, tmp_path: Path, verb: str, array: str) -> None:
    chunk = damaged(copy, array)
    places = {"RUN": copy, DATA: folder / "new.csv", OUT: tmp_path / "out.csv"}
    places |= {name: tmp_path / name for name in ("page.html", "plots", "file.npz")}
    line = refused(tmp_path, *(places.get(str(argument), argument) for argument in VERBS[verb]))
    assert f"{chunk}: damaged: " in line and "(it holds chains 4 to 4, draws 0 to 19)" in line


@pytest.mark.parametrize("name", ["calibration", "effects"])
def test_a_damaged_chunk_is_named_by_the_parts_of_a_report(copy: Path, name: str) -> None:
    run = committed(Store.open(copy))
    chunk, data = damaged(copy, "ho0"), run.data
    with pytest.raises(StoreCorruptError, match=f"{chunk}: damaged"):
        if name == "calibration":
            places([run], data.inputs, data.targets)
        else:
            permutation_shares(run, data.inputs, columns_of(run))


def test_a_damaged_chunk_of_a_reference_is_named_by_compare(tmp_path: Path) -> None:
    spec = tmp_path / "run.toml"
    spec.write_text(small_spec(tmp_path, phase=PHASE).to_toml())
    compare = ("compare", spec, tmp_path / "out", "--data", tmp_path / "train.csv", "--workers", 0)
    CliRunner().invoke(cli.app, [*map(str, compare), "--no-progress"])
    for name in ("compare.csv", "compare.png"):
        (tmp_path / "out" / name).unlink()
    chunk = damaged(tmp_path / "out" / "hmc.zarr", "ho0")
    assert f"{chunk}: damaged: " in refused(tmp_path, *compare, "--no-progress")
    assert os.listdir(tmp_path / "out") == ["hmc.zarr"]


@pytest.mark.ray
@pytest.mark.parametrize("verb", ["predict", "loo"])
def test_a_damaged_chunk_is_named_by_workers(folder: Path, copy: Path, tmp_path: Path, verb: str) -> None:
    chunk, out = damaged(copy, "ho0"), tmp_path / "out.csv"
    data = ("--data", folder / "new.csv") if verb == "predict" else ()
    code, output, errors = finish(start(verb, copy, *data, "--out", out, "--workers", 2))
    assert code == 1 and output == "" and not out.exists()
    assert f"rayfbnn {verb}: {chunk}: damaged: " in errors.splitlines()[-1]


# Numbers without sense, and too little memory.


def test_an_error_of_zero_takes_all_draws(folder: Path) -> None:
    by_zero, by_all = (
        api.predict(folder / "run.zarr", data=folder / "new.csv", **options)
        for options in ({"max_mcse": 0.0}, {})
    )
    pd.testing.assert_frame_equal(by_zero.table, by_all.table, check_exact=True)
    assert "of_draws" not in by_zero.summary


def test_draws_that_do_not_fit_into_memory_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile, "memory_of_machine", lambda: 10_000)
    data = ("--data", folder / "new.csv", "--out", tmp_path / "out.csv")
    line = refused(tmp_path, "predict", folder / "run.zarr", *data)
    assert "run.zarr: draws 0 to 19 of chains 0 to 1 are stored together and take " in line
    assert line.endswith("of memory, but this machine has 10 kB; use a larger one")


def test_a_case_that_does_not_fit_into_memory_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loo, "memory_of_machine", lambda: 7_000)
    line = refused(tmp_path, "loo", folder / "run.zarr", "--out", tmp_path / "out.csv")
    assert "run.zarr has 100 draws of all chains together; a single case then takes 7.2 kB of memory" in line
    assert line.endswith("and this machine has 7 kB; skip more draws")
