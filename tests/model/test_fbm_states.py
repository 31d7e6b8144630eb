"""Energies, gradients and stepsizes of single states, as FBM computed them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from tests.support.problems import parse

DATA = Path(__file__).parent.parent / "data" / "fbm"
STATES = json.loads((DATA / "states.json").read_text())
CASES = [(kind, number) for kind in STATES for number in range(len(STATES[kind]))]
PRIORS = {
    "real": {"ih0": "0.7:3", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"},
    "binary": {"ih0": "0.7:4::4", "bh0": "0.7:4", "ho0": "x1.5:4::3", "bo": "1"},
}
MODEL = {"real": ModelSpec("real", PriorSpec.parse("0.3:3", key="noise")), "binary": ModelSpec("binary")}
# Positions of the common sigmas (ih, bh, ho, bo, noise) in the file's list of sigmas.
COMMON = {"real": [0, 2, 3, 7, 8], "binary": [0, 3, 4, 8]}


def state(kind: str, number: int) -> tuple[SampledPosterior, Any, Any, dict[str, Any]]:
    """A posterior, a position and precisions of one chain, and FBM's results for them."""
    with open(DATA / f"tiny_{kind}_train.csv", newline="") as file:
        cases = np.array([[float(value) for value in row] for row in csv.reader(file)])
    inputs = cases.shape[1] - 1
    spec = NetworkSpec(inputs, 1, (LayerSpec(3, "tanh"),), parse(PRIORS[kind]))
    posterior = SampledPosterior.from_spec(spec, MODEL[kind], cases[:, :-1], cases[:, -1:])
    known = STATES[kind][number]
    sigmas = np.array(known["sigmas"])[COMMON[kind]]
    return posterior, np.array([known["params"]]), sigmas[None] ** -2, known


@pytest.mark.parametrize("kind, number", CASES)
def test_energy_is_fbms(kind: str, number: int) -> None:
    posterior, position, precisions, known = state(kind, number)
    energy, _ = posterior.potential_and_gradient(position, precisions)
    assert abs(energy[0] - known["E_fbm"]) < 0.5001e-4
    assert abs(energy[0] - known["E_recomputed"]) < 1e-12
    assert abs(posterior.log_likelihood(position, precisions)[0] + known["minus_loglik"]) < 1e-12


@pytest.mark.parametrize("kind, number", CASES)
def test_gradient_is_fbms(kind: str, number: int) -> None:
    posterior, position, precisions, known = state(kind, number)
    _, gradient = posterior.potential_and_gradient(position, precisions)
    printed = np.array(known["grad_E_fbm"])
    last_digit = 10.0 ** (np.floor(np.log10(np.abs(printed))) - 4)  # FBM printed five digits
    assert np.all(np.abs(gradient[0] - printed) <= 0.5001 * last_digit)


@pytest.mark.parametrize("kind, number", CASES)
def test_stepsizes_are_fbms(kind: str, number: int) -> None:
    posterior, _, precisions, known = state(kind, number)
    assert np.allclose(posterior.stepsizes(precisions)[0], known["stepsize_fbm"], rtol=1e-10, atol=0)
