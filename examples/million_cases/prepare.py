"""Makes a folder with a million cases, 1,000 test cases, and a configuration whose cases are in four parts.

python prepare.py --out million
python prepare.py --out small --cases 20000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

N_INPUTS, N_TEST = 20, 1000
CONFIGURATION = """\
# A network of 64 tanh units for a million cases, divided into four parts.
seed = 1
chains = 4
chains_per_batch = 1
dtype = "float32"

[data]
train = "train.parquet"
targets = ["y"]
parts = 4

[model]
kind = "real"
noise = "0.3:0.5"

[network]
hidden = [{ units = 64, activation = "tanh" }]

[network.priors]
ih0 = "0.5:4:4"
bh0 = "1:4"
ho0 = "x1:4"
bo = "1"

[initial]
sigmas = 0.2

[[phase]]
iterations = 20
operations = [
    { op = "sample-sigmas" },
    { op = "heatbath" },
    { op = "hybrid", steps = 5, stepsize = 0.2, partitions = 4, order = "cyclic" } ]
"""


def cases(n: int, seed: int) -> pd.DataFrame:
    """Return n cases of Friedman's first function, with inputs that are uniform and unit noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, N_INPUTS))
    signal = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    frame = pd.DataFrame(x, columns=[f"x{number + 1}" for number in range(N_INPUTS)])
    return frame.assign(y=signal + rng.normal(size=n))


def main(arguments: list[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--cases", type=int, default=1_000_000, help="number of training cases")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True)
    cases(options.cases, seed=1).to_parquet(options.out / "train.parquet")
    cases(N_TEST, seed=2).to_parquet(options.out / "test.parquet")
    (options.out / "run.toml").write_text(CONFIGURATION)


if __name__ == "__main__":
    main()
