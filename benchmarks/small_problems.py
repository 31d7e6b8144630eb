"""Two small problems with a sigma for each input, made by formula: three classes, and a binary target."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.streams import Purpose, Streams

CONFIGURATIONS = {
    "classes": """
hidden = [{ units = 4, activation = "tanh" }]
[network.priors]
ih0 = "1:0.5:0.5"
bh0 = "1:0.5"
ho0 = "x1:0.5"
bo = "1"
""",
    "binary": """
hidden = [{ units = 4, activation = "tanh" }, { units = 4, activation = "tanh" }]
[network.priors]
ih0 = "1:0.5:0.5"
bh0 = "1:0.5"
h0h1 = "x1:0.5"
bh1 = "1:0.5"
ho1 = "x1:0.5"
bo = "1"
""",
}
FOLDER = tempfile.TemporaryDirectory()
N_INPUTS = {"classes": 10, "binary": 6}
N_CASES = {"classes": 300, "binary": 200}
PHASES = """
[[phase]]
iterations = 300
keep = false
operations = [
    { op = "sample-sigmas" }, { op = "heatbath" },
    { op = "hybrid", steps = 100, window = 10, stepsize = 0.4 } ]
[[phase]]
iterations = 1
operations = [{ op = "sample-sigmas" }]
"""


@cache
def made(problem: str) -> Path:
    """A problem's configuration, with its training cases beside it until the process ends."""
    folder = Path(FOLDER.name) / problem
    folder.mkdir()
    names = [f"x{number}" for number in range(N_INPUTS[problem])]
    streams = Streams(1, np.zeros(1, dtype=np.uint64))
    inputs = streams.normal(Purpose.INITIAL_PARAMETER, (N_CASES[problem], len(names)))[0]
    uniform = streams.uniform(Purpose.ACCEPT, (N_CASES[problem],))[0]
    rows = np.column_stack([inputs, targets_of(problem, inputs, uniform)])
    header = ",".join([*names, "y"])
    np.savetxt(folder / "train.csv", rows, delimiter=",", header=header, comments="", fmt="%.6g")
    kind = 'kind = "class"\nclasses = 3' if problem == "classes" else 'kind = "binary"'
    data = f'[data]\ntrain = "train.csv"\ninputs = {names}\ntargets = ["y"]\n[model]\n{kind}\n'
    path = folder / f"{problem}.toml"
    path.write_text(data + "[network]" + CONFIGURATIONS[problem] + PHASES)
    return path


def targets_of(problem: str, inputs: Array, uniform: Array) -> Array:
    """Targets (n_cases,) that depend only on the first three inputs."""
    if problem == "binary":
        logits = 3 * np.sin(2 * inputs[:, 0]) + 2 * inputs[:, 1] * inputs[:, 2]
        return (uniform < 1 / (1 + np.exp(-logits))).astype(int)
    logits = np.column_stack([2 * inputs[:, 0], 2 * np.tanh(2 * inputs[:, 1]), inputs[:, 2] ** 2])
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return (uniform[:, None] > shares.cumsum(axis=1)).sum(axis=1)
