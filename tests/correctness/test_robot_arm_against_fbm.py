"""Sixteen chains on Neal's robot arm agree with nine runs of FBM on the same data (90 s on one core)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.mcmc.operations import Heatbath, Hybrid, Repeat, SampleNoise, SampleSigmas
from rayfbnn.mcmc.schedule import build_iteration, run
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from tests.support.problems import chain_streams, parse

TESTS = Path(__file__).parents[1]
FBM = TESTS / "data" / "fbm" / "robot_arm"
N_CHAINS, N_BURN_IN, N_DRAWS = 16, 60, 100


def read(path: Path) -> np.ndarray:
    return np.loadtxt(path, delimiter=",", skiprows=1)


@pytest.mark.long
def test_robot_arm_agrees_with_fbm() -> None:
    train, fbm = (
        read(TESTS.parent / "examples" / "robot_arm" / "train.csv"),
        read(FBM / "fbm_predictions.csv"),
    )
    inputs, targets, fbm_means, fbm_run_sd = fbm[:, :2], fbm[:, 2:4], fbm[:, 4:6], fbm[:, 8:10]
    runs = [
        one for name in ("S1", "S2", "S3") for one in json.loads((FBM / "fbm_runs.json").read_text())[name]
    ]
    priors = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}
    network = NetworkSpec(2, 2, (LayerSpec(16, "tanh"),), parse(priors))
    model = ModelSpec("real", PriorSpec.parse("0.1:0.2", key="noise"))
    posterior = SampledPosterior.from_spec(network, model, train[:, :2], train[:, 2:], dtype="float32")
    updates = {"sample-sigmas": posterior.sample_sigmas, "sample-noise": posterior.sample_noise}
    short = Hybrid(steps=64, window=10, stepsize=0.3)
    start = build_iteration(
        (Repeat(20, (SampleNoise(), Heatbath(), short)), Repeat(400, (SampleSigmas(), Heatbath(), short))),
        target=posterior,
        updates=updates,
    )
    iteration = build_iteration(
        (SampleSigmas(), Heatbath(), Hybrid(steps=4000, window=20, stepsize=0.3)),
        target=posterior,
        updates=updates,
    )
    streams = chain_streams(1996, N_CHAINS)
    state, _ = start(posterior.initial_state(streams, sigmas=0.5), streams.at(iteration=1))
    log_sigmas, predictions = [], []
    for number, drawn, _ in run(state, streams, iteration=iteration, first=2, count=N_BURN_IN + N_DRAWS):
        if number >= 2 + N_BURN_IN:
            log_sigmas.append(-np.log(drawn.precisions) / 2)
            predictions.append(posterior.outputs(drawn.position, inputs).astype(np.float64))

    per_chain = np.mean(log_sigmas, axis=0)  # (n_chains, n_precisions)
    for name, group in (("ih", "ih0"), ("bh", "bh0"), ("ho", "ho0"), ("noise", "noise")):
        ours = per_chain[:, posterior.precision_layout.common[group]]
        theirs = np.array([one["logs"][name][0] for one in runs])
        error = np.hypot(ours.std(ddof=1) / np.sqrt(N_CHAINS), theirs.std(ddof=1) / np.sqrt(len(runs)))
        z = (ours.mean() - theirs.mean()) / error
        assert abs(z) < 4, f"log sigma of {name}: {ours.mean():.3f}, FBM {theirs.mean():.3f}, z = {z:.1f}"

    chain_means = np.mean(predictions, axis=0)  # (n_chains, n_cases, n_targets)
    means = chain_means.mean(axis=0)
    squared_error = ((means - targets) ** 2).sum(axis=1).mean()
    fbm_squared_error = ((fbm_means - targets) ** 2).sum(axis=1).mean()
    assert squared_error == pytest.approx(fbm_squared_error, rel=0.03)
    # Both estimates of a predictive mean scatter; 4 standard errors, root mean square over cases and targets.
    variance = chain_means.var(axis=0, ddof=1) / N_CHAINS + fbm_run_sd**2 / len(runs)
    assert np.sqrt(((means - fbm_means) ** 2).mean()) < 4 * np.sqrt(variance.mean())
