"""Makes a folder with MNIST as rayfbnn reads it, and the configuration of a 784-100-10 network.

    python prepare.py train.csv.gz --out mnist
    python prepare.py train-images-idx3-ubyte --test t10k-images-idx3-ubyte --out mnist
    python prepare.py package/data --out mnist

A folder has the four IDX files of MNIST. Images are a CSV file without a header, 784 pixels from 0 to 255 and
the digit in the last column, or an IDX file as MNIST comes, compressed or not, with its labels beside it
(images-idx3 -> labels-idx1 in the name).
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PIXELS = 784
CONFIGURATION = """\
# MNIST: 784 pixels, 100 tanh units, 10 classes; a prior for each group of weights whose scale is drawn too.
seed = 1
chains = 4
chains_per_batch = 4

[data]
train = "train.parquet"
inputs = [{inputs}]
targets = ["digit"]

[model]
kind = "class"
classes = 10

[network]
hidden = [{{ units = 100, activation = "tanh" }}]

[network.priors]
ih0 = "x1:0.5"
bh0 = "0.5:0.5"
ho0 = "x1:0.5"
bo = "0.5:0.5"

[initial]
sigmas = 0.3

[[phase]]                   # the sigmas of the weights held until the network fits roughly
iterations = 40
keep = false
operations = [{{ op = "heatbath" }}, {{ op = "hybrid", steps = 50, stepsize = 0.02 }}]

[[phase]]
iterations = 200
operations = [
    {{ op = "sample-sigmas" }}, {{ op = "heatbath" }},
    {{ op = "hybrid", steps = 200, window = 5, stepsize = 0.02 }} ]
"""


def idx_files(folder: Path) -> tuple[Path, Path]:
    """The files of the training images and the test images in a folder, compressed or not."""
    found = [sorted(folder.glob(f"{name}-images-idx3-ubyte*")) for name in ("train", "t10k")]
    for name, files in zip(("train", "t10k"), found, strict=True):
        if not files:
            raise SystemExit(f"{folder}: there is no {name}-images-idx3-ubyte in it")
    return found[0][0], found[1][0]


def read_images(path: Path) -> tuple[Any, Any]:
    """Pixels (n, 784) from 0 to 255 and digits (n,)."""
    if not path.is_file():
        raise SystemExit(f"no such file: {path}")
    if "idx3" in path.name:
        labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
        pixels, digits = read_idx(path), read_idx(labels)
        return pixels.reshape(len(pixels), -1), digits
    table = pd.read_csv(path, header=None).to_numpy()
    return table[:, :-1], table[:, -1]


def read_idx(path: Path) -> Any:
    """An IDX file of unsigned bytes: two zeros, 8, the number of axes, each axis' length, the values."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if raw[:3] != b"\x00\x00\x08":
        raise SystemExit(f"{path}: is no IDX file of bytes")
    shape = np.frombuffer(raw, dtype=">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def table_of(pixels: Any, digits: Any) -> pd.DataFrame:
    """Pixels from 0 to 1 as columns p0 .. p783, and the digit."""
    if pixels.shape != (len(digits), PIXELS) or pixels.min() < 0 or pixels.max() > 255:
        raise SystemExit(
            f"{PIXELS} pixels from 0 to 255 and a digit are needed, got {pixels.shape[1]} columns"
        )
    table = pd.DataFrame(pixels / 255, columns=[f"p{number}" for number in range(PIXELS)])
    return table.assign(digit=digits)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--out", type=Path, default=Path("mnist"))
    parser.add_argument("--cases", type=int, help="so many training cases, evenly spaced in the file")
    given = parser.parse_args(arguments)
    if given.train.is_dir():
        given.train, given.test = idx_files(given.train)
    pixels, digits = read_images(given.train)
    if given.cases is not None:
        chosen = np.linspace(0, len(digits) - 1, given.cases).round().astype(int)
        pixels, digits = pixels[chosen], digits[chosen]
    train = table_of(pixels, digits)
    test = None if given.test is None else table_of(*read_images(given.test))
    given.out.mkdir(parents=True, exist_ok=True)
    train.to_parquet(given.out / "train.parquet")
    if test is not None:
        test.to_parquet(given.out / "test.parquet")
    inputs = ", ".join(f'"p{number}"' for number in range(PIXELS))
    (given.out / "mnist.toml").write_text(CONFIGURATION.format(inputs=inputs))
    print(f"{given.out / 'mnist.toml'}: {len(train)} training cases", file=sys.stderr)


if __name__ == "__main__":
    main()
