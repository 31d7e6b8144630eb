"""The direction of imports: no file imports from a layer above it, and each edge library has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rayfbnn"

# Lower layers may not import higher ones. Parts of one layer that stand side by side may not either, but
# reduce reads stores.
DESCRIBE = ("describe", "describe_schedule", "describe_kernels")
LAYERS = [
    {"errors", "arrays", "streams", "state", "connections", "architecture", "operations", "version", "cores"},
    {"spec"},
    {"mcmc", "model", "kernels"},
    {"run", "reduce", *DESCRIBE, "exactness", "pivots", "selftest", "step_times", "run_times"},
    {"api"},
    {"__init__", "demo"},
    {"cli"},
]
STRANGERS = [("mcmc", "model"), ("mcmc", "spec"), ("model", "spec"), ("run", "reduce")]
STRANGERS += [("run", part) for part in DESCRIBE]
READS = {"run.store", "run.data"}  # all that reduce may import from run

HOMES = {
    "ray": {"run/workers.py"},
    "zarr": {"run/"},
    "xarray": {"run/", "reduce/"},
    "cupy": {"arrays.py", "kernels/"},
    "cupyx": {"arrays.py", "kernels/"},
    "tomllib": {"spec/text.py"},
    "pydantic": {"spec/"},
    "typer": {"cli.py"},
    "matplotlib": {"reduce/plots.py"},
}


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it, but for those under `if TYPE_CHECKING`."""
    for_types: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types |= {inner for line in node.body for inner in ast.walk(line)}
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = sorted(path for path in PACKAGE.rglob("*.py"))


def layer(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    here = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for module in imports(path):
        root, _, rest = module.partition(".")
        there = rest.split(".")[0]
        if root != "rayfbnn" or there == here:
            continue
        if not any(there in parts for parts in LAYERS):
            there = "__init__"  # a public name, `from rayfbnn import sample`
        assert layer(there) <= layer(here), f"{path.name} imports {module}, which lies above it"
        assert (here, there) not in STRANGERS, f"{path.name} imports {module}: {here} may not know {there}"
        if (here, there) == ("reduce", "run"):
            assert any(rest.startswith(name) for name in READS), f"reduce may only read, not {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_edge_library_has_one_home(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    for module in imports(path):
        homes = HOMES.get(module.split(".")[0])
        assert homes is None or any(name.startswith(home) for home in homes), f"{name} imports {module}"
