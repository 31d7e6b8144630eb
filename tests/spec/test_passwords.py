"""No message repeats a password, wherever an address that contains one was typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayfbnn import api
from rayfbnn.cli import app
from rayfbnn.errors import RayFBNNError, without_credentials
from rayfbnn.spec import RunSpec
from rayfbnn.spec.written import SECTIONS
from rayfbnn.study import Study
from tests.support.small import small, write_train

PASSWORD = "hunter2"
ADDRESSES = [
    f"s3://user:{PASSWORD}@bucket/a.csv",
    f"https://{PASSWORD}@host/a.csv",
    f"ray://user:{PASSWORD}@host:10001",
    f"user:{PASSWORD}@host:6379",
    f"s3://bucket/a.csv?X-Amz-Signature={PASSWORD}",
    f"s3://{'user' * 20}:{PASSWORD}{PASSWORD}@bucket/a.csv",  # which messages cut off within the password
]
KEYS = [
    *(key for key in small() if key != "phase"),
    *(
        f"data.{key}"
        for key in (*small()["data"], "exclude", "ordered", "missing", "transform", "parts", "header")
    ),
    *(f"model.{key}" for key in ("kind", "noise", "hazard", "time_points")),
    *(f"network.{key}" for key in ("hidden", "priors", "connections", "omit", "activation")),
    *(f"network.{key}.ih0" for key in ("priors", "connections", "omit")),
    "network.connections.ih0.file",
    *(f"network.hidden.0.{key}" for key in ("units", "activation", "groups", "product")),
    *(f"phase.0.{key}" for key in ("iterations", "keep", "operations")),
    *(f"phase.0.operations.2.{key}" for key in ("op", "steps", "stepsize", "order")),
    *(
        "initial",
        "initial.sigmas",
        "ladder",
        "ladder.levels",
        "method",
        "methods",
        "methods.bbb",
        "methods.bbb.draws",
    ),
    *("unknown", "data.unknown_key", "network.hidden.0.unknown"),
]
WAYS: list[Callable[[str], Any]] = [
    lambda address: address,
    lambda address: [address],
    lambda address: {"file": address},
    lambda address: {address: 1},
]


def test_the_keys_include_those_of_a_configuration() -> None:
    known = {key for keys in SECTIONS.values() for key in keys}
    assert {key.rpartition(".")[2] for key in KEYS} & known >= {
        "train",
        "connections",
        "priors",
        "noise",
        "op",
    }


def _with(key: str, value: Any) -> dict[str, Any]:
    keys = small()
    inner: Any = keys
    *before, last = [int(part) if part.isdecimal() else part for part in key.split(".")]
    for part in before:
        inner = inner[part] if isinstance(inner, list) else inner.setdefault(part, {})
    inner[last] = value
    return keys


@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_a_configuration_repeats_a_password(key: str, tmp_path: Path) -> None:
    write_train(tmp_path)
    n_refused = 0
    for address in ADDRESSES:
        for way in WAYS:
            try:
                spec = RunSpec.from_dict(_with(key, way(address)), base_dir=tmp_path)
                api.show(spec)
                api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
            except RayFBNNError as exc:
                n_refused += 1
                assert PASSWORD not in str(exc)
    assert n_refused >= 4


TEXTS = [
    'chains = "{address}',
    "chains = {address}",
    '"{address}"',
    '[data]\ntrain = "{address}"',
    '[network.connections]\nih0 = "{address}"',
    '[network.connections]\nih0 = {{file = "{address}"}}',
    '"{address}" = 1',
    '["{address}"]',
    'chains = 1\nchains = "{address}"',
]


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_a_configuration_repeats_a_password(text: str, tmp_path: Path) -> None:
    for address in ADDRESSES:
        (tmp_path / "run.toml").write_text(text.format(address=address))
        for arguments in (["show", "run.toml"], ["sample", "run.toml", "run.zarr", "--workers", "0"]):
            _check_refused([one if one != "run.toml" else str(tmp_path / one) for one in arguments])


def _check_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0 and isinstance(result.exception, SystemExit)
    shown = "".join(
        character for character in result.output if character.isalnum()
    )  # without folds and boxes
    assert PASSWORD not in shown and PASSWORD[:6] not in shown


COMMANDS = [
    ["show", "{address}"],
    ["status", "{address}"],
    ["sample", "{address}", "run.zarr"],
    ["sample", "run.toml", "{address}"],
    ["sample", "run.toml", "run.zarr", "--data", "{address}"],
    ["sample", "run.toml", "run.zarr", "--set", "data.train={address}"],
    ["sample", "run.toml", "run.zarr", "--set", "{address}"],
    ["sample", "run.toml", "run.zarr", "--workers", "{address}"],
    ["sample", "run.toml", "run.zarr", "--max-time", "{address}"],
    ["sample", "run.toml", "run.zarr", "--{address}"],
    ["sample", "run.toml", "run.zarr", "{address}"],
    ["{address}"],
    ["predict", "run.zarr", "{address}"],
    ["predict", "{address}", "--data", "{address}", "--out", "{address}"],
    ["diagnose", "{address}", "--for", "{address}"],
    ["resume", "{address}", "--data", "{address}"],
    ["verify", "{address}"],
    ["report", "{address}", "--out", "{address}"],
    ["export", "{address}", "--out", "{address}"],
    ["loo", "{address}"],
    ["evidence", "{address}"],
    ["prior", "run.toml", "{address}", "--draws", "2"],
    ["study", "create", "{address}", "run.toml", "--seeds", "2"],
    ["study", "create", "study", "run.toml", "--seeds", "{address}"],
    ["study", "create", "study", "run.toml", "--seeds", "2", "--vary", "{address}"],
    ["study", "create", "study", "run.toml", "--seeds", "2", "--vary", "data.train={address},b.csv"],
    ["study", "status", "{address}"],
    ["study", "run", "{address}", "--address", "{address}"],
    ["study", "{address}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_argument_repeats_a_password(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_train(tmp_path)
    (tmp_path / "run.toml").write_text(RunSpec.from_dict(small()).to_toml())
    for address in ADDRESSES:
        if "://" in address:  # another one may be the name of a file
            _check_refused([part.format(address=address) for part in command])


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_address_of_a_cluster_is_not_repeated(address: str, tmp_path: Path) -> None:
    write_train(tmp_path)
    with pytest.raises(RayFBNNError, match="must not contain a user, a password") as caught:
        api.sample(RunSpec.from_dict(small(), base_dir=tmp_path), tmp_path / "run.zarr", address=address)
    assert PASSWORD not in str(caught.value) and not (tmp_path / "run.zarr").exists()


def test_a_study_does_not_repeat_a_password(tmp_path: Path) -> None:
    for address in filter(lambda address: "://" in address, ADDRESSES):
        for use in (Study.open, lambda path: Study.create(path, small(), seeds=2)):
            with pytest.raises(RayFBNNError) as caught:
                use(address)
            assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a@b.csv: missing",
        "address: ray://host:10001, or 10.0.0.1:6379",
        "see https://example.org:8265/x:y; phase[0].operations: none at 12:30",
        "/data/a:b/train.csv, row 3",
    ],
)
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert without_credentials(text) == text
