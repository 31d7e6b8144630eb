"""Where the draws of an estimator are: temporary stores that go with it, stores that stay, and pickles."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import rayfbnn
from rayfbnn.sklearn import BayesianNetworkRegressor
from rayfbnn.sklearn.stores import TemporaryStore
from rayfbnn.spec import run_spec
from rayfbnn.store.store import Store
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


def test_a_fork_does_not_remove_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    place = TemporaryStore()
    monkeypatch.setattr("os.getpid", lambda: -1)
    folder = place.path.parent
    del place
    assert folder.is_dir()
    folder.rmdir()


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
