"""Messages about paths at which there is nothing name what is beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfbnn import api
from rayfbnn.data.paths import near_paths
from rayfbnn.errors import ConfigError, StoreError


def test_names_that_are_alike_come_first_and_others_of_the_kind_instead(tmp_path: Path) -> None:
    for name in ("train.csv", "notes.txt", "A.parquet", "B.parquet"):
        (tmp_path / name).touch()
    assert near_paths(tmp_path / "trian.csv", [".csv"]) == " (the folder has train.csv)"
    assert near_paths(tmp_path / "qq", [".parquet"]) == " (the folder has A.parquet, B.parquet)"
    assert near_paths(tmp_path / "qq", [".toml"]) == ""
    assert near_paths(tmp_path / "no" / "qq", [".csv"]) == f" (there is no folder {tmp_path / 'no'})"


def test_a_wrong_path_of_a_configuration_or_a_store_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    (tmp_path / "run.zarr").mkdir()
    with pytest.raises(ConfigError, match=r"No such file or directory \(the folder has run.toml\)"):
        api.show(tmp_path / "rum.toml")
    with pytest.raises(StoreError, match=r"does not exist \(the folder has run.zarr\)"):
        api.diagnose(tmp_path / "rum.zarr")
