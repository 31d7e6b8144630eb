"""Readers of stores of approximations: members, linear outputs, diagnostics, and what they refuse.

Log evidences are those of the targets as they are on file, wherever they are printed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api
from rayfbnn.answers.fit_diagnosis import FitDiagnosis, drifts
from rayfbnn.cli import app
from rayfbnn.draws.fits import fit_summary
from rayfbnn.draws.outputs import outputs_by_case, posterior_of
from rayfbnn.draws.subsets import with_members
from rayfbnn.draws.view import committed
from rayfbnn.errors import StoreError, StoreMismatchError
from rayfbnn.output.facts import cell_text
from rayfbnn.pictures.sampling import draw_objective
from rayfbnn.reduce.importance import pareto_k
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.output.undrawn import leave_undrawn
from tests.support.small import small, write_train
from tests.support.store.fits import SETTINGS, fit_spec
from tests.support.store.standin_store import normal

LINEAR = {
    "network__hidden": [],
    "network__priors": {"io": "1", "bo": "1"},
    "model__noise": "0.5",
    "dtype": "float64",
}


def fitted(folder: Path, method: str, **replaced: Any) -> Store:
    settings = replaced.pop("settings", {})
    spec = fit_spec(folder, method, settings=settings, **replaced)
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return Store.open(folder / "run.zarr")


def test_where_laplace_is_exact_all_importance_weights_are_the_evidence(tmp_path: Path) -> None:
    """p(w, D)/q(w) is p(D) at every w if q is the posterior, as in a linear model with fixed sigmas."""
    store = fitted(tmp_path, "laplace", settings={"steps": 1, "first": 20}, **LINEAR)
    ratio = store.read_stat("log_likelihood") + store.read_stat("log_prior") - store.read_stat("log_q")
    evidence = fit_summary(store).log_evidence
    assert np.abs(ratio - evidence[:, None]).max() < 1e-6  # steps end where the energy falls by 1e-9
    diagnosis = api.diagnose(tmp_path / "run.zarr")
    assert isinstance(diagnosis, FitDiagnosis)
    assert diagnosis.ok, diagnosis.reasons


@pytest.mark.parametrize("method", ["laplace", "bbb", "vep"])
def test_members_are_the_starts_of_best_evidence_with_all_their_draws(tmp_path: Path, method: str) -> None:
    store = fitted(tmp_path, method, settings={"members": 2})
    evidence = fit_summary(store).log_evidence
    best = np.argsort(-evidence)[:2]
    run = with_members(committed(store))
    assert (run.n_chains, run.n_draws) == (1, 140)
    assert set(run.starts()[0]) == set(best)
    whole = store.read_positions()
    expected = np.concatenate([whole[start] for start in sorted(best)])
    assert run.positions().tobytes() == expected.tobytes()
    assert run.positions(draws=slice(60, 80)).tobytes() == expected[60:80].tobytes()


def test_weights_by_evidence_decide_how_many_draws_of_a_start_count(tmp_path: Path) -> None:
    store = fitted(tmp_path, "laplace", settings={"weights": "evidence"})
    summary = fit_summary(store)
    ratios = np.exp(summary.log_evidence - summary.log_evidence.max())
    expected = np.floor(70 * ratios + 1e-9).astype(int)
    starts = with_members(committed(store)).starts()[0]
    assert [int((starts == start).sum()) for start in range(3)] == expected.tolist()


def test_outputs_of_laplace_are_linear_about_the_mode_of_each_draw(tmp_path: Path) -> None:
    """The outputs are f(mode) + J (w - mode), with the Jacobian by central differences."""
    store = fitted(tmp_path, "laplace")
    run = committed(store)
    posterior, inputs = posterior_of(run), np.array([[0.3, -1.0], [1.5, 0.2]])
    modes = fit_summary(store).state["position"]
    outputs = outputs_by_case(run, inputs, memory_bytes=1e8)[:, 0]  # (n_cases, n_chains, n_draws)
    h = 1e-5
    for start, mode in enumerate(modes):
        steps = h * np.eye(len(mode))
        high, low = (posterior.outputs(mode + sign * steps, inputs)[..., 0] for sign in (1, -1))
        jacobian = (high - low) / (2 * h)  # (n_parameters, n_cases)
        moved = store.read_positions()[start] - mode
        expected = posterior.outputs(mode[None], inputs)[0, :, 0][:, None] + (moved @ jacobian).T
        assert np.abs(outputs[:, start] - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_draws_that_are_no_networks_are_not_exported(tmp_path: Path) -> None:
    fitted(tmp_path, "laplace")
    with pytest.raises(StoreError, match="linear about the modes"):
        api.export(tmp_path / "run.zarr", out=tmp_path / "run.npz")


@pytest.mark.parametrize(
    "method", [name if name == "laplace" else pytest.param(name, marks=pytest.mark.long) for name in SETTINGS]
)
def test_every_reader_reads_every_method(tmp_path: Path, method: str) -> None:
    fitted(tmp_path, method)
    path = tmp_path / "run.zarr"
    prediction = api.predict(path, data=tmp_path / "train.csv")
    assert math.isfinite(prediction.summary["log_probability"]) and prediction.verdict is None
    assert f"Method: {method}" in str(api.show(path))
    assert api.status(path).complete
    assert api.open(path)["posterior"].sizes["draw"] == 70
    assert f'"pareto_k": {"null" if method == "map" else ""}' in api.diagnose(path).to_json()


@pytest.mark.long
@pytest.mark.parametrize("method", ["laplace", "bbb", "vep", "map"])
def test_a_report_and_pictures_of_a_fit(tmp_path: Path, method: str) -> None:
    fitted(tmp_path, method)
    text = api.report(tmp_path / "run.zarr", out=tmp_path / "run.html", progress=False).read_text()
    assert "independent draws of an approximation" in text and f"--method {method}" in text
    assert "pareto_k" in text and 'aria-label="The objective of each start by step"' in text
    pictures = api.plot(tmp_path / "run.zarr", out=tmp_path / "plots", data=tmp_path / "train.csv")
    assert [picture.name for picture in pictures] == ["objective.png", "bands.png", "predicted.png"]


def test_draws_of_an_approximation_are_neither_checked_nor_pooled(tmp_path: Path) -> None:
    fitted(tmp_path, "map", settings={"draws": 1, "steps": 1})
    raw = small()
    raw["data"]["train"] = str(tmp_path / "train.csv")
    api.prior(RunSpec.from_dict(raw), tmp_path / "prior.zarr", draws=3)
    api.sample(raw, tmp_path / "chains.zarr", set=["seed=8"], workers=0, progress=False)
    with pytest.raises(StoreMismatchError, match="compare"):
        api.predict([tmp_path / "run.zarr", tmp_path / "chains.zarr"], data=tmp_path / "train.csv")
    exact = tmp_path / "exact.zarr"
    api.reject(raw, exact, draws=2, set=["model.noise=3"], progress=False)
    with pytest.raises(StoreMismatchError, match="rayfbnn compare"):
        api.check(tmp_path / "run.zarr", exact)


def test_a_diagnosis_that_is_not_ok_has_exit_code_3(tmp_path: Path) -> None:
    fitted(tmp_path, "map", settings={"draws": 1, "steps": 1})
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path / "run.zarr")])
    assert result.exit_code == 3
    assert "single networks have no spread" in result.output


def test_sghmc_is_a_run_with_phases_of_its_own(tmp_path: Path) -> None:
    write_train(tmp_path)
    step = {"op": "sghmc", "steps": 2, "batch": 4, "stepsize": 0.1, "friction": 1.0}
    raw = small() | {"methods": {"sghmc": {"phase": [{"iterations": 6, "operations": [step]}]}}}
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    api.sample(spec, tmp_path / "run.zarr", method="sghmc", workers=0, progress=False)
    store = Store.open(tmp_path / "run.zarr")
    assert (store.kind, store.spec.method, store.committed_draws) == ("mcmc", "sghmc", 6)
    api.sample_or_resume(spec, tmp_path / "run.zarr", method="sghmc", workers=0, progress=False)
    assert Store.open(tmp_path / "run.zarr").committed_draws == 6


def test_pareto_k_is_that_of_known_weights() -> None:
    """Weights u**-k of uniform u have a Pareto tail of shape k; standard error about 0.06 at 20,000 draws."""
    streams = Streams(1, np.zeros(1, dtype=np.uint64))
    uniform = streams.uniform(Purpose.TARGET_VALUE, (20_000,))[0]
    for k in (0.2, 0.5, 1.0):
        assert abs(pareto_k(-k * np.log(uniform)) - k) < 0.25  # four standard errors
    assert pareto_k(-1e5 * uniform) == math.inf or pareto_k(1e6 * uniform) == math.inf
    assert math.isnan(pareto_k(np.array([0.0, np.nan, 1.0])))


def test_a_drift_is_the_change_of_a_line_over_the_last_tenth() -> None:
    line = np.arange(1000.0)[None] * 0.5
    change, error = drifts(np.concatenate([line, np.where(np.arange(1000) < 500, line, np.nan)]))
    assert change == pytest.approx([99 * 0.5, 49 * 0.5]) and error == pytest.approx([0, 0], abs=1e-9)


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
    printed = [line.split()[2] for line in str(diagnosis).splitlines()[1:3]]
    assert printed == [cell_text(exact)] * 2
    assert cell_text(diagnosis.starts["log_evidence"][0]) in diagnosis._repr_html_()


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
