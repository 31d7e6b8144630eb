"""Fits networks of four sizes by `map` and samples their posteriors; writes sizes.csv and sizes.png.

    python sizes.py out

Stores that are in the folder already are resumed, or used as they are if they are complete.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import rayfbnn

HERE = Path(__file__).parent
SIZES = (6, 8, 16, 32)
NAMES = {"map": "networks of greatest density", "hmc": "posterior"}


def errors(n_units: int, method: str, out: Path) -> dict[str, float | str]:
    """Return the squared errors of training and test cases, and the log probability of the latter."""
    store = out / f"{method}_{n_units}.zarr"
    units = [f"network.hidden[0].units={n_units}"]
    rayfbnn.sample_or_resume(HERE / "network_size.toml", store, method=method, set=units, workers=0)
    training, test = (rayfbnn.predict(store, data=HERE / f"{part}.csv").summary for part in ("train", "test"))
    return {
        "method": method,
        "units": n_units,
        "training_error": training["squared_error"],
        "test_error": test["squared_error"],
        "log_probability": test["log_probability"],
    }


def picture(table: pd.DataFrame, file: Path) -> None:
    """Draw the errors by the number of units."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for (method, name), colour in zip(NAMES.items(), ("tab:red", "tab:blue"), strict=True):
        rows = table[table["method"] == method]
        axes.plot(rows["units"], rows["test_error"], "o-", color=colour, label=f"{name}, test cases")
        axes.plot(rows["units"], rows["training_error"], "o--", color=colour, label=f"{name}, training cases")
    axes.axhline(2 * 0.05**2, color="grey", linewidth=1, label="noise")
    axes.set(xscale="log", xlabel="hidden units", ylabel="squared error", ylim=(0, None))
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    found = pd.DataFrame([errors(size, method, folder) for method in NAMES for size in SIZES])
    found.to_csv(folder / "sizes.csv", index=False)
    print(found.to_string(index=False))
    picture(found, folder / "sizes.png")
