"""The verb `loo`: one store, several stores, its table, and what it refuses."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.answers.loo import LooComparison
from rayfbnn.errors import ConfigError, RayFBNNError, StoreMismatchError
from rayfbnn.run import progress
from tests.support.drivers import finish, start
from tests.support.small import small_spec, write_train
from tests.support.store.fits import fit_spec

pytest.importorskip("arviz_base", reason="loo needs the extra of the same name")

HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the same targets: run.zarr with two inputs, and one.zarr with one and in another order."""
    folder = tmp_path_factory.mktemp("loo")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", **HERE)
    one = small_spec(folder, data__inputs=["x1"], data__shuffle=True, seed=8)
    rayfbnn.sample(one, folder / "one.zarr", **HERE)
    return folder


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["loo", *map(str, arguments)])


def test_the_table_has_a_row_for_each_case(folder: Path, tmp_path: Path) -> None:
    found = rayfbnn.loo(folder / "run.zarr", out=tmp_path / "loo.csv")
    table = pd.read_csv(tmp_path / "loo.csv")
    assert table.columns.tolist() == ["elpd", "p", "k"] and len(table) == 12
    np.testing.assert_allclose(table["elpd"], found.elpd_i, rtol=1e-12)
    np.testing.assert_allclose(table["k"], found.pareto_k, rtol=1e-12)
    assert table["p"].sum() == pytest.approx(found.p)
    rayfbnn.loo(folder / "run.zarr", out=tmp_path / "loo.parquet")
    pd.testing.assert_frame_equal(table, pd.read_parquet(tmp_path / "loo.parquet"))


def test_draws_can_be_left_out(folder: Path) -> None:
    assert rayfbnn.loo(folder / "run.zarr", skip=4).n_samples == 5 * 6
    assert rayfbnn.loo(folder / "run.zarr", skip=4).elpd != rayfbnn.loo(folder / "run.zarr").elpd


def test_several_stores_are_compared_by_arviz(folder: Path, tmp_path: Path) -> None:
    """The cases of one store are in another order; their differences are case by case."""
    paths = [folder / "one.zarr", folder / "run.zarr"]
    compared = rayfbnn.loo(paths, out=tmp_path / "loo.csv")
    assert isinstance(compared, LooComparison)
    alone = {str(path): rayfbnn.loo(path) for path in paths}
    assert list(compared.elpds) == list(alone)
    best, worst = sorted(alone, key=lambda name: -alone[name].elpd)
    assert compared.table.index.tolist() == [best, worst]
    for name, of_one in alone.items():
        assert compared.table.loc[name, "elpd"] == pytest.approx(of_one.elpd)
    differences = alone[best].elpd_i - alone[worst].elpd_i
    assert compared.table.loc[worst, "elpd_diff"] == pytest.approx(float(differences.sum()))
    assert compared.table.loc[worst, "dse"] == pytest.approx(float(differences.std()) * np.sqrt(12))
    table = pd.read_csv(tmp_path / "loo.csv")
    assert table["store"].tolist() == [str(path) for path in paths for _ in range(12)]


def test_a_sequence_of_one_store_is_a_comparison_with_one_row(folder: Path) -> None:
    assert len(rayfbnn.loo([folder / "run.zarr"]).table) == 1


def test_a_warning_counts_the_cases_with_a_large_k(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = rayfbnn.loo(folder / "run.zarr")
    n = int((found.pareto_k > found.good_k).sum())
    assert n > 0  # 50 draws
    assert f"{n} of 12 cases have a Pareto k above 0.41 (the limit for 50 draws" in caplog.text


# Refusals.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data__targets": ["x2"], "data__inputs": ["x1"]}, "the targets differ: y and x2"),
        ({"n_cases": 13}, "the numbers of training cases differ: 12 and 13"),
        ({"first": "9"}, "the targets of the training cases differ, or are in another order"),
    ],
)
def test_stores_of_other_targets_are_not_compared(
    folder: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    n_cases, first = changes.pop("n_cases", 12), changes.pop("first", None)
    spec = small_spec(tmp_path, **changes)
    lines = write_train(tmp_path, n_cases=n_cases).read_text().splitlines()
    if first is not None:
        lines[1] = f"{lines[1].rsplit(',', 1)[0]},{first}"
        (tmp_path / "train.csv").write_text("\n".join(lines))
    rayfbnn.sample(spec, tmp_path / "other.zarr", **HERE)
    with pytest.raises(StoreMismatchError, match=f"other.zarr: cannot be compared with .*: {reason}"):
        rayfbnn.loo([folder / "run.zarr", tmp_path / "other.zarr"])


def test_densities_are_not_compared_with_probabilities(tmp_path: Path) -> None:
    """Counts as such, and as if they were real numbers."""
    write_train(tmp_path)
    lines = [f"{number},{number % 3},{number % 4}" for number in range(12)]
    cases = "\n".join(["x1,x2,y", *lines])
    for kind in ("real", "count"):
        noise = "0.3:3" if kind == "real" else None
        spec = small_spec(tmp_path, model={"kind": kind} | ({"noise": noise} if noise else {}))
        tables = spec.to_dict()
        tables["data"]["train"] = str(tmp_path / "counts.csv")
        if kind == "count":
            for phase in tables["phase"]:
                phase["operations"] = [one for one in phase["operations"] if one["op"] != "sample-noise"]
        (tmp_path / "counts.csv").write_text(cases)
        rayfbnn.sample(tables, tmp_path / f"{kind}.zarr", **HERE)
    with pytest.raises(StoreMismatchError, match="one has densities of its targets, the other probabilities"):
        rayfbnn.loo([tmp_path / "real.zarr", tmp_path / "count.zarr"])


def test_stores_of_other_labels_are_not_compared(tmp_path: Path) -> None:
    """The labels a, b and a, c have the same numbers."""
    for other in "bc":
        cases = "\n".join(f"{number},{number % 5},{'a' if number % 3 else other}" for number in range(12))
        (tmp_path / f"{other}.csv").write_text(f"x1,x2,y\n{cases}\n")
        data = {"train": f"{other}.csv", "inputs": ["x1", "x2"], "targets": ["y"]}
        phase = [{"iterations": 20, "operations": [{"op": "heatbath"}]}]
        spec = small_spec(tmp_path, data=data, model={"kind": "binary"}, phase=phase)
        rayfbnn.sample(spec, tmp_path / f"{other}.zarr", **HERE)
    with pytest.raises(StoreMismatchError, match="the labels of the targets differ"):
        rayfbnn.loo([tmp_path / "b.zarr", tmp_path / "c.zarr"])


def test_a_store_is_not_given_twice(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"path: .*run\.zarr is given twice"):
        rayfbnn.loo([folder / "run.zarr", folder / "run.zarr"])
    with pytest.raises(ConfigError, match="path: no store given"):
        rayfbnn.loo([])


def test_draws_from_the_prior_are_refused(folder: Path, tmp_path: Path) -> None:
    rayfbnn.prior(small_spec(tmp_path), tmp_path / "prior.zarr", draws=40)
    result = command(tmp_path / "prior.zarr")
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert "are from the prior, but the importance weights of loo are for draws" in result.stderr


def test_draws_from_an_approximation_are_refused(tmp_path: Path) -> None:
    rayfbnn.sample(fit_spec(tmp_path, "laplace"), tmp_path / "fit.zarr", method="laplace", **HERE)
    with pytest.raises(ConfigError, match="are from an approximation"):
        rayfbnn.loo(tmp_path / "fit.zarr")


def test_tempered_draws_are_refused(tmp_path: Path) -> None:
    rayfbnn.sample(small_spec(tmp_path, temperature=4.0), tmp_path / "run.zarr", **HERE)
    with pytest.raises(ConfigError, match="at temperature 4, but loo needs draws at temperature 1"):
        rayfbnn.loo(tmp_path / "run.zarr")


def test_too_few_draws_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has 20 draws of all chains together, but loo needs at least 25"):
        rayfbnn.loo(folder / "run.zarr", skip=6)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("loo.txt", "out: must end in .csv or .parquet"),
        ("train.csv", "out: .*train.csv is the input .* itself"),
        ("run.zarr/loo.csv", "out: .* lies inside the store"),
        ("nowhere/loo.csv", "there is no folder"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_computed(folder: Path, out: str, reason: str) -> None:
    before = (folder / "train.csv").read_bytes()
    with pytest.raises(RayFBNNError, match=reason):
        rayfbnn.loo(folder / "run.zarr", out=folder / out)
    assert (folder / "train.csv").read_bytes() == before


def test_without_arviz_as_a_whole_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfbnn.verbs.predicting.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'loo: arviz_base is not installed; pip install "rayfbnn\[loo\]"'):
        rayfbnn.loo(folder / "run.zarr")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers: must be at least 0"),
        ({"workers": 0, "address": "auto"}, "workers: 0 computes in this process"),
    ],
)
def test_wrong_workers_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rayfbnn.loo(folder / "run.zarr", **options)


# The command.


@pytest.mark.ray
def test_the_command_takes_workers(folder: Path, tmp_path: Path) -> None:
    """The results are the same to the last bit, and the command starts and stops its own Ray."""
    command(folder / "run.zarr", "--out", tmp_path / "here.csv")
    there = tmp_path / "there.csv"
    code, _, errors = finish(start("loo", folder / "run.zarr", "--out", there, "--workers", 2))
    assert code == 0, errors
    assert there.read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_the_command_prints_the_summary_of_arviz(folder: Path, tmp_path: Path) -> None:
    result = command(folder / "run.zarr", "--out", tmp_path / "loo.csv")
    assert result.exit_code == 0
    assert "elpd_loo" in result.stdout and "Pareto k diagnostic values" in result.stdout
    assert result.stdout.splitlines()[-1] == f"a row for each case: {tmp_path / 'loo.csv'}"
    assert len(pd.read_csv(tmp_path / "loo.csv")) == 12
    assert "% done" not in result.stderr


def test_the_command_prints_the_comparison(folder: Path) -> None:
    result = command(folder / "run.zarr", folder / "one.zarr")
    assert result.exit_code == 0
    heading, *rows = result.stdout.splitlines()
    assert heading.split()[:6] == ["store", "rank", "elpd", "p", "elpd_diff", "weight"]
    assert sorted(row.split()[0] for row in rows) == sorted(
        str(folder / name) for name in ("run.zarr", "one.zarr")
    )


def test_json_has_all_numbers(folder: Path) -> None:
    one = json.loads(command(folder / "run.zarr", "--json").stdout)
    found = rayfbnn.loo(folder / "run.zarr")
    assert one["elpd"] == found.elpd and one["elpd_se"] == found.se and one["p"] == found.p
    assert (one["cases"], one["draws"]) == (12, 50)
    assert one["cases_above_good_k"] == int((found.pareto_k > found.good_k).sum())
    several = json.loads(command(folder / "run.zarr", folder / "one.zarr", "--json").stdout)
    assert several["stores"][str(folder / "run.zarr")] == one
    assert several["comparison"][0]["elpd_diff"] == 0 and several["comparison"][1]["elpd_diff"] > 0


def test_progress_is_shown_for_each_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: dict[str, list[float]] = {}

    @contextmanager
    def recorded(of: str = "") -> Iterator[Callable[[float], None]]:
        yield shares.setdefault(of, []).append

    monkeypatch.setattr(progress, "show_share", recorded)
    paths = [folder / "run.zarr", folder / "one.zarr"]
    rayfbnn.loo(paths)
    assert list(shares) == [str(path) for path in paths]
    assert all(found == sorted(found) and found[-1] == 1 for found in shares.values())
