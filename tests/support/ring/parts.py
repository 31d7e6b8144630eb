"""Small posteriors whose cases are divided into parts, and divisions of the parts among owners."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Purpose
from tests.support import problems
from tests.support.model import data_models
from tests.support.problems import covariates_of

N_PARTS = 4
DIVISIONS = {
    "one owner": ((0, 1, 2, 3),),
    "two owners": ((0, 1), (2, 3)),
    "two owners in turn": ((0, 2), (1, 3)),
    "three owners": ((3,), (0, 1), (2,)),
    "four owners": ((2,), (0,), (3,), (1,)),
}
MODELS: dict[str, Any] = dict.fromkeys(problems.MODELS, problems.problem)
MODELS |= dict.fromkeys(data_models.MODELS, data_models.problem)


def target_of(name: str, *, missing: bool = False, dtype: Any = "float64", n_cases: int = 11) -> Any:
    """A posterior given some cases, perhaps with some targets missing."""
    if missing:
        return informed(name, missing=True, dtype=dtype, n_cases=n_cases)[0]
    return MODELS[name](name, n_cases=n_cases, dtype=dtype)


def informed(
    name: str,
    *,
    missing: bool = False,
    dtype: Any = "float64",
    n_cases: int = 11,
    posterior: Any = SampledPosterior,
) -> tuple[Any, Array]:
    """A posterior given targets that its own model draws, some of them perhaps missing, and these targets."""
    target: SampledPosterior = MODELS[name](name, n_cases=n_cases, dtype=dtype)
    position, precisions = position_of(target, 1)
    data: Any = target.sample_targets(position, precisions, problems.streams("targets", 1))[0].copy()
    if missing:
        data[[3, n_cases - 3]] = np.nan
        data[1, -1] = np.nan
    return given(target, data, posterior=posterior), data


def given(target: SampledPosterior, data: Array, *, posterior: Any = SampledPosterior) -> Any:
    """Return this posterior given other targets, (n_cases, n_targets)."""
    return posterior.from_spec(target.network, target.model, covariates_of(target), data, dtype=target.dtype)


def position_of(target: SampledPosterior, n_chains: int) -> tuple[Array, Array]:
    """A position of moderate size, and precisions."""
    random = problems.streams("part", n_chains)
    state = target.initial_state(random, sigmas=0.4)
    noise = random.normal(Purpose.PROPOSAL, state.position.shape[1:])
    return (0.3 * noise).astype(target.dtype), state.precisions
