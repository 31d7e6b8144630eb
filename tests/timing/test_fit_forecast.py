"""The forecast of a fit: its sum over steps, draws and turns, where it is shown, and where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

import rayfbnn
from rayfbnn.data import read_dataset, read_training
from rayfbnn.describe.schedule import describe_forecast
from rayfbnn.errors import ConfigError
from rayfbnn.timing import forecast
from rayfbnn.timing.steps import Forecast
from rayfbnn.verbs.showing import forecast_text
from tests.support.output.undrawn import leave_undrawn
from tests.support.store.fits import SETTINGS, fit_spec


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second and the densities of a draw three, whatever the fit."""
    monkeypatch.setattr(forecast, "_seconds_per_step", lambda spec, fit, n_starts: 1.0)
    monkeypatch.setattr(forecast, "timed", lambda call, *, seconds: 3.0)


@pytest.mark.usefixtures("by_hand")
def test_a_forecast_of_a_fit_is_the_sum_over_steps_draws_and_turns(tmp_path: Path) -> None:
    spec = fit_spec(
        tmp_path, "bbb"
    )  # three starts, two in a batch; 20 steps, 1,000 draws for the bound, and 70
    alone, together = (forecast.forecast(spec, read_dataset(spec), workers=n) for n in (1, 3))
    assert alone is not None and together is not None
    assert (alone.workers, alone.seconds, alone.before_draws) == (1, 2 * (20 + 1070 * 3), 2 * (20 + 1000 * 3))
    assert (together.workers, together.seconds) == (2, 20 + 1070 * 3)


@pytest.mark.usefixtures("by_hand")
def test_steps_of_laplace_count_those_of_gauss_newton_for_each_start(tmp_path: Path) -> None:
    spec = fit_spec(tmp_path, "laplace")  # eight steps: 3 of Gauss-Newton in the first, 2 in the others
    result = forecast.forecast(spec, read_dataset(spec), workers=2)
    assert result is not None
    assert result.before_draws == 2 * (3 + 7 * 2)  # two starts in a batch


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize(
    ("settings", "n_steps"), [({"steps": 90}, 3 + 49 * 2), ({"precisions": "fixed"}, 2 * 3)]
)
def test_laplace_is_taken_to_settle_before_its_last_step(
    tmp_path: Path, settings: dict[str, object], n_steps: int
) -> None:
    spec = fit_spec(tmp_path, "laplace", settings=settings)
    result = forecast.forecast(spec, read_dataset(spec), workers=2)
    assert result is not None and result.before_draws == 2 * n_steps


@pytest.mark.parametrize("method", SETTINGS)
def test_every_method_is_measured_by_its_own_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(forecast, "LEAST_SECONDS", 0.0)
    spec = fit_spec(tmp_path, method)
    result = forecast.forecast(spec, read_dataset(spec), workers=1)
    assert result is not None and 0 < result.before_draws < result.seconds < 60


def test_a_fit_of_a_few_seconds_has_no_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = fit_spec(tmp_path, "bbb")
    rayfbnn.sample(spec, tmp_path / "run.zarr", workers=0)
    assert "Time:" not in capsys.readouterr().err
    assert "Time:" not in rayfbnn.show(spec)


@pytest.mark.usefixtures("by_hand")
def test_show_sample_and_compare_have_the_forecast_of_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_undrawn(monkeypatch)
    spec = fit_spec(tmp_path, "bbb")
    assert "\nTime: about " in rayfbnn.show(spec)
    rayfbnn.sample(spec, tmp_path / "run.zarr", workers=0)
    assert capsys.readouterr().err.startswith("Time: about ")
    options = {"data": tmp_path / "train.csv", "exact": tmp_path / "run.zarr", "workers": 0}
    rayfbnn.compare(spec, tmp_path / "out", methods="bbb", **options)
    shown = capsys.readouterr().err
    assert shown.startswith("bbb:\nTime: about ") and shown.count("Time:") == 1
    rayfbnn.compare(spec, tmp_path / "out", methods="bbb", **options)  # is complete
    assert "Time:" not in capsys.readouterr().err


def test_what_a_method_does_not_cover_has_no_forecast_and_is_refused(tmp_path: Path) -> None:
    spec, dataset = read_training(fit_spec(tmp_path, "bbb", settings={"batch": 99}))
    assert forecast_text(spec, dataset, workers=1) == ""
    with pytest.raises(ConfigError, match=r"methods\.bbb\.batch: must be at most 12"):
        rayfbnn.sample(spec, tmp_path / "run.zarr", workers=0)
    assert not (tmp_path / "run.zarr").exists()


def test_a_forecast_of_a_fit_in_words(tmp_path: Path) -> None:
    forecast = Forecast(2, 288.0, 33.0).after(12.0)
    about = "about 5 minutes with 2 workers, 45 seconds of it before the first draw"
    basis = "(measured on this machine, except for 12 seconds to start workers)"
    bbb, laplace, vep = (fit_spec(tmp_path, method) for method in ("bbb", "laplace", "vep"))
    assert describe_forecast(bbb, forecast) == f"Time: {about} {basis}"
    assert describe_forecast(laplace, forecast) == f"Time: {about}, without the evidence {basis}"
    assert describe_forecast(vep, forecast) == f"Time: at most {about}, without the evidence {basis}"
