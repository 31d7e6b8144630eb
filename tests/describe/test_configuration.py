"""The text of `show`: its statements about priors and costs agree with the run.

`show` compares new cases with the training cases, and remarks on columns that may be read wrongly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.api import show
from rayfbnn.data import read_dataset, read_training
from rayfbnn.describe.configuration import describe, sigma_range
from rayfbnn.describe.data import remarks
from rayfbnn.describe.schedule import device_kernels
from rayfbnn.errors import ConfigError
from rayfbnn.kernels import choose
from rayfbnn.kernels.cpu import compiled_module as cpu
from rayfbnn.kernels.cuda.advance import GRAPHS, LAUNCHES
from rayfbnn.spec import RunSpec
from tests.support.data.tables import FULL, mixed_table, table_keys
from tests.support.small import make_store, small_spec

ROBOT_ARM = Path(__file__).parents[2] / "examples" / "robot_arm" / "hybrid.toml"


def robot_arm(*overrides: str) -> str:
    return describe(RunSpec.from_toml(ROBOT_ARM, overrides))


def test_groups_priors_and_the_number_of_parameters_are_there() -> None:
    text = robot_arm()
    assert "82 parameters" in text
    for words in ("inputs to hidden layer 0", "2 x 16 = 32", "hidden layer 0 to outputs", "16 x 2 = 32"):
        assert words in text
    assert '"x1:0.2": width 1, mean precision 16 (scaled for 16 source units)' in text


def test_gradient_evaluations_are_those_of_the_schedule() -> None:
    text = robot_arm("phase[0].iterations=3", "phase[3].iterations=7", "chains=5")
    per_chain = 3 * 20 * 64 + 20 * 20 * 64 + 30 * 4000 + 7 * 4000
    assert f"per chain: {per_chain:,} gradient evaluations" in text
    assert f"in all:    {5 * per_chain:,} gradient evaluations, 35 draws kept" in text


def test_programs_get_the_configuration_the_network_and_the_priors(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    for what in (ROBOT_ARM, store.path):
        result = CliRunner().invoke(cli.app, ["show", str(what), "--json"])
        numbers, text = json.loads(result.stdout), show(what)
        spec = RunSpec.from_dict(numbers["configuration"])
        assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
        assert numbers["text"].split("\n\n")[0] == text.split("\n\n")[0]  # a forecast differs each time
        assert numbers["network"]["parameters"] == spec.network.n_parameters
        assert set(numbers["priors"]) == {*numbers["network"]["groups"], "noise"}
    assert numbers["store"] == {"path": str(store.path), "kind": "mcmc", "chains": store.n_chains, "draws": 0}
    arm = json.loads(show(ROBOT_ARM).to_json())
    assert arm["priors"]["ho0"]["mean_precision"] == 16 and arm["priors"]["ho0"]["alphas"] == [
        0.2,
        None,
        None,
    ]
    assert arm["network"]["groups"]["ih0"] == {"shape": [2, 16], "size": 32}


@pytest.mark.parametrize(("alpha", "mean"), [(0.2, 16.0), (0.5, 400.0), (3.0, 1.0), (100.0, 0.01)])
def test_the_range_of_sigma_is_that_of_the_gamma_prior(alpha: float, mean: float) -> None:
    precision = scipy.stats.gamma(alpha / 2, scale=mean / (alpha / 2))
    low, high = sigma_range(alpha, mean)
    assert float(low.replace(",", "")) == pytest.approx(precision.ppf(0.95) ** -0.5, rel=1e-2)
    assert float(high.replace(",", "")) == pytest.approx(precision.ppf(0.05) ** -0.5, rel=1e-2)


def test_the_range_of_sigma_goes_on_where_floats_end() -> None:
    # At shape a = 0.0005 the 5 % point x has log x = (log 0.05 + log Gamma(1 + a)) / a = -5992.0, and
    # log10 sigma = (log a - log x) / (2 log 10) = 1299.505.
    low, high = sigma_range(0.001, 1.0)
    assert high == "3.20e+1299"
    assert float(low) < 1e30


def test_levels_of_a_prior_are_spelled_out() -> None:
    text = robot_arm("network.priors.ih0=1:0.2:0.5:4", "model.noise=0.1:0.2:3:4")
    assert "sigma of each source unit: alpha 0.5" in text
    assert "each parameter: t distribution with 4 degrees of freedom" in text
    assert "sigma of each target: alpha 3" in text
    assert "each case: t distribution with 4 degrees of freedom" in text
    assert "common sigma fixed at 1" in text


def test_defaults_taken_are_listed_and_settings_given_are_not() -> None:
    defaults = robot_arm().split("Defaults used: ")[1]
    assert "dtype = float32" in defaults
    assert "chains" not in defaults


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ('op="slice-1",stepsize=1,doubling=false', "intervals stepped out to at most 100 stepsizes"),
        ('op="slice-1",stepsize=1,doubling=true', "intervals doubled to at most 64 stepsizes"),
        ('op="metropolis",stepsize=0.1,acceptance="barker"', ", stepsize 0.1, accepted by Barker's rule"),
        ('op="metropolis-1",stepsize=0.1,acceptance="barker"', ", stepsize 0.1, accepted by Barker's rule"),
        ('op="rescale",along="sigmas"', "rescale: scale each sigma and its parameters by one factor"),
        (
            'op="rescale",along="incoming"',
            "rescale: scale everything that leads into a layer by one factor, stepsize 0.3",
        ),
        ('op="sghmc",steps=5,stepsize=0.1,batch=9', "sghmc"),
    ],
)
def test_settings_of_an_operation_are_said_where_they_matter(operation: str, words: str) -> None:
    text = robot_arm(f"phase[3].operations[2]={{{operation}}}")
    assert words in text
    assert ("Barker" in text) == ("barker" in operation)
    assert "steps: plain NumPy" not in text and "fourth-order" not in text  # the integrators of hybrid


@pytest.mark.parametrize(
    ("override", "note"),
    [
        ('phase[3].operations=[{op="heatbath"},{op="hybrid",steps=5,stepsize=0.1}]', "no sample-sigmas"),
        ('phase[3].operations=[{op="sample-sigmas"},{op="hybrid",steps=5,stepsize=0.1}]', "no heatbath"),
        ("phase[3].operations[1].decay=0.9", "no negate"),
        ('phase[3].operations[2]={op="dynamic",steps=5,stepsize=0.1}', "draws are biased"),
        (
            'phase[3].operations[2]={op="sghmc",steps=5,stepsize=0.1,batch=9}',
            "sghmc never rejects: draws are approximate",
        ),
    ],
)
def test_what_is_seldom_meant_is_noted(override: str, note: str) -> None:
    assert note in robot_arm(override)
    assert "note:" not in robot_arm()


MARGINAL = 'phase[3].operations[2]={op="hybrid-marginal",over=["outputs","precisions"],steps=5,stepsize=0.1}'
SOFTMAX = 'network.hidden=[{units=16,activation="softmax"}]'


def kernel_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if " steps" in line and "  leapfrog" in line]


@pytest.mark.skipif(not cpu.instruction_sets(), reason="installed without a C++ compiler")
def test_a_store_shows_the_kernel_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(choose.VARIABLE, "plain")
    plain = make_store(tmp_path / "plain.zarr", small_spec(tmp_path))
    monkeypatch.delenv(choose.VARIABLE)
    assert kernel_lines(show(plain.path)) == ["leapfrog steps: plain NumPy (RAYFBNN_KERNELS is plain)"]
    best = f"compiled, {cpu.instruction_sets()[0]}"
    assert kernel_lines(show(plain.spec)) == [f"leapfrog steps: {best}"]
    compiled = make_store(tmp_path / "compiled.zarr", small_spec(tmp_path))
    monkeypatch.setattr(cpu, "_cpu", None)
    (line,) = kernel_lines(show(compiled.path))
    assert line.startswith(
        f"leapfrog steps: {best}; not available on this machine, which would use plain NumPy (no compiled"
    )


@pytest.mark.parametrize(
    "wanted, line, words",
    [
        ("", "CUDA, gradients of large networks as CUDA graphs", ", full gradients as CUDA graphs"),
        ("launches", "CUDA", ""),
    ],
)
def test_a_store_shows_whether_it_was_begun_with_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, line: str, words: str
) -> None:
    monkeypatch.setenv(choose.VARIABLE, wanted)
    spec = small_spec(tmp_path, device="gpu", network__hidden=[{"units": 100, "activation": "tanh"}])
    store = make_store(tmp_path / "run.zarr", spec)
    monkeypatch.delenv(choose.VARIABLE)
    monkeypatch.setattr("rayfbnn.describe.schedule.gpu_is_available", lambda: False)
    assert kernel_lines(show(store.path)) == [f"leapfrog steps: {line}"]
    name, _ = device_kernels(spec, store.data, [], store.root.kernel, 1_000)
    assert name.startswith(f"CUDA, products over all chains, gradients in TF32{words} (")


def test_what_runs_hybrid_marginal_is_said() -> None:
    lines = kernel_lines(robot_arm(MARGINAL))
    own = lines[0].removeprefix("leapfrog steps: ")
    assert lines[1:] == [f"leapfrog steps of hybrid-marginal over outputs and precisions: {own}"]
    for integrator in ("two-stage", "fourth-order"):
        text = robot_arm(f'phase[3].operations[2].integrator="{integrator}"')
        assert f"4000 {integrator} steps, " in text
        assert f"  {integrator} steps: plain NumPy" in text


def test_partial_gradients_with_precisions_integrated_out_are_said(tmp_path: Path) -> None:
    operation = MARGINAL.replace('"outputs","precisions"', '"precisions"').replace(
        "steps=5", "steps=5,partitions=7"
    )
    assert (
        "hybrid-marginal over precisions: trajectories of 5 leapfrog steps, stepsize 0.1,"
        " 7 partial gradients per step"
    ) in robot_arm(operation)
    with pytest.raises(ConfigError, match='partitions: must be 1 with over = "outputs"'):
        robot_arm(MARGINAL.replace("steps=5", "steps=5,partitions=7"))
    update = {"op": "hybrid-marginal", "over": ["precisions"], "steps": 2, "stepsize": 0.1, "partitions": 13}
    phase = [{"iterations": 1, "operations": [{"op": "heatbath"}, update]}]
    with pytest.raises(
        ConfigError,
        match=r"operations\[1\].partitions: must be at most 12, the number of training cases, got 13",
    ):
        small_spec(tmp_path, phase=phase).check_data(12)


@pytest.mark.parametrize(
    ("more", "names"), [((SOFTMAX,), ["plain CuPy (softmax layers)"] * 2), ((), [GRAPHS, LAUNCHES])]
)
def test_a_device_is_said_to_run_what_its_kernels_cover(
    more: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfbnn.describe.schedule.gpu_is_available", lambda: False)
    lines = kernel_lines(robot_arm('device="gpu"', MARGINAL, *more))
    assert [line.split(": ")[1] for line in lines] == names


def test_a_device_is_said_to_run_what_its_memory_holds(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, device="gpu")
    over = ("outputs", "precisions")
    name, marginal = device_kernels(spec, read_dataset(spec), [over], LAUNCHES, 100_000)
    assert name == "CUDA, whole trajectories, a warp a chain"
    assert marginal == {over: "CUDA, whole trajectories, a block a chain"}
    name, marginal = device_kernels(spec, read_dataset(spec), [over], LAUNCHES, 1_000)
    assert name == "CUDA, whole trajectories, a warp a chain"
    assert marginal[over].startswith("CUDA, products over all chains (")
    assert "KiB of shared memory" in marginal[over]


def found(table: pd.DataFrame, kind: str = "survival", **data: str) -> list[str]:
    spec = RunSpec.from_dict({"data": {"targets": ["time"], **data}, "model": {"kind": kind}})
    return remarks(*read_training(spec, table))


TABLE = pd.DataFrame({"age": np.arange(20.0), "time": 1 + np.arange(20.0), "Died": [0, 1] * 10})


def test_a_column_that_may_mark_censored_times_is_remarked_on() -> None:
    (remark,) = found(TABLE)
    assert 'data.censored = "Died"' in remark and 'data.event = "Died"' in remark
    assert found(TABLE, event="Died") == found(TABLE, censored="Died") == found(TABLE, "real") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"Died": np.arange(20) % 3},
        {"Died": None, "sex": [0, 1] * 10},
        {"time": [-1.0, *TABLE["time"][1:]]},
    ],
    ids=["more values", "another name", "signed times"],
)
def test_other_columns_and_times_with_signs_are_not(changes: dict[str, Any]) -> None:
    assert found(TABLE.assign(**changes).dropna(axis=1)) == []


def test_a_column_without_a_name_is_called_that() -> None:
    spec = {"data": {"targets": ["y"]}, "model": {"kind": "real"}}
    table = pd.DataFrame({"": np.arange(9), "x": np.sin(np.arange(9.0)), "y": np.cos(np.arange(9.0))})
    assert "a column without a name" in rayfbnn.show(spec, data=table)


HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration in run.toml, and its training cases."""
    mixed_table().to_csv(tmp_path / "train.csv", index=False)
    keys = {**FULL, "train": str(tmp_path / "train.csv")}
    spec = rayfbnn.RunSpec.from_dict(table_keys(**keys))
    (tmp_path / "run.toml").write_text(spec.to_toml())
    return tmp_path


def compared(folder: Path, table: pd.DataFrame, *options: str) -> str:
    """The words of `show` about new cases, in one line."""
    table.to_csv(folder / "new cases.csv", index=False)
    arguments = ["show", str(folder / "run.toml"), "--data", str(folder / "new cases.csv"), *options]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    parts = [" ".join(part.split()) for part in result.stdout.split("\n\n")]  # lines may be folded
    assert any(part.startswith("Data: ") and "train.csv, 12 cases" in part for part in parts)
    return next(part for part in parts if part.startswith("New cases: "))


def test_cases_like_the_training_cases_can_be_predicted(folder: Path) -> None:
    text = compared(folder, mixed_table())
    assert "new cases.csv, 12 cases, with targets; they can all be predicted" in text
    assert "remark: column bmi: missing in 3 of 12 rows, and in 3 of 12 training cases" in text
    assert "without targets; they can all be" in compared(folder, mixed_table().drop(columns="y"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown levels": (
        {"color": ["pink", "teal", "pink"] + ["red"] * 9},
        "refused: column color: 3 of 12 rows have levels that no training case has: 'pink' (2), 'teal' (1)",
    ),
    "an unknown place": ({"size": "XL"}, "refused: column size: 12 of 12 rows have levels that no training"),
    "missing values": ({"age": [np.nan] + [30.0] * 11}, "refused: column age: missing in 1 of 12 rows"),
    "numbers in dress": (
        {"age": "30 years"},
        "refused: row 1, column age: not a finite number, got '30 years'",
    ),
    "far values": (
        {"age": [30.0] * 10 + [60.0, 1e9]},
        "remark: column age: 2 of 12 rows are far outside the training range, 20 to 32; row 12 has 1e+09",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_difference_from_the_training_cases_is_said(folder: Path, name: str) -> None:
    changes, words = WRONG[name]
    text = compared(folder, mixed_table().assign(**changes))
    assert words in text
    assert ("cannot be predicted as they are" in text) == words.startswith("refused")


def test_all_differences_are_said_together(folder: Path) -> None:
    table = mixed_table().assign(**WRONG["unknown levels"][0], **WRONG["far values"][0])
    text = compared(folder, table.drop(columns=["size", "smoker"]))
    assert "refused: columns are missing: smoker, size" in text
    assert "column color: 3 of 12 rows" in text and "column age: 2 of 12 rows" in text


def test_ignored_levels_are_a_remark(folder: Path) -> None:
    table = mixed_table().assign(**WRONG["unknown levels"][0])
    text = compared(folder, table, "--set", "data.unknown=ignore")
    assert "remark: column color: 3 of 12 rows have levels" in text and "they can all be predicted" in text


def test_a_store_compares_new_cases_too(tmp_path: Path) -> None:
    rayfbnn.sample(table_keys(**FULL), tmp_path / "run.zarr", data=mixed_table(), **HERE)
    text = rayfbnn.show(tmp_path / "run.zarr", data=mixed_table().assign(**WRONG["unknown levels"][0]))
    assert "New cases: data, 12 cases" in text and "'pink' (2), 'teal' (1)" in text
    assert "New cases" not in rayfbnn.show(tmp_path / "run.zarr")


def test_data_are_the_training_cases_where_the_configuration_has_no_file() -> None:
    text = rayfbnn.show(table_keys(**FULL), data=mixed_table())
    assert "12 cases" in text and "New cases" not in text
