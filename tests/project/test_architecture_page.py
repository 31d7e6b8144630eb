"""docs/architecture.md names files and functions that exist, and its recipes are complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rayfbnn"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PLACES = sorted(set(re.findall(r"`((?:\w+/)*\w+\.py)(?::(\w+))?`", PAGE)))


def test_the_page_names_many_places() -> None:
    assert len(PLACES) > 30


@pytest.mark.parametrize(("file", "name"), PLACES, ids=":".join)
def test_each_place_on_the_page_is_there(file: str, name: str) -> None:
    path = ROOT / file if file.startswith(("tests/", "benchmarks/")) else PACKAGE / file
    assert path.is_file()
    if name:
        kinds = (ast.FunctionDef, ast.ClassDef)
        defined = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}
        assert name in defined


RECIPES = {
    "operation": (r"HybridMax|hybrid_max|hybrid-max", {"mcmc/hybrid_max.py", "mcmc/operations.py"}),
    "data model": (
        r"CountTargets|[\"']count[\"']",
        {
            "kernels/network_plan.py",
            "model/likelihood/count.py",
            "model/likelihood/dispersed_count.py",  # which derives from it
            "model/likelihood/registry.py",
            "selftest/pivots.py",
            "selftest/selftest.py",
        },
    ),
    "approximation": (
        r"\bPropagation(Fit)?\b|[\"']vep[\"']",
        {"approximate/propagation.py", "approximate/registry.py"},
    ),
    "backend": (r"CompiledBackend|rayfbnn\.kernels\.cpu\b", {"kernels/choose.py"}),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_touches_only_the_files_that_it_names(recipe: str) -> None:
    pattern, files = RECIPES[recipe]
    touched = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text())
    }
    assert {file for file in touched if not file.startswith("kernels/cpu/")} == files
