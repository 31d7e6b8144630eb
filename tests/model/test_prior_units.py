"""Step and error-function units can be drawn from the prior, and are refused where a gradient is needed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import PRIOR_ACTIVATIONS
from rayfbnn.model.network import Buffers, activate
from rayfbnn.model.sampled import SampledPosterior
from tests.support.problems import MODELS, network


def values(activation: str, u: list[float]) -> list[float]:
    array = np.array(u)
    activate(array, activation, buffers=Buffers())
    return list(array)


def test_step_units_are_minus_one_below_zero_and_one_above() -> None:
    assert values("step", [-3.0, -1e-300, 1e-300, 2.0]) == [-1, -1, 1, 1]


def test_a_step_unit_whose_input_is_not_a_number_is_not_one_either() -> None:
    assert np.isnan(values("step", [np.nan])).all()


def test_erf_units_are_the_error_function() -> None:
    u = [-2.0, -0.1, 0.0, 0.7, 30.0]
    assert values("erf", u) == list(scipy.special.erf(u))


@pytest.mark.parametrize("activation", PRIOR_ACTIVATIONS)
def test_their_gradient_is_refused_by_name(activation: str) -> None:
    spec = network(units=(4, 3), activations=("tanh", activation))
    posterior = SampledPosterior.from_spec(spec, MODELS["gaussian"], np.zeros((5, 3)), np.zeros((5, 2)))
    position = np.zeros((2, posterior.n_parameters))
    precisions = np.ones((2, posterior.n_precisions))
    assert posterior.potential(position, precisions).shape == (2,)
    with pytest.raises(ConfigError, match=f"{activation} units have no gradient"):
        posterior.potential_and_gradient(position, precisions)
