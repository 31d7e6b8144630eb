"""Traces show thinned chains and the band of all draws, and name the chains that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")

from matplotlib.figure import Figure  # noqa: E402

from rayfbnn.pictures.chains import (  # noqa: E402
    draw_trace,
    points_of_each,
    trace_panels,
)
from rayfbnn.pictures.figures import CHAIN_COLOURS  # noqa: E402
from tests.support.store.standin_store import normal  # noqa: E402


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


def test_many_chains_are_thinned_evenly() -> None:
    values = normal(1, (16, 1000))
    axis = axes_of_traces({"log_prior": values})[0, 0]
    assert len(axis.lines) == 16
    for chain, line in zip(values, axis.lines, strict=True):
        places = line.get_xdata()
        assert len(places) <= points_of_each(16) and len(set(np.diff(places))) == 1
        np.testing.assert_array_equal(line.get_ydata(), chain[places])
    assert "16 chains, one draw of 7 shown" in axis.get_xlabel()


def test_few_draws_are_all_shown() -> None:
    axis = axes_of_traces({"log_prior": normal(1, (16, 100))})[0, 0]
    assert [len(line.get_xdata()) for line in axis.lines] == [100] * 16
    assert "shown" not in axis.get_xlabel()


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
