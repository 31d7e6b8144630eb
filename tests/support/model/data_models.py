"""Small posteriors with count, survival and heteroscedastic targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.integrate
import scipy.stats

from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Purpose
from tests.support.problems import covariates_of, network, streams

PIECES = (0.4, 1.0, 2.5)
MODELS = {
    "count": ModelSpec("count"),
    "count, dispersion": ModelSpec("count", dispersion=PriorSpec.parse("0.7:4", key="dispersion")),
    "count, dispersion of each": ModelSpec("count", dispersion=PriorSpec.parse("0.7:4:5", key="dispersion")),
    "constant hazard": ModelSpec("survival"),
    "hazard of pieces": ModelSpec("survival", times=PIECES),
    "hazard of pieces, log time": ModelSpec("survival", times=PIECES, log_time=True),
    "heteroscedastic": ModelSpec("heteroscedastic"),
    "heteroscedastic, floor": ModelSpec("heteroscedastic", noise_floor=0.3),
}
# Narrower priors than in the general test, because a rate is the exponential of an output.
PRIORS = {"ti": "0.3", "ih0": "0.5:4", "bh0": "0.5:4:5", "ho0": "x0.6:5", "io": "0.2", "bo": "0.4:5"}


def problem(
    name: str,
    *,
    n_cases: int = 7,
    missing: bool = False,
    dtype: Any = "float64",
    posterior: Any = SampledPosterior,
) -> SampledPosterior:
    """A posterior on made-up data; the network has three inputs, perhaps with the time among them."""
    model = MODELS[name]
    n_targets = 1 if model.kind == "survival" else 2
    spec = network(
        PRIORS, outputs=data_model_from_spec(model).n_outputs(n_targets), units=(4,), activations=("tanh",)
    )
    random = streams(f"data {name}", 1)
    inputs = random.normal(Purpose.PROPOSAL, (n_cases, 3 - bool(model.times)))[0]
    values = random.normal(Purpose.TARGET_VALUE, (n_cases, n_targets))[0]
    if model.kind == "count":
        values = np.floor(np.exp(1 + values))
        values[0] = 0
    if model.kind == "survival":
        values = np.exp(values) * np.where(np.arange(n_cases) % 3 == 1, -1.0, 1.0)[:, None]
        values[2] = PIECES[1]  # at the end of a piece
    if missing:
        values[3] = np.nan
        values[1, -1] = np.nan
    posterior_on_data: SampledPosterior = posterior.from_spec(spec, model, inputs, values, dtype=dtype)
    return posterior_on_data


def targets_of(name: str, **options: Any) -> np.ndarray:
    """Targets that `problem` gives the model, (n_cases, n_targets)."""

    class Recorder:
        @staticmethod
        def from_spec(spec: Any, model: Any, inputs: Any, values: np.ndarray, dtype: Any) -> np.ndarray:
            return values

    values: Any = problem(name, posterior=Recorder, **options)
    return np.asarray(values)


def distribution_functions(
    target: SampledPosterior, position: np.ndarray, precisions: np.ndarray, data: np.ndarray, random: Any
) -> np.ndarray:
    """Distribution function of each target given the outputs and precisions.

    Uniform for exact draws, jittered between steps of counts.
    """
    model = target.model
    v = target.outputs(position, target.data_model.cell_inputs(covariates_of(target)))
    if model.kind == "survival":
        log_hazard = v.reshape(len(v), -1, target.data_model.n_cells)
        starts = np.array([0.0, *model.times])
        lived = np.minimum(data, np.append(starts[1:], np.inf)) - starts
        return np.asarray(np.exp(-(np.exp(log_hazard) * np.maximum(lived, 0)).sum(axis=2)))
    if model.kind == "count":
        counts = counts_given(target, v, precisions)
        between = random.uniform(Purpose.PROPOSAL, data.shape[1:])
        return np.asarray(counts.cdf(data) - counts.pmf(data) * between)
    mean, s = np.split(v, 2, axis=2)
    return np.asarray(scipy.stats.norm.cdf(data, mean, np.sqrt(model.noise_floor**2 + np.exp(-s))))


def counts_given(target: SampledPosterior, v: np.ndarray, precisions: np.ndarray) -> Any:
    """The distribution of counts given outputs (n_chains, n_cases, n_targets), as scipy has it."""
    mean = np.exp(v)
    if target.model.dispersion is None:
        return scipy.stats.poisson(mean)
    shape = precisions[:, None, target.precision_layout.noise_columns]
    return scipy.stats.nbinom(shape, shape / (shape + mean))
