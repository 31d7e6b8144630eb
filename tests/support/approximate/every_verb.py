"""A process that adds a fifth approximation to the registry and uses it with every verb.

    python -m tests.support.approximate.every_verb FOLDER

It prints one JSON object with the answer of each verb. The approximation enters the registry before anything
else of the package is imported, as if the file of the registry had one more line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.approximate.registry import APPROXIMATIONS
from tests.support.approximate.point_mass import PointMass

APPROXIMATIONS[PointMass.name] = PointMass

import rayfbnn  # noqa: E402
from rayfbnn.errors import ConfigError  # noqa: E402
from tests.support.output.undrawn import leave_undrawn  # noqa: E402
from tests.support.small import small, write_train  # noqa: E402

HERE: dict[str, Any] = {"workers": 0, "progress": False}


def answers(folder: Path) -> dict[str, Any]:
    """Return the answer of each verb for a point mass; files are written to the folder."""
    data = write_train(folder)
    raw = small(data__standardize=[]) | {"methods": {"point": {"starts": 2, "place": 0.25}}}
    raw["data"]["train"] = str(data)
    path = folder / "run.zarr"
    shown_before = str(rayfbnn.show(rayfbnn.RunSpec.from_dict(raw).for_method("point")))
    rayfbnn.sample(raw, path, method="point", **HERE)
    rayfbnn.sample(raw, folder / "chains.zarr", **HERE)
    prediction = rayfbnn.predict(path, data=data)
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        options = {"data": data, "methods": "point", "exact": folder / "chains.zarr", **HERE}
        comparison = rayfbnn.compare(raw, folder / "out", **options)
    report = rayfbnn.report(path, out=folder / "run.html", progress=False)
    return {
        "show of a configuration": shown_before,
        "show": str(rayfbnn.show(path)),
        "status": rayfbnn.status(path).complete,
        "positions": rayfbnn.open(path)["posterior"]["ih0"].values.ravel().tolist(),
        "diagnose": json.loads(rayfbnn.diagnose(path).to_json()),
        "inputs": np.loadtxt(data, delimiter=",", skiprows=1, usecols=(0, 1)).tolist(),
        "predict": prediction.table["y_mean"].tolist(),
        "compare": comparison.rows["point"].values,
        "report": report.read_text(),
        "verify": rayfbnn.verify(path).ok,
        "refused": [_refused(raw, **wrong) for wrong in ({"place": 11}, {"place": "x"}, {"plaec": 1})],
    }


def _refused(raw: dict[str, Any], **settings: Any) -> str:
    try:
        rayfbnn.RunSpec.from_dict(raw | {"methods": {"point": settings}})
    except ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(answers(Path(sys.argv[1]))))
