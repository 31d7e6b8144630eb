"""Writes train.parquet and test.parquet, 4,000 and 1,000 digits, from a CSV file of pixels and the digit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd


def main(source: Path) -> None:
    """Take every fifth image of each digit for the test, shuffle both, and divide pixels by 255."""
    table = pd.read_csv(source, header=None).to_numpy()
    digits = table[:, 784]
    place = np.empty(len(digits), dtype=int)  # of each image among those of its digit
    for digit in range(10):
        place[digits == digit] = np.arange((digits == digit).sum())
    is_test = place % 5 == 4
    random = np.random.default_rng(0)
    for name, rows in (("train", np.flatnonzero(~is_test)), ("test", np.flatnonzero(is_test))):
        rows = random.permutation(rows)
        columns = [f"p{number}" for number in range(784)]
        frame = pd.DataFrame(table[rows, :784] / 255, columns=columns, dtype=np.float32)
        frame["digit"] = digits[rows]
        frame.to_parquet(f"{name}.parquet", index=False, compression="zstd", compression_level=19)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
