"""Every picture is written, with its axes named, for runs of any kind and state."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")

from matplotlib.figure import Figure

from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.errors_by_iteration import Course, ErrorsByIteration
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.draws.subsets import Held
from rayfbnn.errors import ConfigError
from rayfbnn.pictures import along_input, chains, predicted, sampling
from rayfbnn.pictures.chains import describe_quantity
from rayfbnn.pictures.predicted import kaplan_meier
from tests.support.store.standin_store import (
    PIECEWISE,
    log_hazards_by_hand,
    make_data,
    make_run,
    make_spec,
    run_of,
    survival_by_hand,
)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that a test saves.

    Any warning is an error, such as missing glyphs or labels that do not fit.
    """
    saved: list[Any] = []
    write = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **how: saved.append(figure) or write(figure, path, **how)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield saved


def check_picture(path: Path, figures: list[Any]) -> None:
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    (figure,) = figures
    for axis in figure.axes:
        below = axis.get_shared_x_axes().get_siblings(axis)
        assert any(shared.get_xlabel() for shared in below), "a column of axes without a label"


def prepared(kind: str = "real", **changes: Any) -> tuple[Any, Any]:
    run = make_run(make_spec(kind, **changes), n_draws=40)
    return run, make_data(run.spec, 30, seed=41)


@pytest.mark.parametrize("kind", ["real", "binary", "class"])
def test_functions_and_bands_along_an_input(kind: str, tmp_path: Path, figures: list[Any]) -> None:
    run, _ = prepared(kind)
    check_picture(along_input.function_lines(run, tmp_path / "functions.png"), figures)
    assert [len(axis.lines) for axis in figures.pop().axes] == [8] * run.spec.network.outputs
    check_picture(along_input.predictive_bands(run, tmp_path / "bands.png", input_name="x2"), figures)
    assert figures[0].axes[0].get_xlabel() == "x2"


def test_predicted_against_actual(tmp_path: Path, figures: list[Any]) -> None:
    run, unseen = prepared()
    prediction = predict_from_draws([run], unseen.inputs, unseen.targets)
    path = predicted.predicted_against_actual(
        run, prediction, unseen.inputs, unseen.targets, tmp_path / "predicted.png"
    )
    check_picture(path, figures)
    y1 = unseen.targets[:, 0]
    inside = np.mean((y1 >= prediction.table["y1_q10"]) & (y1 <= prediction.table["y1_q90"]))
    assert f"{100 * inside:.0f} % of 30 cases" in figures[0].axes[0].get_title(loc="left")


@pytest.mark.usefixtures("undrawn_pictures")
def test_missing_targets_are_not_in_the_count_of_predicted_against_actual(
    tmp_path: Path, figures: list[Any]
) -> None:
    run, unseen = prepared()
    targets = unseen.targets.copy()
    targets[2:, 0], targets[:, 1] = np.nan, np.nan
    prediction = predict_from_draws([run], unseen.inputs, targets)
    targets[:2, 0] = prediction.table["y1_median"][:2]
    predicted.predicted_against_actual(run, prediction, unseen.inputs, targets, tmp_path / "predicted.png")
    first, second = figures[0].axes[0], figures[0].axes[1]
    assert first.get_title(loc="left") == "y1: 100 % of 2 cases in their 80 % interval"
    assert second.get_title(loc="left") == "y2: 0 cases in their 80 % interval"
    assert np.isfinite(first.lines[0].get_xdata()).all()


@pytest.mark.usefixtures("undrawn_pictures")
def test_missing_labels_are_not_drawn_as_zero(tmp_path: Path, figures: list[Any]) -> None:
    run, _ = prepared("binary")
    run.data.targets[:, 0] = np.nan
    run.data.targets[:5, 0] = [0, 1, 1, 0, 1]
    along_input.predictive_bands(run, tmp_path / "bands.png")
    ones, zeros = figures[0].axes[0].lines[1:3]
    assert len(ones.get_xdata()) == 3 and len(zeros.get_xdata()) == 2


@pytest.mark.parametrize("changes", [{}, {"model__noise": "0.3:4:2", "chains": 9}, {"chains": 1}])
def test_traces_and_ranks(changes: dict[str, Any], tmp_path: Path, figures: list[Any]) -> None:
    run, _ = prepared(**changes)
    check_picture(chains.traces_and_ranks(run, tmp_path / "traces.png"), figures)


@pytest.mark.usefixtures("undrawn_pictures")
def test_traces_of_a_single_draw(tmp_path: Path, figures: list[Any]) -> None:
    run = make_run(make_spec(chains=1), n_draws=1)
    chains.traces_and_ranks(run, tmp_path / "traces.png")
    assert figures[0].axes[1].get_ylim() == (-1.08, 1.08)


@pytest.mark.parametrize("n_draws", [1, 2, 40])
def test_bars_whatever_the_number_of_draws(n_draws: int, tmp_path: Path, figures: list[Any]) -> None:
    run = make_run(make_spec(), n_draws=n_draws)
    check_picture(chains.rhat_and_ess(diagnose_draws(run), tmp_path / "bars.png"), figures)


def test_autocorrelations_by_lag(tmp_path: Path, figures: list[Any]) -> None:
    run, _ = prepared(model__noise="0.3:4:2", chains=9)
    check_picture(chains.autocorrelation_by_lag(run, tmp_path / "autocorrelation.png"), figures)
    titles = [axis.get_title(loc="left") for axis in figures[0].axes]
    assert titles[0] == "log_posterior" and "rms_ho0: weights, hidden layer 0 to outputs" in titles
    assert len(figures[0].axes[0].lines) == run.n_chains + 1


@pytest.mark.usefixtures("undrawn_pictures")
@pytest.mark.parametrize("n_draws", [1, 2, 3])
def test_autocorrelations_of_a_few_draws(n_draws: int, tmp_path: Path, figures: list[Any]) -> None:
    run = make_run(make_spec(), n_draws=n_draws)
    chains.autocorrelation_by_lag(run, tmp_path / "autocorrelation.png")
    assert figures[0].axes[0].get_xlim() == (0, 1)


@pytest.mark.usefixtures("undrawn_pictures")
def test_autocorrelations_are_of_as_many_last_draws_as_are_read(
    tmp_path: Path, figures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "_MOST_VALUES", 48)
    run = make_run(make_spec(), n_draws=40)
    run.store.positions[:, :28] = np.nan
    chains.autocorrelation_by_lag(run, tmp_path / "autocorrelation.png")
    assert any("4 chains of 12 draws" in axis.get_xlabel() for axis in figures[0].axes)
    assert all(np.isfinite(axis.lines[-1].get_ydata()).all() for axis in figures[0].axes if axis.lines)


def with_errors(stepsizes: Any, errors: Any) -> Any:
    run = make_run(make_spec(), n_draws=stepsizes.shape[1])
    return replace(run, source=Held(run.source, {"stepsize": stepsizes, "energy_change": errors}))


def test_energy_errors_by_stepsize(tmp_path: Path, figures: list[Any]) -> None:
    """An error of 2 s**2 up to 1, and divergence above it."""
    stepsizes = 10 ** np.linspace(-1, 0.3, 4 * 100).reshape(100, 4).T
    changes = np.where(stepsizes > 1, np.inf, 2 * stepsizes**2)
    found = sampling.errors_by_stepsize(with_errors(stepsizes, changes))
    assert found is not None and found.quantiles.shape == (3, 10)
    low, median, high = found.quantiles
    is_stable = found.middles < 0.9
    np.testing.assert_allclose(median[is_stable], 2 * found.middles[is_stable] ** 2, rtol=0.02)
    assert (low <= median).all() and (median <= high).all() and np.isinf(median[-1])
    assert found.acceptance[-1] == 0 and found.acceptance[0] == pytest.approx(np.exp(-0.027), rel=0.01)
    check_picture(sampling.energy_errors(found, tmp_path / "energy_errors.png"), figures)


def test_without_different_stepsizes_there_is_no_picture_of_errors() -> None:
    changes = np.linspace(-1, 1, 40).reshape(4, 10)
    for stepsizes in (np.full((4, 10), 0.3), np.full((4, 10), np.nan)):
        assert sampling.errors_by_stepsize(with_errors(stepsizes, changes)) is None
    some = np.where(np.arange(10) < 5, np.nan, np.linspace(0.1, 0.2, 10)) * np.ones((4, 1))
    found = sampling.errors_by_stepsize(with_errors(some, changes))
    assert found is not None and len(found.errors) == 20


def course(first: int, n_draws: int, height: float) -> Course:
    iterations = np.arange(first, first + n_draws)
    of_draws = height / np.array([[1.0], [2.0], [3.0]]) / iterations
    return Course(iterations, of_draws, 0.9 * of_draws, 0.5 * of_draws[0])


@pytest.mark.parametrize("measure", ["squared_error", "log_probability"])
def test_errors_by_iteration(measure: Any, tmp_path: Path, figures: list[Any]) -> None:
    both = ErrorsByIteration(measure, 30, course(21, 20, 5.0), course(11, 5, 500.0), (11, 16, 21))
    both.warmup.of_draws[0, 0] = np.inf
    check_picture(sampling.plot_errors_by_iteration(both, tmp_path / "errors.png", range(3)), figures)
    left, right = figures[0].axes
    assert [len(axis.lines) for axis in (left, right)] == [3 + 3 + 2, 3 + 1]  # of chains, borders, together
    assert (left.get_xlim(), right.get_xlim()) == ((10.5, 40.5), (20.5, 40.5))
    assert left.get_yscale() == ("log" if measure == "squared_error" else "linear")


@pytest.mark.usefixtures("undrawn_pictures")
def test_errors_of_a_single_draw_or_of_none_that_is_finite(tmp_path: Path, figures: list[Any]) -> None:
    lost = Course(np.array([1, 2]), *(np.full((1, 2), np.nan),) * 2, np.full(2, np.nan))
    for kept in (course(1, 1, 1.0), lost):
        sampling.plot_errors_by_iteration(
            ErrorsByIteration("error_rate", 3, kept, None, ()), tmp_path / "e.png", range(len(kept.of_draws))
        )
    assert len(figures) == 2


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"install rayfbnn\[plots\]"):
        chains.traces_and_ranks(make_run(make_spec()), tmp_path / "traces.png")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sigma_ih0", "sigma_ih0: weights, inputs to hidden layer 0"),
        ("sigma_ih0_unit[x1]", "sigma_ih0_unit[x1]: weights, inputs to hidden layer 0, those of one unit"),
        ("sigma_noise[y1]", "sigma_noise[y1]: noise, one target"),
        ("rms_ho0", "rms_ho0: weights, hidden layer 0 to outputs"),
        ("sigma_noise_common", "sigma_noise_common: noise"),
        ("sigma_bo", "sigma_bo: biases of outputs"),
        ("log_prior", "log_prior"),
        ("adjustment_ah1", "adjustment_ah1: adjustments of hidden layer 1, geometric mean"),
        ("adjustment_ao[y1]", "adjustment_ao[y1]: adjustment of one output"),
    ],
)
def test_quantities_are_explained(name: str, words: str) -> None:
    assert describe_quantity(name) == describe_quantity(name, 75) == words


@pytest.mark.parametrize("model", [{"kind": "survival", "hazard": "constant"}, PIECEWISE])
def test_survival_curves(model: dict[str, Any], tmp_path: Path, figures: list[Any]) -> None:
    run, _, _ = run_of(model)
    check_picture(predicted.survival_curves(run, tmp_path / "survival.png"), figures)
    whole, groups = figures[0].axes
    model_line, steps = whole.lines[:2]
    log_hazard = log_hazards_by_hand(run, run.data.inputs)
    times = model_line.get_xdata()
    points = model.get("time_points", [])
    expected = [survival_by_hand(time, log_hazard, points).mean() for time in times]
    np.testing.assert_allclose(model_line.get_ydata(), expected, rtol=1e-9)
    events, left = kaplan_meier(run.data.targets[:, 0])
    np.testing.assert_allclose(steps.get_xdata()[1:-1], events)
    np.testing.assert_allclose(steps.get_ydata()[1:-1], left)
    # High risk comes first, with the fewest survivors.
    heights = [line.get_ydata().mean() for line in groups.lines if len(line.get_xdata()) == len(times)]
    assert len(heights) == 3 and heights == sorted(heights)


def test_kaplan_and_meiers_estimate_by_hand() -> None:
    """Events at 1 (one of five at risk), 2 (two of four), 4 (the last); one case is censored at 2."""
    events, left = kaplan_meier(np.array([2.0, 1.0, -2.0, 2.0, 4.0]))
    assert events.tolist() == [1.0, 2.0, 4.0]
    np.testing.assert_allclose(left, [4 / 5, 4 / 5 * 2 / 4, 0.0])
    assert kaplan_meier(np.array([-1.0, -2.0]))[0].size == 0


def test_survival_curves_where_all_are_censored(tmp_path: Path, figures: list[Any]) -> None:
    run, _, _ = run_of(PIECEWISE)
    run.data.targets[:] = -abs(run.data.targets)
    check_picture(predicted.survival_curves(run, tmp_path / "survival.png"), figures)


def test_relevance_of_inputs(tmp_path: Path, figures: list[Any]) -> None:
    run, _ = prepared(network__priors__io="0.5:3:3")
    assert along_input.relevance_groups(run)
    check_picture(along_input.relevance_of_inputs(run, tmp_path / "relevance.png"), figures)
    hidden, outputs = figures[0].axes
    assert [label.get_text() for label in hidden.get_yticklabels()] == ["x1", "x2"]
    assert "hidden layer 0" in hidden.get_title(loc="left") and "outputs" in outputs.get_title(loc="left")
    medians = hidden.lines[0].get_xdata()
    units = run.precision_layout.units["ih0"]
    np.testing.assert_allclose(medians, np.median(run.store.precisions[:, :, units] ** -0.5, axis=(0, 1)))


def test_relevance_of_many_inputs_shows_the_largest(tmp_path: Path, figures: list[Any]) -> None:
    names = [f"x{number}" for number in range(1, 61)]
    run, _ = prepared(data__inputs=str(names))
    check_picture(along_input.relevance_of_inputs(run, tmp_path / "relevance.png"), figures)
    axis = figures[0].axes[0]
    units = run.precision_layout.units["ih0"]
    medians = np.median(run.store.precisions[:, :, units] ** -0.5, axis=(0, 1))
    largest = [
        name for name, place in zip(names, np.argsort(np.argsort(-medians)), strict=True) if place < 40
    ]
    assert [label.get_text() for label in axis.get_yticklabels()] == largest
    assert "40 largest" in axis.get_title(loc="left")


def test_without_sigmas_of_inputs_there_is_no_relevance() -> None:
    assert not along_input.relevance_groups(prepared(network__priors__ih0="1:4")[0])
