"""Where the draws of an estimator are: temporary stores that go with it, stores that stay, and pickles."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import rayfbnn
from rayfbnn.errors import StoreError
from rayfbnn.sklearn import BayesianNetworkRegressor
from rayfbnn.sklearn.base import TemporaryStore
from rayfbnn.sklearn.removal import identity, remove
from rayfbnn.spec import run_spec
from rayfbnn.store.store import Store
from tests.support.drivers import wait_until
from tests.support.sklearn.small import line, numbers_spec, regressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = line()
SPEC = numbers_spec(first=2, kept=6)


def test_a_temporary_store_goes_with_its_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimator that is fitted again, or fails, leaves nothing behind either; nor do threads stay.

    A pickle has the whole store.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    estimator = regressor(spec=SPEC).fit(X, Y)
    threads = set(threading.enumerate())
    first = estimator.store_
    assert first.is_relative_to(tmp_path)
    estimator.fit(X, Y)
    assert not first.exists() and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="iterations"):
        regressor(iterations=-1).fit(X, Y)
    gc.disable()  # no circle of references may keep a store until the garbage is collected
    try:
        expected, pickled = estimator.predict(X), pickle.dumps(estimator)
        del estimator
        assert list(tmp_path.iterdir()) == []
        restored = pickle.loads(pickled)
        assert [restored.store_.parent] == list(tmp_path.iterdir())
        np.testing.assert_array_equal(restored.predict(X), expected)
        assert rayfbnn.verify(restored.store_).ok
        del restored
        assert list(tmp_path.iterdir()) == []
    finally:
        gc.enable()
    assert set(threading.enumerate()) <= threads


_CHILD = """
import glob, multiprocessing, os, signal, sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from rayfbnn.sklearn.base import TemporaryStore
from tests.sklearn.test_stores import SPEC, X, Y
from tests.support.sklearn.small import regressor

def predict(model): return model.predict(X).tolist()
def fit(end):
    global kept
    kept = regressor(spec=SPEC).fit(X, Y)
    if end == "exit": os._exit(0)
    if end == "signal": os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    count = lambda: len(glob.glob(os.environ["TMPDIR"] + "/rayfbnn-*"))
    parent = regressor(spec=SPEC).fit(X, Y)
    expected = predict(parent)
    context = multiprocessing.get_context(sys.argv[2])
    with context.Pool(2) as pool:
        assert pool.map(predict, [parent] * 6) == [expected] * 6
    assert count() == 1, "after a pool"
    for end in ("return", "exit", "signal"):
        process = context.Process(target=fit, args=(end,))
        process.start()
        process.join()
        deadline = time.monotonic() + (end != "return") * 20
        while count() > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count() == 1, end
    if os.fork() == 0:
        del parent
        sys.exit()
    os.wait()
    assert count() == 1 and parent.store_.is_dir(), "after a fork"
    if sys.argv[3] == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("method", "end"),
    [
        ("fork", "signal"),
        pytest.param("spawn", "return", marks=pytest.mark.long),
        pytest.param("forkserver", "return", marks=pytest.mark.long),
    ],
)
def test_a_temporary_store_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, end: str
) -> None:
    """Also when it is killed. A child leaves its parent's store alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    (tmp_path / "main.py").write_text(_CHILD)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), root, method, end], capture_output=True, text=True
    )
    assert done.returncode == (-signal.SIGKILL if end == "signal" else 0), done.stderr
    wait_until(lambda: not list(folder.glob("rayfbnn-*")))


def test_workers_of_joblib_leave_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    estimator = regressor(spec=SPEC).fit(X, Y)
    with joblib.parallel_config("loky", n_jobs=2):
        scores = cross_val_score(regressor(spec=SPEC), X, Y, cv=2)
        predictions = joblib.Parallel()(joblib.delayed(estimator.predict)(X) for _ in range(4))
    assert len(scores) == 2
    np.testing.assert_array_equal(predictions, [estimator.predict(X)] * 4)
    assert list(tmp_path.glob("rayfbnn-*")) == [estimator.store_.parent]


def _losses() -> Iterator[tuple[str, Callable[[Path], object]]]:
    yield "the folder", lambda path: shutil.rmtree(path.parent)
    yield "the store", shutil.rmtree
    yield "all files", lambda path: [file.unlink() for file in path.rglob("*") if file.is_file()]
    for name in ("zarr.json", "commits/batch0000/head.json"):
        yield name, lambda path, name=name: (path / name).unlink()
    for name in ("commits", "commits/batch0000", "observed_data"):
        yield name, lambda path, name=name: shutil.rmtree(path / name)


@pytest.mark.parametrize(("what", "lose"), _losses())
def test_a_store_that_a_cleaner_removes_is_named_with_the_remedy(
    what: str, lose: Callable[[Path], object]
) -> None:
    estimator = regressor(spec=SPEC).fit(X, Y)
    expected, path = estimator.predict(X), estimator.store_
    lose(path)
    np.testing.assert_array_equal(estimator.predict(X), expected)
    settings = {**estimator.get_params(), "warm_start": True, "iterations": 9}
    for use in (
        lambda: pickle.dumps(estimator),
        lambda: rayfbnn.diagnose(path),
        lambda: rayfbnn.predict(path, data=X),
        lambda: estimator.set_params(**settings).fit(X, Y),
    ):
        with pytest.raises((StoreError, ValueError), match="store=") as raised:
            use()
        message = str(raised.value)
        assert message.startswith(str(path)) and "gone" in message and message.count("store=") == 1
        assert "\n" not in message
    np.testing.assert_array_equal(
        estimator.set_params(warm_start=False, iterations=None).fit(X, Y).predict(X), expected
    )


@pytest.mark.parametrize("part", ["", "commits"])
def test_a_store_that_goes_away_during_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Other stores get no advice about estimators."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = regressor(spec=numbers_spec(first=2, kept=100_000))
    stored = tmp_path / "run.zarr"
    for estimator in (model, clone(model).set_params(store=stored)):

        def remove_store(estimator: Any = estimator) -> None:
            path = stored if estimator.store else None
            while path is None or not path.exists():
                time.sleep(0.01)
                path = path or next(Path(tempfile.gettempdir()).glob("rayfbnn-*/run.zarr"), None)
            shutil.rmtree(path / part, ignore_errors=True)

        cleaner = threading.Thread(target=remove_store)
        cleaner.start()
        with pytest.raises((StoreError, ValueError)) as raised:
            estimator.fit(X, Y)
        cleaner.join()
        assert ("store=" in str(raised.value)) is (estimator is model), raised.value


def test_only_the_folder_that_was_made_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = tmp_path / "other"
    for plant in (lambda folder: folder.mkdir(), lambda folder: folder.symlink_to(other)):
        place = TemporaryStore()
        folder = place.path.parent
        folder.rename(other)
        plant(folder)
        made = identity(os.lstat(other))
        (other / "file").touch()
        del place
        assert os.path.lexists(folder) and (other / "file").exists()
        remove(str(folder), made)
        assert os.path.lexists(folder) and (other / "file").exists()
        remove(str(other), made)
        assert not other.exists()
        folder.unlink() if folder.is_symlink() else folder.rmdir()


def test_a_store_that_is_named_stays_and_a_pickle_has_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    estimator = regressor(spec=SPEC, store="run.zarr").fit(X, Y)
    expected = estimator.predict(X)
    pickled = pickle.dumps(estimator)
    assert len(pickled) < 10_000
    del estimator
    monkeypatch.chdir("/")
    restored = pickle.loads(pickled)
    assert restored.store_ == tmp_path / "run.zarr"
    np.testing.assert_array_equal(restored.predict(X), expected)
    with pytest.raises(ValueError, match="run.zarr: already exists"):
        regressor(spec=SPEC, store=tmp_path / "run.zarr").fit(X, Y)


def test_warm_start_goes_on_to_the_draws_of_a_longer_run(tmp_path: Path) -> None:
    """With a store that is named, as in another process, the seed is the store's."""
    whole = regressor(spec=numbers_spec(first=2, kept=9), random_state=3).fit(X, Y)
    part = regressor(spec=SPEC, random_state=3, store=tmp_path / "run.zarr").fit(X, Y)
    settings = {**part.get_params(), "random_state": None, "warm_start": True, "iterations": 9}
    grown = regressor(**settings).fit(X, Y)
    np.testing.assert_array_equal(*(Store.open(one.store_).read_positions() for one in (whole, grown)))
    np.testing.assert_array_equal(whole.predict(X), grown.predict(X))
    with pytest.raises(
        ValueError, match="at least 9, because 9 of the 9 iterations of the last phase are already.*, got 5"
    ):
        grown.set_params(iterations=5).fit(X, Y)
    with pytest.raises(ValueError, match="its training cases differ from"):
        grown.set_params(iterations=12).fit(X, -Y)
    with pytest.raises(ValueError, match=r"network\.hidden"):
        grown.set_params(hidden_layer_sizes=(3,)).fit(X, Y)


def test_warm_start_keeps_the_warm_up_of_ladders(tmp_path: Path) -> None:
    """By default it is half as long as the run; a written one must be that of the store."""
    ladder = {"levels": 3, "annealing": 5, "adaptation": 12}
    settings = {"spec": {"ladder": ladder}, "chains": 4, "store": tmp_path / "run.zarr", "random_state": 1}
    regressor(**settings, iterations=84).fit(X, Y)
    regressor(**settings, iterations=90, warm_start=True).fit(X, Y)
    stored = Store.open(tmp_path / "run.zarr").spec
    assert [phase.iterations for phase in stored.phase] == [40, 42, 5, 12, 90]
    settings["spec"] = {"ladder": ladder | {"warmup": 45}}
    with pytest.raises(ValueError, match=r"ladder\.warmup: was 42, now 45"):
        regressor(**settings, iterations=90, warm_start=True).fit(X, Y)


def test_warm_start_goes_on_with_a_temporary_store_and_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = rayfbnn.sample

    def interrupted(*arguments: Any, **settings: Any) -> None:
        sample(*arguments, **settings)
        raise KeyboardInterrupt

    estimator = regressor(spec=SPEC, random_state=None, warm_start=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("rayfbnn.api.sample", interrupted)
        estimator.fit(X, Y)
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    place = estimator._place.path
    monkeypatch.setattr("rayfbnn.api.sample", None)
    assert estimator.set_params(iterations=8).fit(X, Y).store_ == place
    assert estimator.summary_.draws == 8


def test_an_estimator_refuses_the_address_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of that name would otherwise become folders on the disk."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="must be on a disk, got s3://bucket"):
        regressor(spec=SPEC, store="s3://bucket/run.zarr").fit(X, Y)
    assert list(tmp_path.iterdir()) == []


def test_a_fit_without_iterations_is_in_rounds_and_can_be_made_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = run_spec.default_phases

    def short_phases(*arguments: Any, **options: Any) -> Any:
        phases = written(*arguments, **{**options, "iterations": options["iterations"] or 120})
        return tuple(
            phase if phase.keep is True else phase.model_copy(update={"iterations": 4}) for phase in phases
        )

    monkeypatch.setattr(run_spec, "default_phases", short_phases)
    inputs = np.linspace(-1, 1, 12)[:, None]
    model = BayesianNetworkRegressor(chains=4, random_state=0, max_time="1h", warm_start=True)
    model.fit(inputs, inputs[:, 0] ** 2)
    verdicts = Store.open(model.store_).verdicts.all()
    assert model.summary_.ok is verdicts[-1].ok and model.summary_.draws in (100, 120)
    model.set_params(iterations=130).fit(inputs, inputs[:, 0] ** 2)
    assert model.summary_.draws == 130
