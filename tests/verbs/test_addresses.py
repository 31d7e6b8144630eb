"""No command takes an address that holds a secret, or repeats it; and each prints addresses as they are."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.models import ArgumentInfo
from typer.testing import CliRunner

from rayfbnn import api
from rayfbnn.cli import app
from rayfbnn.data.paths import scheme_of
from rayfbnn.errors import ConfigError
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.places import place_of
from rayfbnn.study import Study

SECRET = "hunter2"
ADDRESSES = [
    f"s3://user:{SECRET}@bucket/run.zarr",
    f"az://box/run.zarr?sv=1&sig={SECRET}",
    f"https://user:{SECRET}@host/run.zarr",
]
ODD_ADDRESSES = [
    f"s3://user:{SECRET}/more@bucket/run",
    f"s3:/user:{SECRET}@bucket/run",
    f"S3://user:{SECRET}@bucket/run",
    f"s3a://user:{SECRET}@bucket/run",
    f"s3:user:{SECRET}@bucket/run",
    f"s3:///user:{SECRET}@bucket/run",
    f"s3://bucket/run#token={SECRET}",
    f"s3://bucket/run&X-Amz-Signature={SECRET}",
    f"gs://bucket%40{SECRET}/run",
    f"https://account.blob.core.windows.net/box/run?sig={SECRET}",
    f"abfss://box:{SECRET}@account.dfs.core.windows.net/run",
    f"myown+http://user:{SECRET}@host/run",
    f"postgresql://user:{SECRET}@host/run",
]


def commands(group: typer.Typer, *names: str) -> dict[tuple[str, ...], Any]:
    """Return the function of each command by the words that call it."""
    found = {
        (*names, command.name or command.callback.__name__): command.callback
        for command in group.registered_commands
    }
    for inner in group.registered_groups:
        found |= commands(inner.typer_instance, *names, "study")
    return found


COMMANDS = commands(app)
CREATING = [("sample",), ("reject",), ("prior",), ("study", "create")]
OUTPUTS = {("report",): "out.html", ("export",): "out.npz", ("study", "report"): "out.html"}


def parameters(names: tuple[str, ...]) -> dict[str, tuple[bool, bool, bool]]:
    """Return for each parameter of a command whether it is an argument, takes a path, and is required."""
    return {
        name: (
            any(isinstance(extra, ArgumentInfo) for extra in parameter.annotation.__metadata__),
            "Path" in str(parameter.annotation.__origin__),
            parameter.default is inspect.Parameter.empty,
        )
        for name, parameter in inspect.signature(COMMANDS[names]).parameters.items()
    }


PATHS = [
    (names, name) for names in COMMANDS for name, (_, is_path, _) in parameters(names).items() if is_path
]


def arguments(names: tuple[str, ...], wanted: str, address: str, folder: Path) -> list[str]:
    """Return the words of a command in which one path is the address, and the others are of the folder."""
    usual = {
        "spec": "run.toml",
        "what": "run.toml",
        "data": "train.csv",
        "out": OUTPUTS.get(names, "out.csv"),
    }
    if names[0] == "study":
        usual |= {"path": "study", "paths": "study"}
    if names in CREATING:
        usual["path"] = "new"
    words: list[str] = [*names]
    for name, (is_argument, is_path, is_required) in parameters(names).items():
        if name == wanted:
            value = address
        elif is_required:
            value = str(folder / usual.get(name, "run.zarr")) if is_path else "2"
        else:
            continue
        words += [value] if is_argument else [f"--{name.replace('_', '-')}", value]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("addresses")
    (folder / "train.csv").write_text("x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(8)))
    (folder / "run.toml").write_text(
        'chains = 2\niterations = 8\n[data]\ntrain = "train.csv"\ntargets = ["y"]\n[model]\nkind = "real"\n'
    )
    api.sample(folder / "run.toml", folder / "run.zarr", workers=0, progress=False)
    Study.create(folder / "study", folder / "run.toml", seeds=1).run(workers=0, progress=False)
    return folder


@pytest.mark.parametrize(("names", "parameter"), PATHS, ids=[f"{' '.join(n)} {p}" for n, p in PATHS])
def test_no_command_takes_or_repeats_an_address_with_a_secret(
    folder: Path, names: tuple[str, ...], parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(os.listdir(folder))
    for address in ADDRESSES:
        result = CliRunner().invoke(app, arguments(names, parameter, address, folder))
        said = f"{result.output}{result.stderr}{result.exception!r}"
        assert result.exit_code == 2, said
        assert SECRET not in said
        assert "://" in said or (names, parameter) == (("bench",), "data"), said
        assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("address", ADDRESSES + ODD_ADDRESSES)
@pytest.mark.parametrize("as_path", [False, True])
def test_an_address_with_a_secret_is_no_place_and_is_not_repeated(address: str, as_path: bool) -> None:
    given: Any = Path(address) if as_path else address
    for call in (place_of, RunSpec.from_toml, api.show, api.open, api.status, api.verify):
        with pytest.raises(ConfigError) as error:
            call(given)
        assert SECRET not in str(error.value)


@pytest.mark.parametrize("key", ["data.train", "network.connections.ih0.file"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_configuration_with_an_address_for_a_file_is_refused(folder: Path, key: str, address: str) -> None:
    with pytest.raises(ConfigError, match=key) as error:
        api.show(folder / "run.toml", set=[f'{key}="{address}"'])
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("path", ["run.zarr", "/data/a:b/run", "a@b/c", "12:30/x?y", "./s3.zarr", "C:\\x"])
def test_an_ordinary_path_is_no_address(path: str) -> None:
    assert scheme_of(path) is None
    assert place_of(path) == Path(path).absolute()


def test_a_key_may_have_signs_that_hold_no_secret() -> None:
    for key in ("runs/me@home/run.zarr", "seed=1/run.zarr", "a+b/run (2).zarr", "größe/run.zarr"):
        assert str(place_of(f"s3://bucket/{key}")) == f"s3://bucket/{key}"
