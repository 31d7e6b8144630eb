"""Small configurations of every data model, each with a training file for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn.spec import RunSpec
from rayfbnn.streams import Purpose, Streams
from tests.support.small import small

MODELS: dict[str, dict[str, Any]] = {
    "real": {"kind": "real", "noise": "0.3:3"},
    "t noise": {"kind": "real", "noise": "0.3:3::4"},
    "binary": {"kind": "binary"},
    "class": {"kind": "class", "classes": 3},
    "count": {"kind": "count"},
    "count, dispersion": {"kind": "count", "dispersion": "0.5:3"},
    "constant hazard": {"kind": "survival", "hazard": "constant"},
    "hazard of pieces": {"kind": "survival", "hazard": "piecewise", "time_points": [0.3, 1.0, 2.0]},
    "heteroscedastic": {"kind": "heteroscedastic", "noise_floor": 0.05},
}


def spec_of(name: str, folder: Path, *, missing: bool = True, **changes: Any) -> RunSpec:
    """The small configuration with a model and a training file for it; unit sigmas for the inputs.

    missing  whether the target of the sixth case is missing
    """
    numbers = Streams(12, np.arange(12, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (3,))
    y = numbers[:, 2]
    if name.startswith("count"):
        y = np.floor(np.exp(1 + y))
    elif name == "binary":
        y = (y > 0).astype(float)
    elif name == "class":
        y = np.floor(3 / (1 + np.exp(-y)))
    elif "hazard" in name:
        y = np.exp(y) * np.where(np.arange(12) % 3 == 1, -1, 1)
    cells = [f"{a!r},{b!r},{c!r}" for a, b, c in np.column_stack([numbers[:, :2], y]).tolist()]
    if missing:
        cells[5] = cells[5].rsplit(",", 1)[0] + ","
    (folder / "train.csv").write_text("\n".join(["x1,x2,y", *cells]) + "\n")
    changes = {"model": MODELS[name], "network__priors__ih0": "0.7:3:4", **changes}
    return RunSpec.from_dict(small(**changes), base_dir=folder)
