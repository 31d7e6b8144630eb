"""Every verb that reads draws can be given chains, and the last draws of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.answers.check import check_draws
from rayfbnn.answers.loo import leave_out
from rayfbnn.draws.quantities import functions_at
from rayfbnn.draws.subsets import chosen
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError
from rayfbnn.spec import RunSpec
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.store import Store
from tests.support.small import small, small_spec, write_train

HERE: dict[str, Any] = {"workers": 0, "progress": False}
SOME: dict[str, Any] = {"chains": [4, 1, 2], "last": 9}  # of five chains with ten draws each
IN_SHELL = ["--chains", "4,1,2", "--last", "9"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", **HERE)
    return folder / "run.zarr"


@pytest.mark.parametrize("verb", ["diagnose", "predict", "report", "load"])
def test_what_is_committed_is_asked_once(verb: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question lists the records of every batch; a run on a cluster has hundreds of batches."""
    settings: dict[str, dict[str, Any]] = {
        "predict": {"data": store.parent / "train.csv"},
        "report": {"out": store.parent / "report.html", "progress": False},
    }
    asked, ask = [], OpenStore.committed

    def counted(opened: OpenStore, section: Any) -> int:
        asked.append(section)
        return ask(opened, section)

    monkeypatch.setattr(OpenStore, "committed", counted)
    getattr(rayfbnn, verb)(store, **settings.get(verb, {}))
    assert len(asked) == 1


def some_draws(store: Path) -> Draws:
    return chosen(committed(Store.open(store)), **SOME)


def test_functions_are_those_of_the_chosen_draws(store: Path) -> None:
    data = Store.open(store).data
    values = rayfbnn.function_values(store, data=data.inputs, **SOME)
    np.testing.assert_array_equal(values, functions_at(some_draws(store), data.inputs))


def test_a_predictor_holds_the_chosen_draws(store: Path) -> None:
    predictor = rayfbnn.load(store, max_mcse=0, **SOME)
    np.testing.assert_array_equal(predictor._held.positions(), some_draws(store).positions())


def test_a_table_has_the_rows_of_the_chosen_draws(store: Path, tmp_path: Path) -> None:
    whole, some = (
        pd.read_csv(rayfbnn.export(store, out=tmp_path / name, **options))
        for name, options in (("whole.csv", {}), ("some.csv", SOME))
    )
    rows = whole[whole["chain"].isin([1, 2, 4]) & (whole["draw"] >= 1)]
    pd.testing.assert_frame_equal(some, rows.reset_index(drop=True), check_exact=True)
    thinned = pd.read_csv(rayfbnn.export(store, out=tmp_path / "thin.csv", draws=6, **SOME))
    assert thinned["chain"].tolist() == [1, 1, 2, 2, 4, 4] and thinned["draw"].tolist() == [1, 9] * 3


def test_groups_have_the_values_of_the_chosen_draws(store: Path, tmp_path: Path) -> None:
    """Targets that are drawn depend on the chain's number in the store, not on its place in the file."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf", reason="NetCDF cannot be written")
    groups = ["posterior", "posterior_predictive", "log_likelihood", "log_prior", "observed_data"]
    whole = rayfbnn.to_datatree(store, groups=groups)
    out = rayfbnn.export(store, out=tmp_path / "some.nc", groups=groups, **SOME)
    with xarray.open_datatree(out) as some:
        for name in groups:
            expected = (
                whole[name].to_dataset().isel(chain=[1, 2, 4], draw=slice(1, None), missing_dims="ignore")
            )
            xarray.testing.assert_equal(some[name].to_dataset().load(), expected.load())


def test_a_model_has_the_chosen_draws(store: Path, tmp_path: Path) -> None:
    whole, some = (
        np.load(rayfbnn.export(store, out=tmp_path / f"{name}.npz", max_mcse=0, **options))
        for name, options in (("whole", {}), ("some", SOME))
    )
    biases = whole["bias_1"].reshape(5, 10, -1)[[1, 2, 4], 1:]
    np.testing.assert_array_equal(some["bias_1"], biases.reshape(27, -1))


def test_cases_are_left_out_of_the_chosen_draws(store: Path) -> None:
    pytest.importorskip("arviz_stats", reason="the loo extra is not installed")
    elpd = rayfbnn.loo(store, **SOME)
    assert elpd.n_samples == 27
    np.testing.assert_array_equal(elpd.elpd_i, leave_out(some_draws(store)).elpd)


def test_the_chosen_draws_are_checked_against_exact_ones(tmp_path: Path) -> None:
    raw = small(model__noise="0.5:3", data__standardize=[])
    write_train(tmp_path, n_cases=3)
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    rayfbnn.reject(spec, tmp_path / "exact.zarr", draws=30, progress=False)
    rayfbnn.sample(spec, tmp_path / "run.zarr", **HERE)
    found = rayfbnn.check(tmp_path / "run.zarr", tmp_path / "exact.zarr", **SOME)
    expected = check_draws(some_draws(tmp_path / "run.zarr"), committed(Store.open(tmp_path / "exact.zarr")))
    pd.testing.assert_frame_equal(found.table, expected.table, check_exact=True)


def test_a_report_names_the_chosen_chains(store: Path, tmp_path: Path) -> None:
    page = rayfbnn.report(store, out=tmp_path / "run.html", progress=False, **SOME).read_text()
    assert "3 chains of 9" in page and "1, 2, 4 of 5" in page
    assert "1 draws at the start of each chain" in page


def test_pictures_are_of_the_chosen_draws(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayfbnn.pictures import chains

    drawn, panels = [], chains.trace_panels

    def noted(of_quantities: Any, numbers: Any) -> Any:
        drawn.append(numbers)
        return panels(of_quantities, numbers)

    monkeypatch.setattr(chains, "trace_panels", noted)
    options = "--out", str(tmp_path / "plots"), "--data", str(store.parent / "train.csv"), *IN_SHELL
    result = CliRunner().invoke(cli.app, ["plot", str(store), *options])
    assert result.exit_code == 0, result.output
    assert drawn == [(1, 2, 4)]
    assert (tmp_path / "plots" / "errors.png").exists()


@pytest.mark.parametrize("verb", ["check", "loo", "plot", "report", "export", "function_values", "load"])
def test_a_chain_that_does_not_exist_is_refused(verb: str, store: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "check": {"exact": store},
        "plot": {"out": tmp_path / "plots"},
        "report": {"out": tmp_path / "page.html"},
        "export": {"out": tmp_path / "draws.csv"},
        "function_values": {"data": np.zeros((1, 2))},
    }
    with pytest.raises(ConfigError, match="chains: .* has 5 chains, numbered from 0 to 4, got 7"):
        getattr(rayfbnn, verb)(store, **arguments.get(verb, {}), chains=[7])
    with pytest.raises(ConfigError, match="last: give either last or skip, got 3 and 2"):
        getattr(rayfbnn, verb)(store, **arguments.get(verb, {}), last=3, skip=2)
    assert not list(tmp_path.iterdir())
