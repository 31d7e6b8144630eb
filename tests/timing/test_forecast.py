"""The forecast of a run: its sum over phases, its words, and what it is silent about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayfbnn
from rayfbnn.data import Dataset, read_training
from rayfbnn.describe.schedule import describe_forecast, describe_large_store
from rayfbnn.mcmc.operation import Operation, TrajectoryOperation
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.spec import RunSpec
from rayfbnn.timing import forecast
from rayfbnn.timing.forecast import UpdateTimes
from rayfbnn.timing.steps import Forecast, generated_posterior
from tests.support.small import small_spec

HYBRID = {"op": "hybrid", "steps": 32, "stepsize": "auto", "scaling": "auto"}


def training(folder: Path, *operations: dict[str, Any], **replaced: Any) -> tuple[RunSpec, Dataset]:
    """A run of five chains with 10 iterations that tune, and 20 that are kept."""
    phases = [
        {"iterations": n, "keep": keep, "operations": operations} for n, keep in ((10, False), (20, True))
    ]
    return read_training(small_spec(folder, phase=phases, **replaced))


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is worth a forecast. A trajectory takes a second a step, another update 2, densities 3."""
    monkeypatch.setattr(forecast, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(forecast, "timed", lambda call, *, seconds: 3.0)

    def update(times: UpdateTimes, operation: Operation) -> float:
        return float(operation.gradients()) if isinstance(operation, TrajectoryOperation) else 2.0

    monkeypatch.setattr(UpdateTimes, "update", update)


@pytest.mark.usefixtures("by_hand")
def test_a_forecast_is_the_sum_over_phases_and_turns(tmp_path: Path) -> None:
    spec, data = training(tmp_path, {"op": "sample-noise"}, {"op": "heatbath"}, HYBRID)
    result = forecast.forecast(spec, data, workers=2)
    assert result is not None
    slopes = 3.0  # the gradients of array code that find the scales
    assert result.before_draws == pytest.approx(2 * 10 * (4 + 32 + slopes))  # three batches, two workers
    assert result.seconds == pytest.approx(result.before_draws + 2 * 20 * (4 + 32 + 3))
    assert result.workers == 2
    alone = forecast.forecast(spec, data, workers=1)
    assert alone is not None
    assert alone.seconds == pytest.approx(result.seconds * 3 / 2)


@pytest.mark.usefixtures("by_hand")
def test_only_a_guess_makes_a_forecast_of_chains_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measured run of chains has its forecast, even if it is shorter than the guess."""
    spec, data = training(tmp_path, {"op": "sample-noise"}, {"op": "heatbath"}, HYBRID)
    monkeypatch.setattr(forecast, "_guessed_seconds", lambda *_: 1e6)
    monkeypatch.setattr(forecast, "LEAST_SECONDS", 1e6)
    assert forecast.forecast(spec, data, workers=2) is not None
    monkeypatch.setattr(forecast, "_guessed_seconds", lambda *_: 9e5)
    assert forecast.forecast(spec, data, workers=2) is None


@pytest.mark.usefixtures("by_hand")
def test_messages_between_parts_are_counted(tmp_path: Path) -> None:
    operations = {"op": "heatbath"}, {"op": "hybrid", "steps": 32, "stepsize": 0.1}
    together, divided = (
        forecast.forecast(*training(tmp_path, *operations, data__parts=n), workers=2) for n in (1, 2)
    )
    assert together is not None and divided is not None
    assert divided.seconds == pytest.approx(1.13 * together.seconds)


@pytest.mark.usefixtures("by_hand")
def test_automatic_lengths_of_several_layers_are_longer(tmp_path: Path) -> None:
    layers = [{"units": 4, "activation": "tanh"}] * 2
    network = {"hidden": layers, "priors": {"ih0": "1:4", "h0h1": "x1:4", "ho1": "x1:4"}}
    spec, data = training(tmp_path, {"op": "heatbath"}, {**HYBRID, "steps": "auto"}, network=network)
    result = forecast.forecast(spec, data, workers=3)
    assert result is not None
    assert result.seconds == pytest.approx(10 * (2 + 256 + 3) + 20 * (2 + 128 + 3))


@pytest.mark.usefixtures("by_hand")
def test_automatic_lengths_are_those_with_which_tuning_begins(tmp_path: Path) -> None:
    spec, data = training(tmp_path, {"op": "heatbath"}, {**HYBRID, "steps": "auto"})
    result = forecast.forecast(spec, data, workers=3)
    assert result is not None
    # Trajectories of tuning are twice as long.
    assert result.seconds == pytest.approx(10 * (2 + 32 + 3) + 20 * (2 + 16 + 3))


def test_a_run_of_a_few_seconds_has_no_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, data = training(tmp_path, {"op": "heatbath"}, HYBRID, chains=1)
    assert forecast.forecast(spec, data, workers=1) is None
    assert "Time:" not in rayfbnn.show(spec)
    rayfbnn.sample(spec, tmp_path / "run.zarr", workers=0)
    assert "Time:" not in capsys.readouterr().err


@pytest.mark.usefixtures("by_hand")
def test_a_network_that_is_only_for_draws_from_the_prior_is_shown_without_a_forecast(tmp_path: Path) -> None:
    spec, _ = training(
        tmp_path, {"op": "sample-sigmas"}, network__hidden=[{"units": 3, "activation": "step"}]
    )
    assert "3 step" in rayfbnn.show(spec) and "Time:" not in rayfbnn.show(spec)


@pytest.mark.usefixtures("by_hand")
def test_show_ends_and_sample_begins_with_the_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, _ = training(tmp_path, {"op": "heatbath"}, HYBRID, chains=1)
    assert "\nTime: about " in rayfbnn.show(spec)
    rayfbnn.sample(spec, tmp_path / "run.zarr", workers=0)
    assert capsys.readouterr().err.startswith("Time: about ")
    assert "to start workers" in rayfbnn.show(spec)
    rayfbnn.sample(spec, tmp_path / "quiet.zarr", workers=0, progress=False)
    assert "Time:" not in capsys.readouterr().err


def test_a_forecast_in_words(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    basis = "(measured on this machine, except for 12 seconds to start workers)"
    assert describe_forecast(spec, Forecast(2, 288.0, 33.0).after(12.0)) == (
        f"Time: about 5 minutes with 2 workers, 45 seconds of it before the first draw {basis}"
    )
    assert describe_forecast(spec, Forecast(1, 288.0, 33.0, first_verdict=40.0)) == (
        "Time: at most about 5 minutes with 1 worker, 33 seconds of it before the first draw and 40 seconds"
        " before the first verdict, after which it may end (measured on this machine)"
    )


def test_a_large_store_is_announced_with_a_shorter_length(tmp_path: Path) -> None:
    spec, _ = training(tmp_path, {"op": "heatbath"}, HYBRID)
    assert describe_large_store(spec) == ""
    words = describe_large_store(spec.with_iterations(400_000))
    assert words.startswith("Store: about ") and words.endswith("  --set phase[1].iterations=100000\n")


def test_an_update_by_sghmc_may_take_more_batches_than_a_pass_has() -> None:
    """Its batches are counted from those of the first iteration."""
    times = UpdateTimes(generated_posterior("2-4-1/30"), chains=2, sigmas=0.5, seconds=0.01)
    assert times.update(Sghmc(steps=500, stepsize=0.01, batch=10)) > 0
