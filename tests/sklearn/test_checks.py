"""Both estimators pass the checks that scikit-learn has for estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from tests.support.sklearn.small import classifier, labels_spec, numbers_spec, regressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# The checks of both estimators with a fit that say most, and some that need none.
TELLING = {
    "check_estimators_unfitted",
    "check_methods_sample_order_invariance",
    "check_estimators_empty_data_messages",
    "check_fit1d",
    "check_classifiers_one_label",
    "check_no_attributes_set_in_init",
    "check_estimator_sparse_array",
    "check_get_params_invariance",
    "check_set_params",
    "check_requires_y_none",
}
SMALL = [regressor(), classifier()]
# Runs long enough to predict as well as the checks ask for.
LONGER = [regressor(spec=numbers_spec(first=20, kept=60)), classifier(spec=labels_spec(kept=80))]


def name_of(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)


CASES = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{name_of(check)}")
    for some in SMALL
    for estimator, check in estimator_checks_generator(some)
    if name_of(check) in TELLING
]


@pytest.mark.parametrize(("estimator", "check"), CASES)
def test_the_most_telling_checks_pass(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_every_telling_check_is_there() -> None:
    assert {name_of(case.values[1]) for case in CASES} == TELLING


@pytest.mark.long
@parametrize_with_checks(LONGER)
def test_every_check_passes(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
