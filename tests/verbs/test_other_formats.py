"""A store of another format is refused in one line, and nothing in it changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.errors import StoreExistsError, StoreFormatError
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.study import Rule, Study
from tests.support.marks import long_but
from tests.support.small import small_spec

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
