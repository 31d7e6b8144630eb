"""Rules for imports between folders: no circles, and one home for each edge library."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = Path(__file__).parents[2] / "rayfbnn"

# Folders that each folder, or file directly in the package, may import besides itself.
BASE = {"errors", "arrays", "streams", "state", "version", "memory", "numerals"}
SAMPLED = BASE | {"model", "mcmc", "kernels"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "numerals": set(),
    "memory": {"errors", "numerals"},
    "arrays": {"errors"},
    "streams": {"arrays", "errors"},
    "state": {"arrays", "streams"},
    "data": {"arrays", "errors", "memory", "model", "numerals", "streams"},
    "model": BASE,
    "mcmc": BASE,
    "approximate": BASE,
    "kernels": BASE | {"model", "mcmc", "approximate"},
    "selftest": SAMPLED,
    "spec": BASE | {"model", "mcmc", "approximate", "data"},
    "store": BASE | {"model", "mcmc", "spec", "data"},
    "output": {"errors", "numerals"},
    "ring": SAMPLED,
    "run": SAMPLED | {"approximate", "ring", "spec", "data", "store", "output"},
    "draws": BASE | {"model", "approximate", "spec", "data", "store"},
    "reduce": BASE | {"model", "kernels", "spec", "data", "store", "draws", "run"},
    "answers": BASE | {"model", "mcmc", "approximate", "spec", "data", "store", "draws", "reduce", "output"},
    "pictures": BASE | {"model", "spec", "data", "store", "draws", "answers", "output"},
    "describe": SAMPLED
    | {"approximate", "spec", "data", "store", "run", "draws", "answers", "timing", "selftest", "output"},
    "timing": SAMPLED | {"approximate", "spec", "data", "store", "run", "output"},
    "reporting": BASE
    | {"model", "spec", "data", "store", "draws", "answers", "pictures", "describe", "output"},
    "verbs": SAMPLED
    | {"spec", "data", "store", "run", "draws", "answers", "pictures", "describe", "timing", "reporting"}
    | {"output", "reduce"},
    "study": SAMPLED
    | {"spec", "data", "store", "run", "draws", "answers", "pictures", "reporting", "output"}
    | {"verbs", "reduce"},
    "api": {"__init__"},
    "sklearn": {"api", "arrays", "data", "errors", "model", "output", "answers", "draws", "run", "spec"}
    | {"store"},
    "__init__": {"errors", "spec", "run", "study", "verbs", "version"},
    "demo": {"__init__", "answers", "api", "describe", "errors", "output", "run", "spec", "store"},
    "cli": {"__init__", "answers", "api", "demo", "errors", "output", "run", "selftest", "study"},
}

HOMES = {
    "ray": {"run/on_ray/"},
    "zarr": {"store/"},
    "xarray": {"store/", "draws/", "answers/"},
    "cupy": {"arrays.py", "kernels/"},
    "cupyx": {"arrays.py", "kernels/"},
    "tomllib": {"spec/text.py"},
    "pydantic": {"spec/", "data/keys.py", "data/encoding.py", "store/documents.py", "study/sealed.py"},
    "typer": {"cli/"},
    "jinja2": {"reporting/page.py"},
    "matplotlib": {"pictures/figures.py"},
    "sklearn": {"sklearn/"},
    "joblib": {"sklearn/"},
    "obstore": {"store/storage/bucket.py"},
}

FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {path: str(path.relative_to(PACKAGE)) for path in FILES}


def imports(path: Path, *, for_types_too: bool = False) -> Iterator[str]:
    """Dotted names that a file imports anywhere; optionally also those under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    for_types: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types |= {inner for line in node.body for inner in ast.walk(line)}
    for node in ast.walk(tree):
        if node in for_types and not for_types_too:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> Path | None:
    """The file of a module, or of the module that contains the last name; None outside the package."""
    parts = module.split(".")
    if parts[0] != "rayfbnn":
        return None
    for length in (len(parts), len(parts) - 1):
        place = PACKAGE.joinpath(*parts[1:length])
        for candidate in (place.with_suffix(".py"), place / "__init__.py"):
            if candidate in NAMES:
                return candidate
    raise AssertionError(f"{module} is in no file")


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", FILES, ids=NAMES.get)
def test_each_folder_imports_what_it_may(path: Path) -> None:
    """Imports for types count too: a type that a folder needs from above is a protocol of its own."""
    here = folder_of(path)
    for module in imports(path, for_types_too=True):
        imported = file_of(module)
        if imported is None or folder_of(imported) == here:
            continue
        assert folder_of(imported) in MAY_IMPORT[here], f"{NAMES[path]} imports {module}"


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


def test_files_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for types count too, because they only postpone a circle."""
    graph = {
        NAMES[path]: {
            NAMES[imported]
            for module in imports(path, for_types_too=True)
            if (imported := file_of(module)) is not None and imported != path
        }
        for path in FILES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


@pytest.mark.parametrize("path", FILES, ids=NAMES.get)
def test_each_edge_library_has_one_home(path: Path) -> None:
    for module in imports(path):
        homes = HOMES.get(module.split(".")[0])
        is_home = homes is None or any(NAMES[path].startswith(home) for home in homes)
        assert is_home, f"{NAMES[path]} imports {module}"


def test_no_test_imports_from_another() -> None:
    """Shared code lies in tests/support, so that a test file can move or go without the others."""
    wrong = {
        f"{path.relative_to(TESTS)} imports {module}"
        for path in sorted(TESTS.rglob("*.py"))
        for module in imports(path)
        if module.startswith("tests.") and re.search(r"\.test_\w+", module.rsplit(".", 1)[0])
    }
    assert wrong == set()


def test_at_most_twenty_files_lie_directly_in_a_folder() -> None:
    roots = (PACKAGE, TESTS, PACKAGE.parent / "benchmarks")
    folders = [folder for root in roots for folder in [root, *root.rglob("*")] if folder.is_dir()]
    counts = {
        str(folder): sum(file.suffix in {".py", ".cpp", ".hpp", ".cu", ".cuh"} for file in folder.iterdir())
        for folder in folders
        if folder.name != "__pycache__"
    }
    assert {folder: count for folder, count in counts.items() if count > 20} == {}
    assert counts[str(PACKAGE)] <= 10


IMPORT_IN_TEXT = re.compile(r"from (rayfbnn[\w.]*) import (\w+)|import (rayfbnn[\w.]*)")


@pytest.mark.parametrize("path", [".ci/run", "Makefile", "pyproject.toml", "cluster/docker/Dockerfile"])
def test_a_name_imported_by_a_script_exists(path: str) -> None:
    for module, name, whole in IMPORT_IN_TEXT.findall((PACKAGE.parent / path).read_text()):
        imported = importlib.import_module(module or whole)
        if name and not hasattr(imported, name):
            importlib.import_module(f"{module}.{name}")  # a module that was not yet imported
