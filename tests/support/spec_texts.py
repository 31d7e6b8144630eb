"""A small configuration, the keys that tests change in it, and how they change them."""

from __future__ import annotations

from typing import Any

from rayfbnn.spec import RunSpec

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
HYBRID = "phase[1].operations[2].operations[0]"
BINARY = ("model={kind='binary'}", "phase[0].operations[0].op=sample-sigmas")
CLASS = ("model={kind='class',classes=3}", "phase[0].operations[0].op=sample-sigmas")


def base(*overrides: str) -> RunSpec:
    """Read the configuration with overrides laid over it."""
    return RunSpec.from_dict(BASE, overrides)
