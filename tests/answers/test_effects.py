"""Partial dependence and the change by permutation, against plain loops and known functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.answers.effects import columns_of, partial_dependence, permutation_shares, value_names
from rayfbnn.data.encoding import InputColumn
from tests.support.store.standin_store import (
    DISPERSED,
    PIECEWISE,
    log_hazards_by_hand,
    make_data,
    make_run,
    make_spec,
    normal,
    outputs_by_hand,
    run_of,
)

X1, X2 = InputColumn("x1"), InputColumn("x2")


def test_partial_dependence_is_the_average_over_cases_by_hand() -> None:
    run = make_run(make_spec(data__standardize='["targets"]'))
    inputs, data = make_data(run.spec, 5, seed=41).inputs, run.data
    dependence = partial_dependence(run, inputs, X2)
    assert len(dependence.points) == 12 and dependence.points.tolist() == sorted(data.inputs[:, 1])
    by_draw = []
    for point in dependence.points:
        changed = np.column_stack([inputs[:, 0], np.full(5, point)])
        outputs = outputs_by_hand(run, changed).mean(axis=1)
        by_draw.append(outputs * data.target_scale + data.target_center)
    np.testing.assert_allclose(dependence.mean, np.mean(by_draw, axis=1))
    np.testing.assert_allclose(dependence.low, np.quantile(by_draw, 0.1, axis=1))
    np.testing.assert_allclose(dependence.high, np.quantile(by_draw, 0.9, axis=1))


def test_times_are_averaged_by_their_logarithms() -> None:
    run, inputs, _ = run_of({"kind": "survival", "hazard": "constant"})
    dependence = partial_dependence(run, inputs, X1)
    changed = np.column_stack([np.full(len(inputs), dependence.points[3]), inputs[:, 1]])
    mean_log_time = -log_hazards_by_hand(run, changed).mean()
    np.testing.assert_allclose(dependence.mean[3, 0], np.exp(mean_log_time))


def test_a_column_of_levels_is_set_to_each_of_them() -> None:
    spec = make_spec(data__inputs='["city=Oslo", "city=Rome"]')
    run = make_run(spec)
    city = InputColumn("city", "levels", ("Oslo", "Rome"))
    dependence = partial_dependence(run, run.data.inputs, city)
    assert dependence.levels == ("Oslo", "Rome") and dependence.points.tolist() == [0, 1]
    expected = [outputs_by_hand(run, np.array([row])).mean(axis=(0, 1)) for row in ([1.0, 0.0], [0.0, 1.0])]
    np.testing.assert_allclose(dependence.mean, expected)


def test_an_input_without_weights_has_no_share_and_the_only_one_has_all() -> None:
    run = make_run(make_spec(), n_draws=2)
    weights = run.parameter_layout.views(run.store.positions)["ih0"]
    weights[:, :, 1] = 0.0
    inputs = normal(7, (400, 2))
    shares = permutation_shares(run, inputs, (X1, X2))
    assert shares[1] == 0.0
    # The index is 1; of 400 pairs of cases the relative standard error is about sqrt(2 / 400) = 0.07.
    assert abs(shares[0] - 1) < 4 * 0.07


def test_predictions_that_are_all_equal_have_no_shares() -> None:
    run = make_run(make_spec(), n_draws=2)
    run.store.positions[...] = 0.0
    assert np.isnan(permutation_shares(run, run.data.inputs, (X1,))).all()


@pytest.mark.parametrize("model", [{"kind": "count"}, DISPERSED, PIECEWISE, {"kind": "heteroscedastic"}])
def test_every_kind_of_numbers_has_effects(model: dict[str, Any]) -> None:
    run, inputs, _ = run_of(model)
    n_values = len(value_names(run))
    assert partial_dependence(run, inputs, X1).mean.shape[1] == n_values
    assert permutation_shares(run, inputs, columns_of(run)).shape == (2,)


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_labels_have_an_effect_on_each_probability(kind: str) -> None:
    run = make_run(make_spec(kind))
    dependence = partial_dependence(run, run.data.inputs, X1)
    assert dependence.mean.shape[1] == len(value_names(run))
    assert (dependence.low >= 0).all() and (dependence.high <= 1).all()
