"""The files of cluster/ against the schemas and linters of the programs that read them."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.cluster.kuberay import schema_of
from tests.support.pages import ROOT

ray = pytest.importorskip("ray")
CLUSTER = ROOT / "cluster"
MANIFESTS = sorted(CLUSTER.glob("kuberay/*.yaml"))
CLOUDS = sorted(CLUSTER.glob("ray/*.yaml"))
SCRIPTS = sorted(CLUSTER.glob("slurm/*.sbatch"))
FILES = [file for file in sorted(CLUSTER.rglob("*")) if file.is_file() and file.suffix != ".md"]


def tool(name: str) -> str:
    """The path of a program that a package of the extra `dev` brings."""
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert path is not None, f"{name} is not installed"
    return path


def misspelt(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with one key misspelt, for each key whose name a schema fixes."""
    for path in list(_keys(document)):
        names = ("limits", "requests", "nodeSelector", "rayStartParams", "matchLabels", "labels")
        if any(name in path[:-1] for name in names):
            continue
        changed = copy.deepcopy(document)
        table = changed
        for name in path[:-1]:
            table = table[name]
        table[f"{path[-1]}x"] = table.pop(path[-1])
        yield ".".join(map(str, path)), changed


def _keys(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in entries:
        if isinstance(document, dict):
            yield (*path, name)
        if isinstance(value, dict | list):
            yield from _keys(value, (*path, name))


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_a_manifest_has_the_keys_of_kuberay_and_each_misspelt_key_is_found(file: Path) -> None:
    document = yaml.safe_load(file.read_text())
    validator = jsonschema.Draft202012Validator(schema_of(document["kind"]))
    assert [error.message for error in validator.iter_errors(document)] == []
    unseen = [path for path, changed in misspelt(document) if validator.is_valid(changed)]
    assert unseen == []


@pytest.mark.parametrize("file", CLOUDS, ids=lambda file: file.name)
def test_a_file_for_ray_up_has_the_keys_of_ray(file: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = yaml.safe_load(file.read_text())
    validate_config(prepare_config(copy.deepcopy(document)))
    for key in document:  # Ray fills in what is missing, so that only the misspelt key itself is an error
        changed = copy.deepcopy(document)
        changed[f"{key}x"] = changed[key]
        with pytest.raises(jsonschema.ValidationError):
            validate_config(prepare_config(changed))


def test_all_files_name_the_version_of_ray_that_the_tests_use() -> None:
    pattern = re.compile(r"(?:rayVersion: \"|ARG RAY=|ray\[default\]==)(\d+\.\d+\.\d+)")
    versions = {version for file in FILES for version in pattern.findall(file.read_text())}
    assert len(versions) == 1
    ours, theirs = (tuple(map(int, version.split(".")[:2])) for version in (*versions, ray.__version__))
    assert ours <= theirs, "newer than what the tests have run with"


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_scripts_pass_shellcheck(file: Path) -> None:
    done = subprocess.run([tool("shellcheck"), file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_slurm_sees_every_directive(file: Path) -> None:
    """sbatch reads no directive after the first command."""
    lines = file.read_text().splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives and max(directives) < first_command
    assert any("--requeue" in lines[number] for number in directives)


def test_the_dockerfile_passes_hadolint() -> None:
    file = CLUSTER / "docker" / "Dockerfile"
    done = subprocess.run([tool("hadolint"), file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_from_what_the_package_needs() -> None:
    """Everything that pyproject.toml names for the build is let through by .dockerignore."""
    kept = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.M))
    assert {"rayfbnn", "examples", "CMakeLists.txt", "README.md", "LICENSE", "pyproject.toml"} <= kept
    assert all((ROOT / name).exists() for name in kept)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_short_enough_to_be_read(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 70


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_readme_names_every_file(file: Path) -> None:
    assert f"({file.relative_to(CLUSTER)})" in (CLUSTER / "README.md").read_text()
