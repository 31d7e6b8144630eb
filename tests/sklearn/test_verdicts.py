"""Warnings about convergence speak of the parameters of an estimator."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
from sklearn.exceptions import ConvergenceWarning

from rayfbnn.answers.judging.chain_average import AverageError
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.sklearn import BayesianNetworkRegressor
from rayfbnn.sklearn.base import warn_unless_ok, what_to_do
from tests.support.store.standin_store import normal, uniform

ERROR = AverageError(
    mean=0.3, mean_bound=0.5, sd=math.nan, sd_bound=math.nan, drift=0.0, has_drift=False, chains=8, cases=10
)
VERDICT = Verdict("predictions", "not usable", reasons=("R-hat above 1.01: y 1.5",), error=ERROR)


def test_what_to_do_has_numbers_where_there_are_any() -> None:
    enough = ERROR.chains_that_would_do
    assert enough is not None and enough > 8
    assert what_to_do(VERDICT, 4000).startswith(f"What to do: set chains={enough}; or set iterations=8000 (")
    assert "set iterations=5600 (" in what_to_do(replace(VERDICT, iterations=5600), 4000)
    hopeless = replace(VERDICT, error=replace(ERROR, mean=100.0))
    assert what_to_do(hopeless, 4000).startswith("What to do: use more chains; or")
    for moving in ({"has_drift": True}, {"is_on_its_way": True}):
        drifting = replace(VERDICT, error=replace(ERROR, **moving))
        assert what_to_do(drifting, 4000).startswith("What to do: set iterations=8000 (with warm_start=True")
    few = replace(VERDICT, grade="cannot tell", error=replace(ERROR, chains=3))
    assert "set chains=4 or more, because fewer cannot be judged; or set iterations=" in what_to_do(few, 10)


def test_a_verdict_that_is_ok_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_unless_ok(replace(VERDICT, grade="usable"), "Regressor", iterations=5)
    with pytest.warns(ConvergenceWarning, match=r"^Regressor: predictions are not usable: R-hat above 1.01"):
        warn_unless_ok(VERDICT, "Regressor", iterations=5)


def test_a_chain_that_never_moved_needs_other_settings_than_chains() -> None:
    reason = "quantities that never change in chain 5: y[0]"
    stuck = replace(VERDICT, error=replace(ERROR, mean_bound=0.0), reasons=(reason,), decided_by=reason)
    stuck = replace(stuck, is_stuck=True)
    with pytest.warns(
        ConvergenceWarning, match="not usable: .* never change in chain 5: y.* fit again with other"
    ):
        warn_unless_ok(stuck, "Regressor", iterations=5)
    assert "chains=" not in what_to_do(stuck, 10)


def test_targets_that_the_model_does_not_describe_give_a_warning() -> None:
    """Noise whose standard deviation grows from a half to two."""
    x = 2 * uniform(4, (200, 1)) - 1
    y = x[:, 0] + normal(5, (200,)) * 2 ** x[:, 0]
    model = BayesianNetworkRegressor((), iterations=200, chains=8, random_state=1)
    with pytest.warns(
        UserWarning, match=r"^BayesianNetworkRegressor: the predictive distributions do not fit"
    ):
        model.fit(x, y)
    assert model.verdict_ is not None and model.verdict_.ok
    assert model.fit_verdict_ is not None and model.fit_verdict_.grade == "misfit"
    assert "heteroscedastic" in model.fit_verdict_.advice[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert model.fit(x, x[:, 0] + normal(5, (200,))).fit_verdict_.grade == "no misfit"
