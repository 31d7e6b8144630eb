"""Writes test.csv: 2,000 cases of the robot arm; Neal (1996), eqs. 3.33, 3.34."""

from __future__ import annotations

from pathlib import Path

import numpy as np

random = np.random.default_rng(1)
n = 2000
x1 = random.uniform(0.453, 1.932, n) * np.where(random.random(n) < 0.5, -1, 1)
x2 = random.uniform(0.534, 3.142, n)
noise = 0.05 * random.standard_normal((2, n))
y1 = 2 * np.cos(x1) + 1.3 * np.cos(x1 + x2) + noise[0]
y2 = 2 * np.sin(x1) + 1.3 * np.sin(x1 + x2) + noise[1]
lines = [",".join(f"{value:.6f}" for value in case) for case in zip(x1, x2, y1, y2, strict=True)]
Path("test.csv").write_text("\n".join(["x1,x2,y1,y2", *lines]) + "\n")
