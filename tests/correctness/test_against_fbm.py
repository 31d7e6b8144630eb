"""Long-run posterior quantities of two tiny problems agree with FBM's own runs of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.mcmc.operations import Heatbath, Hybrid, Repeat, SampleNoise, SampleSigmas
from rayfbnn.mcmc.schedule import build_iteration, run
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from tests.support.fbm import statistics
from tests.support.marks import some_long
from tests.support.problems import chain_streams, parse

DATA = Path(__file__).parents[1] / "data" / "fbm"
N_CHAINS, N_WARMUP, N_DRAWS = 256, 8, 20  # at least 2,000 effective draws of every quantity

PROBLEMS = {
    "real": (1, {"ih0": "0.7:3", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"}, "0.3:3"),
    "binary": (2, {"ih0": "0.7:4::4", "bh0": "0.7:4", "ho0": "x1.5:4::3", "bo": "1"}, None),
}


def read(name: str) -> np.ndarray:
    return np.loadtxt(DATA / name, delimiter=",", ndmin=2)


def simulate(kind: str) -> tuple[SampledPosterior, np.ndarray, np.ndarray]:
    """FBM's schedule, `repeat 10 sample-sigmas heatbath hybrid 30:5 0.4`, after its initial phase.

    Returns the log common sigmas (n_chains, n_draws, n_precisions) and the network's outputs at the test
    inputs (n_chains, n_draws, n_test); for binary targets the outputs are probabilities.
    """
    inputs, priors, noise = PROBLEMS[kind]
    train, test = read(f"tiny_{kind}_train.csv"), read(f"tiny_{kind}_test.csv")[:, :inputs]
    network = NetworkSpec(inputs, 1, (LayerSpec(3, "tanh"),), parse(priors))
    noise_prior = PriorSpec.parse(noise, key="noise") if noise else None
    model = ModelSpec("real" if kind == "real" else "binary", noise_prior)
    posterior = SampledPosterior.from_spec(
        network, model, train[:, :inputs], train[:, inputs:], dtype="float64"
    )
    updates = {"sample-sigmas": posterior.sample_sigmas, "sample-noise": posterior.sample_noise}
    start = (SampleNoise(), Heatbath(), Hybrid(steps=50, window=5, stepsize=0.3))
    main = (SampleSigmas(), Heatbath(), Hybrid(steps=30, window=5, stepsize=0.4))
    streams = chain_streams(20261121, N_CHAINS)
    state = posterior.initial_state(streams, sigmas=0.5)
    initial = build_iteration((Repeat(20, start),), target=posterior, updates=updates)
    iteration = build_iteration((Repeat(10, main),), target=posterior, updates=updates)
    state, _ = initial(state, streams.at(iteration=1))
    log_sigmas, outputs = [], []
    draws = run(state, streams, iteration=iteration, first=2, count=N_WARMUP + N_DRAWS)
    for _, drawn, _ in itertools.islice(draws, N_WARMUP, None):
        log_sigmas.append(-np.log(drawn.precisions) / 2)
        outputs.append(posterior.outputs(drawn.position, test)[:, :, 0])
    values = np.stack(outputs, axis=1)
    return posterior, np.stack(log_sigmas, axis=1), 1 / (1 + np.exp(-values)) if kind == "binary" else values


@pytest.mark.parametrize("kind", some_long(PROBLEMS, ["binary"]))
def test_posterior_agrees_with_fbm(kind: str) -> None:
    posterior, log_sigmas, outputs = simulate(kind)
    reference = json.loads((DATA / f"tiny_{kind}_results.json").read_text())["quantities"]
    compared = {}
    for group, column in posterior.precision_layout.common.items():
        name = f"sigma_{group.removesuffix('0')}"
        if name in reference:
            fbm = reference[name]
            # Moments of the logarithm: a sigma itself has power-law tails.
            compared[f"log {name}"] = (log_sigmas[:, :, column], fbm["mcmc_log"], ("mean", "sd"))
            compared[name] = (np.exp(log_sigmas[:, :, column]), fbm["mcmc"], ("q05", "q50", "q95"))
    for case in range(outputs.shape[2]):
        name = f"pred_out0_test{case + 1}"
        compared[name] = (
            outputs[:, :, case],
            reference[name]["mcmc"],
            ("mean", "sd", "q05", "q50", "q95"),
        )
    assert set(reference) <= set(compared)
    for name, (draws, fbm, wanted) in compared.items():
        estimates = statistics(draws)
        effective = draws.var() / estimates["mean"][1] ** 2
        assert effective > 1000, f"{name}: {effective:.0f} effective draws are too few for a sharp test"
        for statistic in wanted:
            estimate, error = estimates[statistic]
            z = (estimate - fbm[statistic]) / np.hypot(error, fbm[f"mcse_{statistic}"])
            # 1 in 16,000 each if correct; seed fixed
            assert abs(z) < 4, f"{statistic} of {name}: {estimate:.5f}, FBM {fbm[statistic]:.5f}, z {z:.1f}"
