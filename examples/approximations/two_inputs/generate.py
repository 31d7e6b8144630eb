"""Writes train.csv and test.csv: a binary target whose log odds are a smooth function of two inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write(path: Path, n_cases: int, seed: int) -> None:
    """Write cases whose inputs are uniform on [-2, 2]^2, and whose target is 1 with the odds of log_odds."""
    random = np.random.default_rng(seed)
    inputs = random.uniform(-2, 2, size=(n_cases, 2))
    log_odds = 3 * np.sin(1.5 * inputs[:, 0]) * np.cos(inputs[:, 1]) + inputs[:, 1] - 0.3
    targets = (random.uniform(size=n_cases) < 1 / (1 + np.exp(-log_odds))).astype(int)
    lines = [f"{float(x1)!r},{float(x2)!r},{y}" for (x1, x2), y in zip(inputs, targets, strict=True)]
    path.write_text("\n".join(["x1,x2,y", *lines]) + "\n")


if __name__ == "__main__":
    write(Path("train.csv"), 80, seed=0)
    write(Path("test.csv"), 1000, seed=1)
