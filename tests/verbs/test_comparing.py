"""`compare` from a configuration and files to stores, a table and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.data import read_dataset
from rayfbnn.errors import ConfigError
from rayfbnn.run.fitter import Fitter
from rayfbnn.spec.text import to_toml
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.store import Store
from rayfbnn.verbs.sampling import new_fit
from tests.support.output.undrawn import leave_undrawn
from tests.support.store.standin_store import normal

SPEC: dict[str, Any] = {
    "chains": 4,
    "chains_per_batch": 4,
    "data": {"train": "train.csv", "inputs": ["x"], "targets": ["y"]},
    "model": {"kind": "real", "noise": "1"},
    "network": {
        "hidden": [{"units": 2, "activation": "tanh"}],
        "priors": dict.fromkeys(("ih0", "bh0", "ho0", "bo"), "1"),
    },
    "phase": [
        {"iterations": 12, "operations": [{"op": "heatbath"}, {"op": "hybrid", "steps": 5, "stepsize": 0.3}]}
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    leave_undrawn(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for seed, name in ((1, "train.csv"), (2, "test.csv")):
        np.savetxt(name, normal(seed, (5, 2)), delimiter=",", header="x,y", comments="")
    (tmp_path / "run.toml").write_text(rayfbnn.RunSpec.from_dict(SPEC).to_toml())
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(
        cli.app, ["compare", "run.toml", "out", "--workers", "0", "--no-progress", *arguments]
    )


def test_a_reference_that_does_not_pass_diagnose_gives_exit_code_3(folder: Path) -> None:
    """Twelve draws of four chains are far too few; the table is printed all the same."""
    result = run("--data", "test.csv", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert not document["ok"] and document["reasons"]
    assert [row["method"] for row in document["rows"]] == ["hmc", "halves of hmc"]
    own, floor = document["rows"]
    assert own["w2"] == 0 < floor["w2"]
    assert own["gradients"] == 4 * 12 * 5 and own["seconds"] > 0
    summary = rayfbnn.predict(folder / "out" / "hmc.zarr", data="test.csv").summary
    assert own["log_probability"] == pytest.approx(summary["log_probability"])
    assert own["squared_error"] == pytest.approx(summary["squared_error"])
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "compare.csv",
        "compare.png",
        "hmc.zarr",
    ]
    assert (folder / "out" / "compare.csv").read_text().startswith("method,log_probability,")


def test_a_reference_that_passes_gives_exit_code_0(folder: Path) -> None:
    """Exact draws by rejection are beyond doubt, and one chain of them is split between its draws."""
    rayfbnn.reject("run.toml", "exact.zarr", draws=200, progress=False)
    result = run("--data", "test.csv", "--exact", "exact.zarr", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["reference"], document["ok"]) == ("exact.zarr", True)
    own, floor = document["rows"]
    assert own["w2"] > 0 and own["log_probability_difference"] != 0
    assert floor["method"] == "halves of exact.zarr"
    assert floor["seconds"] == Store.open("exact.zarr").seconds > 0 and "gradients" not in floor


def test_a_reference_from_elsewhere_has_its_cost_in_the_last_row(folder: Path) -> None:
    rayfbnn.sample("run.toml", "long.zarr", workers=0, progress=False)
    options = {"data": "test.csv", "exact": "long.zarr", "methods": "map", "workers": 0, "progress": False}
    floor = rayfbnn.compare("run.toml", "out", set=["methods.map.steps=5"], **options).floor
    assert floor.values["seconds"] == Store.open("long.zarr").seconds
    assert floor.values["gradients"] == 4 * 12 * 5


def test_a_complete_store_is_used_as_it_is(folder: Path) -> None:
    first, second = (
        rayfbnn.compare("run.toml", "out", data="test.csv", workers=0, progress=False) for _ in range(2)
    )
    assert first.to_json() == second.to_json()
    text = first.to_text()
    assert "hmc" in text and "may not have converged" in text


def test_a_comparison_that_was_killed_counts_the_seconds_of_all_its_blocks(folder: Path) -> None:
    """A kill loses the block under way and nothing else, so that a driver that just ends is like it."""
    spec = rayfbnn.RunSpec.from_toml(folder / "run.toml").for_method("map")
    (folder / "out").mkdir()
    place = place_of(folder / "out" / "map.zarr")
    store = new_fit(place, spec, read_dataset(spec))
    before = 0.0
    for progress in Fitter(store).run_block(0):
        before = progress.seconds
    at_kill = Store.open(place).seconds
    assert at_kill is not None and 0 < at_kill <= before
    options = {"data": "test.csv", "methods": "hmc,map", "workers": 0, "progress": False}
    values = rayfbnn.compare("run.toml", "out", **options).rows["map"].values
    assert values["seconds"] == Store.open(place).seconds > at_kill


@pytest.mark.parametrize(
    ("stepsize", "others", "is_hot"), [(0.1, [], False), (1.8, [], True), (1.8, [{"op": "heatbath"}], False)]
)
def test_momentum_that_is_far_too_hot_gives_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, stepsize: float, others: list[Any], is_hot: bool
) -> None:
    operation = {"op": "sghmc", "steps": 30, "stepsize": stepsize, "friction": 0.3}
    phase = {"iterations": 8, "operations": [operation, *others]}
    spec = {**SPEC, "chains": 40, "chains_per_batch": 20, "methods": {"sghmc": {"phase": [phase]}}}
    (folder / "run.toml").write_text(rayfbnn.RunSpec.from_dict(spec).to_toml())
    warning = "sghmc.zarr: the mean square of the momentum of sghmc is"
    run("--data", "test.csv", "--methods", "hmc,sghmc")
    assert (warning in caplog.text) == is_hot
    caplog.clear()
    rayfbnn.diagnose(folder / "out" / "sghmc.zarr")
    assert (warning in caplog.text) == is_hot


def test_a_plain_configuration_is_enough_for_every_method(folder: Path) -> None:
    """Sghmc tunes its stepsize by the trajectories of hybrid and then keeps to the momentum it has."""
    spec = {key: value for key, value in SPEC.items() if key != "phase"} | {"iterations": 40}
    (folder / "run.toml").write_text(to_toml(spec))
    short = ("laplace.starts=2", "bbb.steps=30", "bbb.starts=2", "vep.sweeps=3", "vep.starts=2")
    settings = [word for key in short for word in ("--set", f"methods.{key}")]
    names = ["hmc", "laplace", "bbb", "vep", "sghmc"]
    result = run("--data", "test.csv", "--methods", ",".join(names), "--json", *settings)
    assert result.exit_code in (0, 3), result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["method"] for row in rows] == [*names, "halves of hmc"]
    store = Store.open(folder / "out" / "sghmc.zarr")
    assert store.committed_draws == 40
    (settings_found,) = store.tuning.latest()[1].values()
    assert settings_found.stepsize > 0 and settings_found.steps == 128
    text = str(rayfbnn.show(folder / "out" / "sghmc.zarr"))
    assert "automatic settings are found here" in text and "sghmc never rejects" in text


def test_every_method_is_fitted_and_compared(folder: Path) -> None:
    """Batches of sghmc count as shares of gradients; only approximations have a log evidence."""
    operation = {"op": "sghmc", "steps": 4, "stepsize": 0.1, "batch": 2}
    methods = {
        "sghmc": {"phase": [{"iterations": 8, "operations": [operation]}]},
        "laplace": {"starts": 3, "members": 1, "draws": 20, "precisions": "fixed"},
        "bbb": {"starts": 2, "draws": 20, "steps": 30, "samples": 4, "precisions": "fixed"},
        "vep": {"starts": 2, "draws": 20, "sweeps": 3, "precisions": "fixed"},
        "map": {"steps": 30, "precisions": "fixed"},
    }
    (folder / "run.toml").write_text(rayfbnn.RunSpec.from_dict({**SPEC, "methods": methods}).to_toml())
    names = ["hmc", *methods]
    result = run("--data", "test.csv", "--methods", ",".join(names), "--json")
    assert result.exit_code == 3, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["method"] for row in rows] == [*names, "halves of hmc"]
    of = {row["method"]: row for row in rows}
    assert all(of[name]["w2"] > 0 and of[name]["seconds"] > 0 for name in methods)
    assert of["sghmc"]["gradients"] == pytest.approx(4 * 8 * 4 * 2 / 5)
    assert of["bbb"]["gradients"] == 2 * 30 * 4
    assert of["map"]["gradients"] == 1 + 30
    assert of["vep"]["gradients"] == 2 * 3
    assert of["laplace"]["gradients"] > 3 * 2 * 7  # those of the Hessian's differences
    assert of["map"]["sd_ratio"] == 0 < of["laplace"]["sd_ratio"]
    assert "log_evidence" in of["laplace"] and "log_evidence" not in of["hmc"]
    for name in names:
        summary = rayfbnn.predict(folder / "out" / f"{name}.zarr", data="test.csv").summary
        assert of[name]["log_probability"] == pytest.approx(summary["log_probability"]), name


def test_a_method_that_fits_nothing_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After one tiny step a network is at its start, which is worse than the mean of the targets."""
    lines = [f"{x},{2 * x + 1}" for x in range(-4, 5)]
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text("\n".join(["x,y", *lines]) + "\n")
    settings = ["phase[0].iterations=60", "methods.map.steps=1", "methods.map.rate=1e-9"]
    options = {"data": "test.csv", "workers": 0, "progress": False}
    rayfbnn.compare("run.toml", "out", methods="hmc,map", set=settings, **options)
    named = [message for message in caplog.messages if "no better than without the inputs" in message]
    assert [message.split()[0] for message in named] == ["map"]


def test_log_evidences_are_on_one_scale(folder: Path) -> None:
    """For a linear model laplace's is exact, and that by annealing agrees, with standardised targets.

    The targets are multiplied by 50, so that a density on the network's scale would be 19.6 nats off.
    """
    table = np.loadtxt("train.csv", delimiter=",", skiprows=1) * (1, 50)
    np.savetxt("train.csv", table, delimiter=",", header="x,y", comments="")
    spec = {
        **SPEC,
        "data": {**SPEC["data"], "standardize": ["targets"]},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "methods": {"laplace": {"starts": 2, "draws": 10, "precisions": "fixed"}},
    }
    options = {"data": "test.csv", "methods": "hmc,laplace", "workers": 0, "progress": False}
    first, second = (rayfbnn.compare(spec, "out", annealing_runs=40, **options) for _ in range(2))
    annealed, exact = (first.rows[name].values for name in ("hmc", "laplace"))
    assert 0 < annealed["log_evidence_se"] < 0.1
    assert abs(annealed["log_evidence"] - exact["log_evidence"]) < 4 * annealed["log_evidence_se"]
    assert second.rows["hmc"].values == annealed  # from the folder
    own = rayfbnn.predict("out/laplace.zarr", data="train.csv").summary["log_probability"]
    assert exact["log_evidence"] < 5 * own  # a prior's predictions are worse than the posterior's


def test_runs_of_annealing_that_are_worth_few_are_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rayfbnn.compare("run.toml", "out", data="test.csv", annealing_runs=3, workers=0, progress=False)
    assert "3 runs are worth" in caplog.text
    (folder / "out" / "evidence.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"evidence\.json: not a file that `compare` wrote"):
        rayfbnn.compare("run.toml", "out", data="test.csv", annealing_runs=3, workers=0, progress=False)


SGHMC = (
    'methods.sghmc={{phase=[{{iterations=3, operations=[{{op="sghmc", steps=2, batch={batch}, stepsize=0.1,'
    " friction=1.0}}]}}]}}"
)
_BATCH = r"methods\.sghmc\.phase\[0\]\.operations\[0\]\.batch: "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"annealing_runs": 1}, "annealing_runs: a standard error needs at least 2 runs"),
        ({"annealing_runs": -5}, "annealing_runs: .* got -5"),
        ({"annealing_runs": 9, "set": ["temperature=2"]}, "annealing_runs: .* got temperature = 2"),
        ({"methods": "hmc,magic"}, '"magic" is no method; the methods are hmc, sghmc, laplace'),
        ({"methods": "hmc,sghmc", "set": [SGHMC.format(batch=99)]}, _BATCH + "must be at most 5"),
        ({"methods": "hmc,sghmc", "set": [SGHMC.format(batch=0)]}, _BATCH + "must be at least 1"),
        ({"methods": "hmc,hmc"}, "hmc is there twice"),
        ({"methods": []}, "methods: needs hmc"),
        ({"out": "train.csv"}, "out: train.csv is a file"),
        ({"out": "nowhere/out"}, "there is no folder"),
        ({"data": "inputs.csv"}, "data: inputs.csv has no targets"),
        ({"decisive": "some"}, "decisive: must be"),
    ],
)
def test_bad_arguments_create_nothing(folder: Path, arguments: dict[str, Any], message: str) -> None:
    (folder / "inputs.csv").write_text("x\n1\n2\n")
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        rayfbnn.compare("run.toml", **{"out": "out", "data": "test.csv"} | arguments)
    assert sorted(folder.rglob("*")) == before


COUNTS: dict[str, Any] = {
    **SPEC,
    "model": {"kind": "count", "dispersion": "0.7:3"},
    "network": {"hidden": [], "priors": {"io": "0.5", "bo": "1"}},
    "phase": [
        {
            "iterations": 400,
            "operations": [
                {"op": "sample-sigmas"},
                {"op": "heatbath"},
                {"op": "hybrid", "steps": 5, "stepsize": 0.3},
            ],
        }
    ],
}


def counts(**model: Any) -> rayfbnn.RunSpec:
    """The configuration of counts, with tables for it in the folder."""
    for name, values in (("train.csv", [0, 4, 1, 0, 6]), ("test.csv", [1, 0, 9, 2, 3])):
        table = np.column_stack([np.linspace(-1, 1, 5), values])
        np.savetxt(name, table, delimiter=",", header="x,y", comments="")
    return rayfbnn.RunSpec.from_dict({**COUNTS, "model": COUNTS["model"] | model})


def test_chains_of_counts_with_dispersion_agree_with_exact_draws(folder: Path) -> None:
    spec = counts()
    rayfbnn.reject(spec, "exact.zarr", draws=1000, progress=False)
    options: dict[str, Any] = {"data": "test.csv", "exact": "exact.zarr", "workers": 0, "progress": False}
    comparison = rayfbnn.compare(spec, "out", **options)
    own, floor = comparison.rows["hmc"].values, comparison.floor.values
    assert own["w2"] < 2 * floor["w2"]
    assert abs(own["log_probability_difference"]) < 0.01
    rayfbnn.compare(counts(dispersion="0.05"), "nearly Poisson", **options | {"exact": None})
    other = rayfbnn.predict("nearly Poisson/hmc.zarr", data="test.csv").summary
    assert abs(other["log_probability"] - own["log_probability"]) > 0.05


def test_approximations_of_counts_with_a_fixed_dispersion_are_compared(folder: Path) -> None:
    options: dict[str, Any] = {"data": "test.csv", "methods": "hmc,laplace", "workers": 0, "progress": False}
    comparison = rayfbnn.compare(counts(dispersion="0.7"), "out", annealing_runs=20, **options)
    hmc, laplace = (comparison.rows[name].values for name in ("hmc", "laplace"))
    assert abs(hmc["log_probability"] - laplace["log_probability"]) < 0.05
    assert abs(hmc["log_evidence"] - laplace["log_evidence"]) < 0.3 + 3 * hmc["log_evidence_se"]


def test_methods_with_different_dispersions_are_refused(folder: Path) -> None:
    """The default of Markov chains is one that no approximation covers."""
    spec = {key: COUNTS[key] for key in ("data", "chains")} | {"model": {"kind": "count"}}
    counts()
    options: dict[str, Any] = {"data": "test.csv", "methods": "hmc,laplace", "workers": 0, "progress": False}
    words = 'model.dispersion: laplace would have "none", and the reference "0.3:0.5"; write the same'
    with pytest.raises(ConfigError, match=words):
        rayfbnn.compare(spec, "out", **options)
    assert not (folder / "out").exists()
    with pytest.raises(ConfigError, match="a dispersion that varies is not covered"):
        rayfbnn.compare(counts(), "out", **options)
