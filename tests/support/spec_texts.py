"""Texts of small configurations."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "seed": 7,
    "chains": 4,
    "chains_per_batch": 2,
    "data": {"train": "train.csv", "inputs": ["x1", "x2"], "targets": ["y"]},
    "model": {"kind": "real", "noise": "0.1:0.2"},
    "network": {
        "hidden": [{"units": 8, "activation": "tanh"}],
        "priors": {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"},
    },
    "initial": {"sigmas": 0.5},
    "phase": [
        {"iterations": 5, "keep": False, "operations": [{"op": "sample-noise"}, {"op": "heatbath"}]},
        {
            "iterations": 20,
            "operations": [
                {"op": "sample-sigmas"},
                {"op": "heatbath"},
                {"op": "repeat", "times": 3, "operations": [{"op": "hybrid", "steps": 10, "stepsize": 0.3}]},
            ],
        },
    ],
}
PRIORS = "network.priors"
