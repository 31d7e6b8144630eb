"""Posteriors small enough to draw from exactly, by rejection."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.mcmc.rejection import rejection_draws
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.sampled import SampledPosterior
from tests.support.problems import parse

INPUTS = np.array([[-1.0], [0.2], [1.1]])
TARGETS = np.array([[0.8], [-0.3], [-0.9]])
MODELS = {
    "real": (ModelSpec("real", PriorSpec.parse("0.5:3", key="noise")), TARGETS),
    "t": (ModelSpec("real", PriorSpec.parse("0.5:4:3:5", key="noise")), TARGETS),
    "binary": (ModelSpec("binary"), (TARGETS > 0).astype(float)),
    "class": (ModelSpec("class", classes=3), np.array([[0.0], [2.0], [2.0]])),
}


def target_of(name: str, make: Any = SampledPosterior) -> SampledPosterior:
    model, targets = MODELS[name]
    priors = parse({"ih0": "1:4", "bh0": "0.7", "ho0": "x1:4", "bo": "0.7"})
    network = NetworkSpec(1, data_model_from_spec(model).n_outputs(1), (LayerSpec(2, "tanh"),), priors)
    posterior: SampledPosterior = make.from_spec(network, model, INPUTS, targets)
    return posterior


def exact_draws(target: SampledPosterior, *, seed: int, draws: int) -> tuple[Array, Array]:
    rounds = rejection_draws(
        target.rejection_proposal,
        seed=seed,
        draws=draws,
        chains_per_round=20_000,
        max_proposals=4_000_000,
        streams_class=choose.streams_class("cpu"),
    )
    positions, precisions = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    return positions, precisions


def quantities(target: SampledPosterior, position: Array, precisions: Array) -> list[Array]:
    free = precisions[:, target.precision_layout.is_free]
    outputs = target.outputs(position, INPUTS)[:, :, 0]
    return [
        target.log_likelihood(position, precisions),
        target.log_prior(position, precisions),
        target.potential(position, precisions),
        *outputs.T,
        *free.T,
    ]
