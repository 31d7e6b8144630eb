"""Posteriors of the tables of a few cases, with quantities by importance sampling from the prior."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Streams
from tests.support.model.chain_streams import streams_on_array
from tests.support.problems import parse

TABLES = Path(__file__).parents[2] / "data/tables"
_PRIORS = {"ih0": "0.35:4:4", "bh0": "1:4", "ho0": "x4:4", "io": "0.71:2:4", "bo": "1"}  # the default ones
_PROBE = np.array([[-1.0, 0.3], [0.2, -0.5]])  # inputs of outputs that are compared
_AT_ONCE = 50_000


def posterior_of(
    table: str,
    kind: Literal["real", "binary"] = "real",
    *,
    noise: str = "1:10",
    n_targets: int = 1,
    xp: Any = np,
) -> SampledPosterior:
    """Return the posterior of three tanh units given a table, or given the signs of its targets.

    n_targets  the second of two targets is the first in the opposite order of cases
    """
    rows = np.loadtxt(TABLES / table, delimiter=",", skiprows=1)
    columns = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    inputs, targets = columns[:, :2], columns[:, 2:]
    if n_targets == 2:
        targets = np.hstack([targets, targets[::-1]])
    if kind == "binary":
        model, targets = ModelSpec("binary"), (targets > 0).astype(float)
    else:
        model = ModelSpec("real", PriorSpec.parse(noise, key="noise"))
    network = NetworkSpec(2, n_targets, (LayerSpec(3, "tanh"),), parse(_PRIORS))
    return SampledPosterior.from_spec(network, model, inputs, targets, xp=xp)


def quantities(posterior: SampledPosterior, position: Array, precisions: Array) -> Array:
    """Return the log sigmas of weights and noise, and outputs at two inputs, (n_rows, n_quantities)."""
    is_free = np.asarray(posterior.precision_layout.is_free)
    outputs = posterior.outputs(position, _PROBE).reshape(len(position), -1)
    return np.concatenate([-0.5 * np.log(precisions[:, is_free]), outputs], axis=1)


@dataclass(frozen=True)
class Weighted:
    """Means of quantities with their standard errors, and the log of the mean weight with its error."""

    means: Array
    errors: Array
    log_evidence: float
    error_of_evidence: float


def weighted(posterior: SampledPosterior, n: int, *, seed: int) -> Weighted:
    """Return what importance sampling from the prior gives, with the noise integrated out or proposed."""
    path = path_of(posterior)
    parts = []
    for first in range(0, n, _AT_ONCE):
        streams: Streams = streams_on_array(seed, np.arange(first, first + _AT_ONCE, dtype=np.uint64))
        drawn = path.prior_draw(streams.at(iteration=0))
        everywhere = np.ones(_AT_ONCE, dtype=bool)
        state, energies = path.offered(drawn, streams.at(iteration=1), is_below=everywhere)
        log_weights = -energies.at(np.full(_AT_ONCE, path.ends.top))
        parts.append((log_weights, quantities(posterior, state.position, state.precisions)))
    logs, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    largest = logs.max()
    weights = np.exp(logs - largest)
    shares = weights / weights.sum()
    means = shares @ values
    errors = np.sqrt(shares**2 @ (values - means) ** 2)
    relative = weights.std() / weights.mean() / np.sqrt(len(weights))
    return Weighted(means, errors, float(largest + np.log(weights.mean())), float(relative))
