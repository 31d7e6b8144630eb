"""ArviZ's own functions on the groups of a run: what they say of a problem whose answers are known."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import rayfbnn
from rayfbnn.store.store import Store
from tests.support.model.linear import linear_run, loo_of_linear
from tests.support.small import small_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a linear network on 30 cases; its posterior is Gaussian."""
    folder = tmp_path_factory.mktemp("linear")
    linear_run(folder)
    return folder


def arviz_stats() -> Any:
    pytest.importorskip("arviz_base", reason="loo comes with ArviZ as a whole")
    import arviz_stats

    return arviz_stats


def test_the_model_with_the_right_inputs_is_better_by_loo(linear: Path, tmp_path: Path) -> None:
    az = arviz_stats()
    store = Store.open(linear / "run.zarr")
    tables = store.spec.to_dict()
    tables["data"]["inputs"] = ["x1"]
    rayfbnn.sample(tables, tmp_path / "one.zarr", **HERE)
    groups = ["posterior", "log_likelihood"]
    trees = {
        path.stem: rayfbnn.to_datatree(path, groups=groups)
        for path in (linear / "run.zarr", tmp_path / "one.zarr")
    }
    table = az.compare(trees)
    exact = loo_of_linear(linear / "run.zarr").sum()
    assert abs(table.loc["run", "elpd"] - exact) < 1
    assert set(table.index) == {"run", "one"}


def test_psense_takes_log_likelihoods_and_log_priors(linear: Path) -> None:
    az = arviz_stats()
    tree = rayfbnn.to_datatree(linear / "run.zarr")
    table = az.psense_summary(tree, var_names=["io", "bo"])
    assert np.isfinite(table[["prior", "likelihood"]].to_numpy(dtype=float)).all()
    assert (table["likelihood"].astype(float) > table["prior"].astype(float)).all()  # 30 cases tell more


def test_arviz_0_takes_the_tree_through_one_line(linear: Path) -> None:
    az = pytest.importorskip("arviz", reason="ArviZ as a whole is for the tests alone")
    if az.__version__.split(".")[0] != "0":
        pytest.skip("ArviZ 1.x takes the tree itself")
    pytest.importorskip("matplotlib", reason="pictures are an extra")
    tree = rayfbnn.to_datatree(linear / "run.zarr")
    data = az.from_datatree(tree)
    loo = az.loo(data)
    assert abs(loo.elpd_loo - loo_of_linear(linear / "run.zarr").sum()) < 0.2
    assert set(az.compare({"one": data, "the same": data})["elpd_loo"]) == {loo.elpd_loo}
    assert az.plot_ppc(data, num_pp_samples=10) is not None
    assert np.isfinite(az.psens(data, component="likelihood", var_names=["io"])).all()


# The total log likelihood is never taken for pointwise.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", **HERE)
    return folder / "run.zarr"


def refuses_loo(tree: Any) -> bool:
    """Return True if neither generation of ArviZ finds log likelihoods in a tree."""
    from arviz_stats.utils import get_log_likelihood

    with pytest.raises(TypeError, match="log likelihood not found"):
        get_log_likelihood(tree)
    return all("log_likelihood" not in group.data_vars for group in tree.children.values())


def test_arviz_finds_no_log_likelihood_in_what_open_gives(run: Path) -> None:
    arviz_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = rayfbnn.to_datatree(run, groups=["posterior", "sample_stats"])
        for tree in (rayfbnn.open(run), Store.open(run).datatree(), stored):
            assert refuses_loo(tree)
            assert "log_likelihood_total" in tree["sample_stats"]


def test_arviz_finds_no_log_likelihood_in_the_files_of_a_new_store(linear: Path) -> None:
    arviz_stats()
    assert refuses_loo(xr.open_datatree(linear / "run.zarr", engine="zarr", consolidated=False))


def test_arviz_finds_those_of_single_cases_where_they_were_computed(run: Path) -> None:
    arviz_stats()
    from arviz_stats.utils import get_log_likelihood

    found = get_log_likelihood(rayfbnn.to_datatree(run))
    assert found.dims == ("chain", "draw", "case", "target")
