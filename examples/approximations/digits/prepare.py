"""Writes train.csv.gz and test.csv.gz from optdigits: 1,797 digits of 8 x 8 pixels from 0 to 16."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

N_TRAIN = 600


def main(source: Path) -> None:
    """Split the cases at random, and divide pixels by 16."""
    table = np.genfromtxt(source, delimiter=",", skip_header=1)
    order = np.random.default_rng(0).permutation(len(table))
    names = ",".join([*(f"p{number}" for number in range(64)), "digit"])
    for name, rows in (("train", order[:N_TRAIN]), ("test", order[N_TRAIN:])):
        pixels, digits = table[rows, :64] / 16, table[rows, 64].astype(int)
        lines = [
            ",".join([*(f"{value:g}" for value in row), str(digit)])
            for row, digit in zip(pixels, digits, strict=True)
        ]
        with gzip.GzipFile(f"{name}.csv.gz", "wb", mtime=0) as file:
            file.write(("\n".join([names, *lines]) + "\n").encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
