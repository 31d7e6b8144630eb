"""Runs on tables from memory: sampled, predicted from, resumed, shown.

A store of another format is refused in one line, and nothing in it changes.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api, cli
from rayfbnn.errors import ConfigError, StoreExistsError, StoreFormatError, StoreMismatchError
from rayfbnn.run.running import Loop, RunOptions
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from tests.support.data.tables import FULL, mixed_table, table_keys, table_spec
from tests.support.marks import long_but
from tests.support.small import assert_same_draws, make_store, small, small_spec, write_train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "run.zarr"
    api.sample(table_keys(**FULL), path, data=mixed_table(), workers=0, progress=False)
    return path


def test_a_store_knows_the_encoding_and_the_configuration_as_written(run: Path) -> None:
    store = Store.open(run)
    assert store.spec.data == table_spec(**FULL).data
    assert store.spec.encoding is not None and store.spec.encoding.constant == {"unit": "kg"}
    assert store.data.input_names == store.spec.input_names
    names = api.open(run)["constant_data"]["input"].values.tolist()
    assert names == list(store.spec.input_names)


def test_predictions_are_the_same_from_every_source(run: Path, tmp_path: Path) -> None:
    table = mixed_table()
    table.to_csv(tmp_path / "new.csv", index=False)
    table.to_parquet(tmp_path / "new.parquet")
    expected = api.predict(run, data=table)
    assert expected.summary["cases"] == 12 and "squared_error" in expected.summary
    for source in (tmp_path / "new.csv", tmp_path / "new.parquet", (table.drop(columns="y"), table.y)):
        pd.testing.assert_frame_equal(api.predict(run, data=source).table, expected.table)
    assert "squared_error" not in api.predict(run, data=table.drop(columns="y")).summary


def test_a_resume_needs_no_data_but_compares_what_it_is_given(tmp_path: Path) -> None:
    keys = table_keys(**FULL)
    api.sample(keys, tmp_path / "whole.zarr", data=mixed_table(), workers=0, progress=False)
    keys["phase"][-1]["iterations"] = 4
    path = tmp_path / "run.zarr"
    api.sample(keys, path, data=mixed_table(), workers=0, progress=False)
    with pytest.raises(StoreMismatchError, match="row 4, column age"):
        other = mixed_table()
        other.loc[3, "age"] = 30.5
        api.resume(path, data=other, workers=0, progress=False)
    with pytest.raises(StoreMismatchError, match="data.missing"):
        api.resume(path, spec=table_keys(ordered=FULL["ordered"]), workers=0, progress=False)
    longer = table_keys(**FULL)
    api.resume(path, spec=longer, data=mixed_table(), workers=0, progress=False)
    assert_same_draws(path, tmp_path / "whole.zarr")


def test_a_file_read_as_a_table_gives_the_same_draws(tmp_path: Path) -> None:
    """Numbers in columns that are named are sampled as they were before tables could be anything else."""
    write_train(tmp_path)
    spec = RunSpec.from_dict(small(), base_dir=tmp_path)
    api.sample(spec, tmp_path / "file.zarr", workers=0, progress=False)
    table = pd.read_csv(tmp_path / "train.csv")
    for number, keys in enumerate((small(), small(data__inputs=None), small(data__inputs=["x*"]))):
        path = tmp_path / f"{number}.zarr"
        api.sample(keys, path, data=table, workers=0, progress=False)
        assert_same_draws(path, tmp_path / "file.zarr")


def test_a_store_without_an_encoding_predicts_from_tables(tmp_path: Path) -> None:
    """Stores had none before tables could have anything but numbers."""
    spec = small_spec(tmp_path)
    store = make_store(tmp_path / "run.zarr", spec)
    with store.lock(), Loop(store, RunOptions(workers=0, progress=False)) as loop:
        loop.run(store.spec.total_iterations)
    assert Store.open(store.path).spec.encoding is None
    api.sample(spec, tmp_path / "new.zarr", workers=0, progress=False)
    table = pd.read_csv(tmp_path / "train.csv")
    expected = api.predict(tmp_path / "new.zarr", data=table).table
    for data in (table, (table[["x1", "x2"]].to_numpy(), table.y), tmp_path / "train.csv"):
        pd.testing.assert_frame_equal(api.predict(store.path, data=data).table, expected)


@pytest.mark.parametrize(
    ("labels", "model"),
    [(["other", "setosa", "virginica"], {"kind": "class"}), ([1, 2, 3], {"kind": "class", "classes": 3})],
)
def test_labels_come_back_in_predictions(tmp_path: Path, labels: list[Any], model: dict[str, Any]) -> None:
    table = mixed_table().assign(y=np.array(labels)[np.arange(12)[::-1] % 3])
    path = tmp_path / "run.zarr"
    keys = table_keys(**FULL, standardize=["inputs"]) | {"model": model}
    keys["phase"] = keys["phase"][1:]
    api.sample(keys, path, data=table, workers=0, progress=False)
    predictions = api.predict(path, data=table).table
    p = predictions[[f"p_{label}" for label in labels]]
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert predictions.y_label.tolist() == [name.removeprefix("p_") for name in p.idxmax(axis=1)]
    assert ((predictions.y_label != table.y.astype(str)) == predictions.error_rate).all()
    assert f"labels of y: {labels[0]} (0), {labels[1]} (1), {labels[2]} (2)" in api.show(path)


def test_binary_labels_come_back_in_predictions(tmp_path: Path) -> None:
    keys = table_keys(**FULL, targets=["smoker"], standardize=["inputs"]) | {"model": {"kind": "binary"}}
    keys["phase"] = keys["phase"][1:]
    api.sample(keys, tmp_path / "run.zarr", data=mixed_table(), workers=0, progress=False)
    predictions = api.predict(tmp_path / "run.zarr", data=mixed_table()).table
    assert predictions.columns.tolist() == [
        "smoker_p_True",
        "error_rate",
        "expected_error_rate",
        "smoker_label",
        "log_probability",
    ]
    assert (predictions.smoker_label == np.where(predictions.smoker_p_True > 0.5, "True", "False")).all()


def test_runs_whose_labels_differ_are_not_pooled(tmp_path: Path) -> None:
    for seed, labels in enumerate((["no", "yes"], ["nein", "ja"])):
        table = mixed_table().assign(y=np.array(labels)[np.arange(12) % 2])
        keys = table_keys(**FULL, standardize=["inputs"]) | {"model": {"kind": "binary"}, "seed": seed}
        keys["phase"] = [{"iterations": 2, "operations": [{"op": "heatbath"}]}]
        api.sample(keys, tmp_path / f"{seed}.zarr", data=table, workers=0, progress=False)
    with pytest.raises(StoreMismatchError, match="labels of the targets differ"):
        api.predict([tmp_path / "0.zarr", tmp_path / "1.zarr"], data=mixed_table().drop(columns="y"))


def test_show_lists_inputs_with_their_encoding_and_what_is_left_out(run: Path) -> None:
    for text in (api.show(table_spec(**FULL), data=mixed_table()), api.show(run)):
        for line in (
            "inputs age",
            "input color: 3 levels, an input of 0 or 1 for each: blue, green, red",
            "input size: the place from 0 among the levels S, M, L",
            '"bmi is missing" in 3 of 12 cases',
            "left out, because they are constant: unit (always kg)",
            "left out, because the configuration does not ask for them: id",
        ):
            assert line in text


def test_constant_columns_are_named_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = mixed_table().assign(other=3.0)
    with caplog.at_level(logging.WARNING):
        api.sample(table_spec(**FULL), tmp_path / "run.zarr", data=table, workers=0, progress=False)
    assert [record.getMessage() for record in caplog.records] == [
        "constant columns are left out of the inputs: unit (kg), other (3)"
    ]


def test_verbs_that_read_training_cases_take_them_as_data(tmp_path: Path) -> None:
    keys: dict[str, Any] = {**table_keys(**FULL), "chains": 3}
    keys["network"] = {"hidden": [], "priors": {"io": "0.1", "bo": "0.1"}}
    keys["model"] = {"kind": "real", "noise": "1"}
    keys["phase"] = [{"iterations": 2, "operations": [{"op": "heatbath"}]}]
    table = mixed_table()
    assert api.prior(keys, tmp_path / "prior.zarr", draws=3, data=table).draws == 3
    assert api.reject(keys, tmp_path / "exact.zarr", draws=3, data=table, progress=False).draws == 3
    assert api.evidence(keys, data=table, temperatures=2, progress=False).runs == 3
    assert len(api.predict(tmp_path / "exact.zarr", data=table).table) == 12


def test_weights_of_cases_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sample_weight: .* not the posterior of any data set"):
        api.sample(table_spec(), tmp_path / "run.zarr", data=mixed_table(), sample_weight=np.ones(12))
    assert list(tmp_path.iterdir()) == []


def test_data_are_compared_with_the_training_cases_that_a_store_has(run: Path) -> None:
    assert "New cases: data, 12 cases" in api.show(run, data=mixed_table())


FORMATS = (1, 2, 3, 5)  # the older ones, and the next
ONE = ("STORE", "--workers", "0", "--no-progress")
# Every command that reads a store; the one of another format is named STORE.
READING = {
    "resume": ("resume", *ONE),
    "resume, longer": ("resume", *ONE, "--iterations", "20"),
    "run": ("run", "run.toml", *ONE),
    "status": ("status", "STORE"),
    "predict": ("predict", "STORE", "--data", "train.csv", "--out", "new.csv"),
    "predict from two": ("predict", "run.zarr", "STORE", "--data", "train.csv", "--out", "new.csv"),
    "diagnose": ("diagnose", "STORE"),
    "loo": ("loo", "STORE", "--out", "new.csv"),
    "check": ("check", "STORE", "run.zarr"),
    "check against it": ("check", "run.zarr", "STORE"),
    "compare with it": ("compare", "run.toml", "compared", "--data", "train.csv", "--exact", "STORE"),
    "show": ("show", "STORE"),
    "plot": ("plot", "STORE", "--out", "new"),
    "report": ("report", "STORE", "--out", "new.html"),
    "export": ("export", "STORE", "--out", "new.npz"),
    "verify": ("verify", "STORE"),
    "verify --dry-run": ("verify", "STORE", "--repair", "--dry-run"),
    "verify --repair": ("verify", "STORE", "--repair"),
}
OF_STUDIES = {
    "run": ("--workers", "0"),
    "status": (),
    "diagnose": (),
    "predict": ("--data", "train.csv", "--out", "new.csv"),
    "report": ("--out", "new.html"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, and a run of half its length in run.zarr."""
    folder = tmp_path_factory.mktemp("formats")
    spec = small_spec(folder, chains=2)
    (folder / "run.toml").write_text(spec.to_toml())
    rayfbnn.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return folder


@pytest.fixture
def here(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder: Path = shutil.copytree(original, tmp_path / "here")
    shutil.copytree(folder / "run.zarr", folder / "other.zarr")
    monkeypatch.chdir(folder)
    return folder


def set_format(store: Path, version: int) -> None:
    """Change the format that a store records, and nothing else."""
    document = json.loads((store / "zarr.json").read_bytes())
    document["attributes"] |= {"format_version": version, SEAL: NO_SEAL}
    (store / "zarr.json").write_bytes(seal(document))


def content(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refusal(arguments: tuple[str, ...], store: str) -> str:
    """Return the message of a command that is refused, without the breaks of its lines."""
    result = CliRunner().invoke(cli.app, [store if each == "STORE" else each for each in arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("command", "version"),
    long_but([*((command, 5) for command in READING), *(("status", v) for v in FORMATS)], READING, FORMATS),
)
def test_every_command_refuses_another_format_and_changes_nothing(
    command: str, version: int, here: Path
) -> None:
    set_format(here / "other.zarr", version)
    before = content(here)
    said = refusal(READING[command], "other.zarr")
    assert f"other.zarr: store format {version} is not supported; this version reads format 4" in said
    assert len(said) < 300
    assert content(here) == before


@pytest.mark.parametrize("version", FORMATS)
def test_python_refuses_another_format_and_changes_nothing(version: int, here: Path) -> None:
    set_format(here / "other.zarr", version)
    before = content(here)
    for read in (rayfbnn.open, rayfbnn.to_datatree, rayfbnn.load, rayfbnn.resume):
        with pytest.raises(
            StoreFormatError, match=rf"^\S*other.zarr: store format {version} is not supported"
        ):
            read("other.zarr")
    another = rf"^\S*other.zarr: store format {version} is not supported; [^\n]*, or give a new path$"
    with pytest.raises(StoreExistsError, match=another):
        rayfbnn.sample("run.toml", "other.zarr", workers=0, progress=False)
    assert content(here) == before


@pytest.mark.parametrize(
    ("command", "version"), long_but([(command, 5) for command in OF_STUDIES], OF_STUDIES, FORMATS)
)
def test_a_study_whose_member_has_another_format_is_refused(command: str, version: int, here: Path) -> None:
    rule = Rule(max_rhat=9, max_mcse=9, least_draws=5, looks=2, cases=3)
    Study.create(here / "study", small_spec(here, chains=2), seeds=2, rule=rule)
    member = next((here / "study" / "members").iterdir())
    set_format(member, version)
    before = content(here)
    said = refusal(("study", command, "STORE", *OF_STUDIES[command]), "study")
    assert f"{member.name}: store format {version} is not supported" in said
    assert content(here) == before
