"""Draws the picture on the first page of the documents: predictions by Markov chains and by exact draws.

    python draw.py ../../docs/images/sampled_and_exact.png

The six cases, the network and its priors are those of examples/book/six_points.toml, with more noise so that
rejection finds 1,000 draws in seconds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import rayfbnn
from rayfbnn.pictures.figures import Axes, Panel, arrange
from rayfbnn.pictures.panels import draw_band, draw_targets

SPEC = Path(__file__).parents[1] / "book" / "six_points.toml"
NOISE = "model.noise=0.3"
REACH, POINTS = 1.5, 150  # of the horizontal axis


def bands(folder: Path, *, iterations: int, draws: int) -> dict[str, pd.DataFrame]:
    """Return the predictions along the input by the title of their panel."""
    sampled, exact = folder / "sampled.zarr", folder / "exact.zarr"
    chains = ["chains=8", f"iterations={iterations}"]
    rayfbnn.sample(SPEC, sampled, set=[*chains, NOISE], workers=0, progress=False)
    rayfbnn.reject(SPEC, exact, draws=draws, set=[NOISE], progress=False)
    points = pd.DataFrame({"x": np.linspace(-REACH, REACH, POINTS)})
    titles = (
        f"Markov chains: 8 chains of {iterations:,} draws",
        f"Exact posterior: {draws:,} draws by rejection",
    )
    return {
        title: rayfbnn.predict(path, data=points).table
        for title, path in zip(titles, (sampled, exact), strict=True)
    }


def picture(tables: dict[str, pd.DataFrame], path: Path) -> Path:
    """Draw medians and intervals with the six cases, on the same scales."""
    cases = pd.read_csv(SPEC.parent / "data" / "six_points.csv")
    panels = [
        Panel(_draw, (table, cases, place == 0), title=title, size=(4.1, 3.2))
        for place, (title, table) in enumerate(tables.items())
    ]
    return arrange(path, panels, columns=len(panels), sharey=True)


def _draw(axis: Axes, table: pd.DataFrame, cases: pd.DataFrame, is_first: bool) -> None:
    draw_band(axis, np.linspace(-REACH, REACH, POINTS), table, "y")
    draw_targets(axis, cases["x"].to_numpy(), cases["y"].to_numpy(), are_times=False, is_only_input=True)
    axis.set(xlabel="x", xlim=(-REACH, REACH), xticks=(-1, 0, 1))
    if is_first:
        axis.set_ylabel("y")
        axis.legend(loc="lower left")


def main(words: Sequence[str] | None = None) -> None:
    """Draw the picture into a file; the arguments are those of the shell."""
    parser = argparse.ArgumentParser(description="Draws the picture on the first page of the documents.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=1000)
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        tables = bands(Path(folder), iterations=asked.iterations, draws=asked.draws)
    print(picture(tables, asked.file))


if __name__ == "__main__":
    main()
