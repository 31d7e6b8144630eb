"""The places of parameters and precisions in their flat vectors."""

from __future__ import annotations

import numpy as np

from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from tests.support.problems import MODELS, PRIORS, network


def test_groups_lie_behind_each_other_in_the_networks_order() -> None:
    spec = network()
    layout = ParameterLayout.from_network(spec)
    assert [group.name for group in layout.groups] == list(PRIORS)
    assert layout.n_parameters == spec.n_parameters
    covered = np.concatenate([np.arange(layout.n_parameters)[part] for part in layout.slices.values()])
    assert np.array_equal(covered, np.arange(layout.n_parameters))


def test_views_are_views_with_any_leading_axes() -> None:
    layout = ParameterLayout.from_network(network())
    position = np.zeros((2, 5, layout.n_parameters))
    views = layout.views(position)
    assert views["ih0"].shape == (2, 5, 3, 4) and views["bo"].shape == (2, 5, 2)
    for number, view in enumerate(views.values()):
        view[...] = number
    for number, part in enumerate(layout.slices.values()):
        assert np.all(position[..., part] == number)


def test_weights_are_source_major() -> None:
    layout = ParameterLayout.from_network(network())
    start = layout.slices["ih0"].start
    position = np.zeros((1, layout.n_parameters))
    position[0, start + 1] = 1  # second destination of the first source
    assert layout.views(position)["ih0"][0, 0, 1] == 1


def test_precisions_are_common_then_units_and_noise_last() -> None:
    layout = PrecisionLayout.from_specs(network(), MODELS["t by target"], 2)
    assert [group.name for group in layout.groups] == [*PRIORS, "noise"]
    assert layout.common["ti"] == 0 and layout.common["ih0"] == 1
    assert layout.units == {
        "ih0": slice(2, 5),
        "ih1": slice(8, 11),
        "ho0": slice(15, 19),
        "noise": slice(23, 25),
    }
    assert layout.common["noise"] == 22
    assert layout.n_precisions == len(layout.is_free) == 25
    fixed = {name for name, column in layout.common.items() if not layout.is_free[column]}
    assert fixed == {"ti", "ih1", "bh1", "th1", "io", "bo"}
    assert layout.is_free.sum() == 25 - len(fixed)


def test_every_parameter_knows_the_precision_above_it() -> None:
    spec = network()
    parameters, layout = (
        ParameterLayout.from_network(spec),
        PrecisionLayout.from_specs(spec, MODELS["t by target"], 2),
    )
    columns = parameters.views(layout.parameter_columns)
    assert np.array_equal(columns["ih0"], [[2] * 4, [3] * 4, [4] * 4])
    assert np.all(columns["bh0"] == layout.common["bh0"])
    assert np.all(columns["io"] == layout.common["io"])
    assert np.array_equal(layout.noise_columns, [23, 24])


def test_targets_without_levels_of_their_own_share_the_common_noise() -> None:
    layout = PrecisionLayout.from_specs(network(), MODELS["gaussian"], 2)
    assert "noise" not in layout.units
    assert np.array_equal(layout.noise_columns, [layout.common["noise"]] * 2)


def test_discrete_targets_have_no_noise() -> None:
    layout = PrecisionLayout.from_specs(network(), MODELS["binary"], 2)
    assert "noise" not in layout.common and layout.noise_columns.size == 0
