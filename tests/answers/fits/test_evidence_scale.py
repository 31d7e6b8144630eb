"""Log evidences are those of the targets as they are on file, wherever they are printed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import rayfbnn
from rayfbnn.answers.fit_diagnosis import FitDiagnosis
from rayfbnn.describe.verb_results import diagnosis_text
from rayfbnn.draws.view import committed
from rayfbnn.numerals import plain
from rayfbnn.output import tables
from rayfbnn.pictures.sampling import draw_objective
from rayfbnn.store.store import Store
from tests.support.output.undrawn import leave_undrawn
from tests.support.store.standin_store import normal

N_CASES = 6
NAMES = ["y1", "y2"]


def linear(folder: Path, n_targets: int, standardize: list[str]) -> dict[str, Any]:
    """A linear model of one input with noise 1, in whose tables targets are about 100 with sd 20."""
    table = normal(4, (N_CASES, 1 + n_targets)) * [1, *[20] * n_targets] + [0, *[100] * n_targets]
    for name in ("train.csv", "test.csv"):
        header = ",".join(["x", *NAMES[:n_targets]])
        np.savetxt(folder / name, table, delimiter=",", header=header, comments="")
    return {
        "chains": 4,
        "chains_per_batch": 4,
        "data": {
            "train": str(folder / "train.csv"),
            "inputs": ["x"],
            "targets": NAMES[:n_targets],
            "standardize": standardize,
        },
        "model": {"kind": "real", "noise": "1"},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "phase": [
            {
                "iterations": 8,
                "operations": [{"op": "heatbath"}, {"op": "hybrid", "steps": 3, "stepsize": 0.3}],
            }
        ],
        "methods": {
            "laplace": {"starts": 2, "draws": 10, "precisions": "fixed"},
            "bbb": {"starts": 2, "draws": 10, "steps": 20, "precisions": "fixed"},
        },
    }


def exact_log_evidence(data: Any) -> float:
    """The log density of all targets on file: a Gaussian for each target, with weights integrated out."""
    basis = np.column_stack([data.standardized_inputs, np.ones(data.n_cases)])
    covariance = basis @ basis.T + np.eye(data.n_cases)  # on the scale of the network
    return math.fsum(
        multivariate_normal.logpdf(values, np.full(data.n_cases, center), scale**2 * covariance)
        for values, center, scale in zip(data.targets.T, data.target_center, data.target_scale, strict=True)
    )


@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("standardize", [[], ["targets"], ["inputs", "targets"]], ids="-".join)
def test_compare_and_diagnose_give_the_exact_number_for_targets_on_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_targets: int, standardize: list[str]
) -> None:
    leave_undrawn(monkeypatch)
    spec = linear(tmp_path, n_targets, standardize)
    options = {"data": tmp_path / "test.csv", "workers": 0, "progress": False}
    compared = rayfbnn.compare(spec, tmp_path / "out", methods="hmc,laplace", **options)
    path = tmp_path / "out" / "laplace.zarr"
    exact = exact_log_evidence(Store.open(path).data)
    assert compared.rows["laplace"].values["log_evidence"] == pytest.approx(exact, abs=1e-6)
    diagnosis = rayfbnn.diagnose(path)
    assert isinstance(diagnosis, FitDiagnosis)
    assert diagnosis.starts["log_evidence"].tolist() == pytest.approx([exact, exact], abs=1e-6)
    printed = [line.split()[2] for line in diagnosis_text(diagnosis).splitlines()[1:3]]
    assert printed == [plain(exact, 4)] * 2
    assert tables.cell_text(diagnosis.starts["log_evidence"][0]) in diagnosis._repr_html_()


def test_the_bound_of_bbb_is_drawn_on_the_scale_of_its_table(tmp_path: Path) -> None:
    spec = linear(tmp_path, 2, ["targets"])
    rayfbnn.sample(spec, tmp_path / "bbb.zarr", method="bbb", workers=0, progress=False)
    store = Store.open(tmp_path / "bbb.zarr")
    axis = pytest.importorskip("matplotlib.figure").Figure().subplots()
    draw_objective(axis, committed(store))
    diagnosis = rayfbnn.diagnose(tmp_path / "bbb.zarr")
    assert isinstance(diagnosis, FitDiagnosis)
    drawn = [line.get_ydata()[-1] for line in axis.lines]
    # The bound is estimated from few draws at each step; the scales are 32 nats apart.
    assert drawn == pytest.approx(diagnosis.starts["log_evidence"].tolist(), abs=10)
    assert store.data.log_scale > 30
