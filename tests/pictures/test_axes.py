"""Ticks are plain numbers, names do not run into each other, and probabilities have their bands.

Traces show thinned chains and the band of all draws, and name the chains that differ.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from rayfbnn.answers.effects import probability_bands
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.draws.outputs import network_values
from rayfbnn.output.lines import all_shortened
from rayfbnn.pictures import along_input, chains, predicted
from rayfbnn.pictures.chains import (
    draw_trace,
    points_of_each,
    trace_panels,
)
from rayfbnn.pictures.figures import CHAIN_COLOURS
from rayfbnn.pictures.panels import logarithmic, set_log_scale, tick_text, titled
from tests.support.store.standin_store import (
    make_data,
    make_run,
    make_spec,
    normal,
)

pytest.importorskip("matplotlib", reason="the plots extra is not installed")


LONG = [f"the_long_name_of_column_{number}_of_the_table_of_measurements" for number in range(1, 7)]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that a test saves, with their layout."""
    figures: list[Any] = []
    write = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **how: write(figure, path, **how) or figures.append(figure)
    )
    return figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "0.001"),
        (1e-6, "0.000001"),
        (1e-7, "1e-07"),
        (0.3, "0.3"),
        (1.0, "1"),
        (20_000.0, "20,000"),
        (1e8, "1e+08"),
    ],
)
def test_ticks_are_plain_numbers(value: float, text: str) -> None:
    assert tick_text(value) == text


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.003, 40, ["0.01", "0.1", "1", "10"]),
        (20, 900, ["30", "100", "300"]),
        (150, 800, ["200", "500"]),
        (1e-5, 1e5, ["0.00001", "0.001", "0.1", "10", "1,000", "100,000"]),
        (0.0461, 0.0604, ["0.05", "0.055", "0.06"]),
        (1.0, 1.001, ["1", "1.0002", "1.0004", "1.0006", "1.0008"]),
        (1e-130, 1e130, ["1e-130", "1e-86", "1e-42", "100", "1e+46", "1e+90"]),  # hundreds of decades
    ],
)
def test_a_logarithmic_axis_has_round_ticks(low: float, high: float, labels: list[str]) -> None:
    axis = Figure().subplots()
    logarithmic(axis, np.array([low, high]))
    assert [label.get_text() for label in axis.get_yticklabels()] == labels


@pytest.mark.parametrize(
    ("limits", "labels"), [((50, 600), {"50", "100", "200", "500"}), ((1, 5000), {"1", "10", "100", "1,000"})]
)
def test_a_free_logarithmic_axis_has_at_least_two_labels(
    limits: tuple[float, float], labels: set[str]
) -> None:
    figure = Figure()
    axis = figure.subplots()
    set_log_scale(axis, "x")
    axis.set_xlim(*limits)
    figure.draw_without_rendering()
    both = [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
    shown = {label.get_text() for label in both if limits[0] <= label.get_position()[0] <= limits[1]} - {""}
    assert shown == labels


def test_shortened_names_stay_different() -> None:
    assert all_shortened(["x", "y"]) == ["x", "y"]
    for names in (LONG, [f"{name}_{number}" for number, name in enumerate(LONG)]):
        texts = all_shortened(names)
        assert len(set(texts)) == 6 and all(len(text) == 40 for text in texts)
    alike = ["a" * 30 + middle + "a" * 30 for middle in "bc"]
    assert len(set(all_shortened(alike, 20))) == 2


def test_long_titles_have_two_lines() -> None:
    text = "82 % of 200 cases in their 80 % interval"
    assert titled("y", text) == f"y: {text}"
    first, second = titled(LONG[0], text).split("\n")
    assert len(first) <= 32 and second == text


def tick_labels(axis: Any) -> list[Any]:
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def overlaps(figure: Any) -> list[tuple[str, str]]:
    """Pairs of texts of axes that cover each other, and texts that leave the figure."""
    texts = [
        text
        for axis in figure.axes
        for text in (
            *tick_labels(axis.xaxis),
            *tick_labels(axis.yaxis),
            axis.xaxis.label,
            axis.yaxis.label,
            axis.title,
            axis._left_title,
        )
        if text.get_text() and text.get_visible() and axis.axison
    ]
    boxes = {text: text.get_window_extent() for text in texts}
    both = [(a.get_text(), b.get_text()) for a, b in combinations(texts, 2) if _cover(boxes[a], boxes[b])]
    whole = figure.bbox
    return both + [
        (text.get_text(), "the edge")
        for text, box in boxes.items()
        if box.x1 > whole.x1 + 1 or box.x0 < whole.x0 - 1
    ]


def _cover(a: Any, b: Any) -> bool:
    """Whether two boxes share more than a line of pixels."""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def long_run(kind: str = "real") -> Any:
    changes = {"data__inputs": str(LONG)}
    if kind == "real":
        changes["data__targets"] = str([f"target_{name}" for name in LONG[:2]])
    return make_run(make_spec(kind, **changes), n_draws=40)


def test_names_do_not_collide(tmp_path: Path, saved: list[Any]) -> None:
    run = long_run()
    unseen = make_data(run.spec, 30, seed=41)
    prediction = predict_from_draws([run], unseen.inputs, unseen.targets)
    cases = (prediction, unseen.inputs, unseen.targets)
    predicted.predicted_against_actual(run, *cases, tmp_path / "predicted.png")
    along_input.predictive_bands(run, tmp_path / "bands.png", input_name=LONG[3])
    along_input.relevance_of_inputs(run, tmp_path / "relevance.png")
    chains.traces_and_ranks(run, tmp_path / "traces.png")
    assert [overlaps(figure) for figure in saved] == [[], [], [], []]


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_probabilities_have_the_band_of_80_percent_of_the_draws(
    kind: str, tmp_path: Path, saved: list[Any]
) -> None:
    run = make_run(make_spec(kind), n_draws=40)
    along_input.predictive_bands(run, tmp_path / "bands.png")
    axis = saved[0].axes[0]
    n_labels = len(run.spec.data_model.probability_columns(run.data.target_names))
    assert len(axis.collections) == n_labels
    assert "80 % of draws" in [text.get_text() for text in axis.get_legend().get_texts()]
    for number, band in enumerate(axis.collections):
        edges, line = band.get_paths()[0].vertices, axis.lines[number * (3 if kind == "binary" else 2)]
        at, middle = line.get_xdata()[150], line.get_ydata()[150]
        low, high = np.sort(edges[np.isclose(edges[:, 0], at), 1])[[0, -1]]
        assert 0 <= low < high <= 1 and low - 0.1 < middle < high + 0.1


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_bands_are_quantiles_of_the_probabilities_of_each_draw(kind: str) -> None:
    run = make_run(make_spec(kind), n_draws=40)
    inputs = run.data.inputs[:5]
    outputs = network_values(run, inputs, draws=160).astype(np.float64)  # (n_draws, n_cases, n_outputs)
    if kind == "binary":
        p = 1 / (1 + np.exp(-outputs))
    else:
        p = np.exp(outputs) / np.exp(outputs).sum(axis=2, keepdims=True)
    expected = np.quantile(p, [0.1, 0.9], axis=0)
    np.testing.assert_allclose(probability_bands([run], inputs), expected, rtol=1e-6)


def axes_of_traces(drawn: dict[str, Any]) -> Any:
    axes = Figure().subplots(len(drawn), 2, squeeze=False)
    numbers = range(len(next(iter(drawn.values()))))
    for axis, panel in zip(axes.flat, trace_panels(drawn, numbers), strict=True):
        panel.draw(axis, *panel.args)
        axis.set_title(panel.title)
    return axes


def legend_of(axis: Any) -> list[str]:
    legend = axis.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(("n_draws", "step"), [(1000, 7), (100, 1)])
def test_chains_are_thinned_evenly_and_few_draws_are_all_shown(n_draws: int, step: int) -> None:
    values = normal(1, (16, n_draws))
    axis = axes_of_traces({"log_prior": values})[0, 0]
    for chain, line in zip(values, axis.lines, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(0, n_draws, step))
        np.testing.assert_array_equal(line.get_ydata(), chain[::step])
    assert len(axis.lines[0].get_xdata()) <= points_of_each(16)
    assert (", one draw of 7 shown" in axis.get_xlabel()) == (step == 7)


def test_the_band_has_the_quantiles_of_all_chains_nearby() -> None:
    values = normal(2, (8, 300)) + np.linspace(0, 5, 300)
    axis = axes_of_traces({"log_prior": values})[0, 0]
    (band,) = axis.patches
    high, edges, low = band.get_data()
    for number, (start, stop) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        near = values[:, start:stop]
        assert (low[number], high[number]) == tuple(np.quantile(near, [0.1, 0.9]))
    assert edges[0] == 0 and edges[-1] == 300


def test_a_legend_names_outlying_chains_only() -> None:
    values = normal(3, (16, 400))
    values[3] += 1.5
    values[13] -= 3
    axes = axes_of_traces({"log_prior": values, "log_likelihood": normal(4, (16, 400))})
    assert legend_of(axes[0, 0]) == ["chain 3", "chain 13"]
    assert legend_of(axes[1, 0]) == []
    third, thirteenth = axes[0, 0].lines[3], axes[0, 0].lines[13]
    assert third.get_color() == CHAIN_COLOURS[3] and thirteenth.get_color() == CHAIN_COLOURS[1]
    assert third.get_linestyle() == "-" and thirteenth.get_linestyle() == "--"
    assert third.get_linewidth() > axes[0, 0].lines[0].get_linewidth()


def test_a_legend_counts_the_outlying_chains_that_it_does_not_name() -> None:
    values = normal(3, (16, 400)) + np.where(np.arange(16) < 9, 6.0 * np.arange(16), 0)[:, None]
    axes = axes_of_traces({"log_prior": values})
    assert len(legend_of(axes[0, 0])) == 6
    assert axes[0, 0].get_legend().get_title().get_text().startswith("and ")


def test_the_legend_has_the_numbers_that_chains_have_in_the_store() -> None:
    axis = Figure().subplots()
    draw_trace(axis, normal(3, (4, 50)), "log_prior", [2], [5, 10, 15, 20])
    assert legend_of(axis) == ["chain 15"]
    assert axis.lines[2].get_color() == CHAIN_COLOURS[3]


def test_ranks_have_a_band_for_the_effective_draws_and_a_caption_that_says_so() -> None:
    fast, slow = normal(5, (4, 400)), np.repeat(normal(6, (4, 40)), 10, axis=1)
    axes = axes_of_traces({"log_prior": fast, "log_likelihood": slow})[:, 1]
    widths = [axis.patches[0].get_height() for axis in axes]
    assert 2.2 < widths[1] / widths[0] < 4.5  # about the square root of 10
    assert "effective draws" in axes[0].get_title()
    assert "95 % of chains\nwith as many effective draws" in axes[-1].get_xlabel()
