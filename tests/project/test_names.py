"""One class has one name, one face is public, and core rooms do not name what a registry knows."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

import rayfbnn

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rayfbnn"


def test_one_class_has_one_name() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in files.items() if len(places) > 1} == {}


def test_the_page_on_python_has_every_public_name() -> None:
    """It also lists the records that verbs return, below the files that have them."""
    listed = re.findall(r"^::: rayfbnn\.([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert set(dir(rayfbnn)) | {"errors"} == {name for name in listed if "." not in name}
    for name in listed:
        place, _, last = f"rayfbnn.{name}".rpartition(".")
        assert last == "errors" or hasattr(import_module(place), last), name


# Lines that name ladders or approximations in rooms to which both are only kinds of runs. The bounds may only
# fall: such a room asks a registry, or the object of the run, instead.
MOST_LINES = {
    "answers": 250,
    "describe": 37,
    "draws": 63,
    "reduce": 1,
    "run": 162,
    "store": 190,
    "verbs": 74,
}


@pytest.mark.parametrize("room", MOST_LINES)
def test_core_rooms_name_ladders_and_approximations_ever_less(room: str) -> None:
    lines = [line for path in (PACKAGE / room).rglob("*.py") for line in path.read_text().splitlines()]
    count = sum(bool(re.search("ladder|approximation", line, re.IGNORECASE)) for line in lines)
    assert count <= MOST_LINES[room]
