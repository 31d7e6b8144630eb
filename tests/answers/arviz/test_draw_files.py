"""Draws as CSV, Parquet and NetCDF, read back and compared with the store value for value."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arviz
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.answers import draw_files
from rayfbnn.errors import ConfigError
from rayfbnn.run import progress
from tests.support.small import small_spec

CHAINS, DRAWS = 5, 10
TRUTH = ("True", "False")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five chains, two in a batch, of ten draws and a warm-up of five."""
    folder = tmp_path_factory.mktemp("draws")
    rayfbnn.sample(small_spec(folder), folder / "run.zarr", workers=0, progress=False)
    return folder / "run.zarr"


def read(path: Path) -> pd.DataFrame:
    """Read a table; pandas' own reader of numbers rounds the last digit of some."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    words = pd.read_csv(path, dtype=str, keep_default_na=False)
    return words.map(lambda word: word == "True" if word in TRUTH else float(word or "nan"))


@pytest.fixture(params=[32e6, 300, 10_000], ids=["in one piece", "draw by draw", "chains in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(draw_files, "_BLOCK_BYTES", request.param)
    monkeypatch.setattr(draw_files, "_PIECE_BYTES", request.param)
    yield


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.usefixtures("pieces")
def test_a_table_has_a_row_for_each_draw_and_every_number_of_it(
    store: Path, tmp_path: Path, ending: str
) -> None:
    table = read(rayfbnn.export(store, out=tmp_path / f"draws{ending}"))
    assert list(table["chain"]) == list(np.repeat(np.arange(CHAINS), DRAWS))
    assert list(table["draw"]) == list(range(DRAWS)) * CHAINS
    tree = rayfbnn.open(store)
    names = ["chain", "draw"]
    for group in ("posterior", "sample_stats"):
        for name, variable in tree[group].to_dataset().data_vars.items():
            columns = draw_files.column_names(str(name), variable)
            names += columns
            expected = variable.values.reshape(CHAINS * DRAWS, -1)
            found = table[columns].to_numpy().astype(expected.dtype)
            np.testing.assert_array_equal(found, expected, err_msg=str(name))
    assert list(table.columns) == names
    assert {"ih0[x1,0]", "ih0[x2,2]", "bh0[1]", "sigma_ih0", "lp", "diverging"} <= set(names)


def test_variables_are_chosen_by_names_and_patterns_and_draws_by_their_number(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "some.parquet"
    found = CliRunner().invoke(
        cli.app,
        [
            "export",
            str(store),
            "--out",
            str(out),
            "--variables",
            "lp,sigma_?h0",
            "--draws",
            "20",
            "--skip",
            "2",
        ],
    )
    assert found.exit_code == 0, found.output
    table = read(out)
    assert list(table.columns) == ["chain", "draw", "sigma_ih0", "sigma_bh0", "lp"]
    assert len(table) == 20 and table["draw"].min() >= 2 and table["draw"].max() == 9
    expected = rayfbnn.open(store)["sample_stats"]["lp"]
    for row in table.itertuples():
        assert row.lp == float(expected.sel(chain=row.chain, draw=row.draw))


def test_a_table_that_is_too_wide_names_the_variables_to_leave_out(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_files, "MOST_COLUMNS", 20)
    message = (
        r"variables: a table of these would have \d\d columns, above the limit of 20 \(ih0 6, .*sigma_\*,lp"
    )
    with pytest.raises(ConfigError, match=message):
        rayfbnn.export(store, out=tmp_path / "draws.csv")
    assert list(tmp_path.iterdir()) == []
    rayfbnn.export(store, out=tmp_path / "draws.csv", variables=["sigma_*", "lp"])


@pytest.mark.usefixtures("pieces")
def test_a_netcdf_file_has_the_stored_groups_and_arviz_reads_it(store: Path, tmp_path: Path) -> None:
    out = rayfbnn.export(store, out=tmp_path / "run.nc")
    expected = rayfbnn.open(store)
    found = xr.open_datatree(out, engine="h5netcdf")
    assert list(found.children) == list(expected.children)
    for name, node in expected.children.items():
        xr.testing.assert_identical(found[name].to_dataset().load(), node.to_dataset().load())
    found.close()
    read_by_arviz: Any = arviz.from_netcdf(str(out))
    np.testing.assert_array_equal(read_by_arviz["posterior"]["ih0"], expected["posterior"]["ih0"])


def test_computed_groups_are_written_on_request(store: Path, tmp_path: Path) -> None:
    out = rayfbnn.export(store, out=tmp_path / "run.nc", groups="posterior,log_likelihood", draws=10)
    found = xr.open_datatree(out, engine="h5netcdf")
    assert list(found.children) == ["posterior", "log_likelihood"]
    expected = rayfbnn.to_datatree(store, groups=["posterior", "log_likelihood"], draws=2)
    for name, node in expected.children.items():
        xr.testing.assert_identical(found[name].to_dataset().load(), node.to_dataset().load())
    found.close()


def test_draws_from_the_prior_have_their_own_names_of_groups(tmp_path: Path) -> None:
    rayfbnn.prior(small_spec(tmp_path), tmp_path / "prior.zarr", draws=3)
    table = read(rayfbnn.export(tmp_path / "prior.zarr", out=tmp_path / "prior.csv", variables="sigma_*"))
    expected = rayfbnn.open(tmp_path / "prior.zarr")["prior"]["sigma_ih0"]
    np.testing.assert_array_equal(table["sigma_ih0"], expected.values.ravel())
    out = rayfbnn.export(tmp_path / "prior.zarr", out=tmp_path / "prior.nc")
    with xr.open_datatree(out, engine="h5netcdf") as tree:
        assert "sample_stats_prior" in tree.children


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".nc"])
def test_a_file_is_written_whole_or_not_at_all(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The work stops after the first piece; an older file stays as it was."""
    monkeypatch.setattr(draw_files, "_BLOCK_BYTES", 300)
    out = tmp_path / f"draws{ending}"
    out.write_text("old")

    def stop(share: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "show_share", lambda of: _yielding(stop))
    with pytest.raises(KeyboardInterrupt):
        rayfbnn.export(store, out=out)
    assert [path.name for path in tmp_path.iterdir()] == [out.name] and out.read_text() == "old"


class _yielding:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"out": "draws.txt"}, r"out: must end in \.npz, \.csv, \.parquet or \.nc, got"),
        (
            {"out": "draws.csv", "variables": "sigma_ih1"},
            "no variable is called sigma_ih1 .did you mean sigma_",
        ),
        ({"out": "draws.csv", "groups": "posterior"}, "groups: only a .nc file"),
        ({"out": "draws.nc", "variables": "lp"}, "variables: only tables"),
        ({"out": "draws.nc", "groups": "posteriors"}, "has no group posteriors; it has posterior"),
        ({"out": "draws.csv", "draws": 4}, "draws: must be at least 5, one for each chain, got 4"),
        ({"out": "draws.csv", "skip": 10}, "skip: must be below 10"),
    ],
)
def test_wrong_arguments_write_nothing(
    store: Path, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rayfbnn.export(store, **{**arguments, "out": tmp_path / arguments["out"]})
    assert list(tmp_path.iterdir()) == []


def test_netcdf_without_its_library_names_what_to_install(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        draw_files, "find_spec", lambda name: None if name == "h5netcdf" else importlib.util.find_spec(name)
    )
    with pytest.raises(ConfigError, match=r'a \.nc file needs h5netcdf; pip install "rayfbnn\[netcdf\]"'):
        rayfbnn.export(store, out=tmp_path / "run.nc")
