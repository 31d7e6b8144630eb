"""Modules and schedules with changed sources, so that tests can put bugs into them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from types import ModuleType
from typing import Any

from rayfbnn import model
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operation import Operation
from rayfbnn.model import connections, sampled


def mutant(module: ModuleType, *replacements: tuple[str, str]) -> ModuleType:
    """A copy of `module` in which each (old, new) has been replaced; each old must be there exactly once.

    The package itself is left alone, and a mutant that no longer fits the source is an error, not a silent
    pass.
    """
    source = inspect.getsource(module)
    for old, new in replacements:
        assert source.count(old) == 1, f"{module.__name__} has {source.count(old)} of {old!r}, not one"
        source = source.replace(old, new)
    copy = ModuleType(module.__name__)
    exec(compile(source, f"<mutant of {module.__name__}>", "exec"), copy.__dict__)
    return copy


def importing(module: ModuleType, *changed: ModuleType) -> ModuleType:
    """Return a copy of `module` that imports from the changed copies of modules in place of these."""
    copy = ModuleType(module.__name__)
    with _in_place(changed):
        exec(compile(inspect.getsource(module), f"<{module.__name__} on a mutant>", "exec"), copy.__dict__)
    return copy


def sampled_with(*changed: ModuleType) -> Any:
    """Return a copy of model/sampled.py on changed copies of files of model/, wherever these are used."""
    copies = {copy.__name__: copy for copy in changed}
    if connections.__name__ in copies:  # the tables of a specification are of the original class
        copies[connections.__name__].ConnectionTable = connections.ConnectionTable  # type: ignore[attr-defined]
    for name in _files():
        module = importlib.import_module(name)
        if module.__name__ not in copies and _uses(module, copies.values()):
            copies[module.__name__] = importing(module, *copies.values())
    return copies.get(sampled.__name__, sampled)


@cache
def _files() -> tuple[str, ...]:
    """The modules of model/, each after those that it imports."""
    found = pkgutil.walk_packages(model.__path__, f"{model.__name__}.")
    modules = [module.name for module in found if not module.ispkg]
    imported = {}
    for name in modules:
        tree = ast.parse(inspect.getsource(importlib.import_module(name)))
        statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {str(node.module) for node in statements}
        names |= {f"{node.module}.{alias.name}" for node in statements for alias in node.names}
        imported[name] = names & set(modules) - {name}
    return tuple(TopologicalSorter(imported).static_order())


def _uses(module: ModuleType, changed: Iterable[ModuleType]) -> bool:
    """Return True if a module has imported one of the originals, or something that is defined there."""
    originals = [sys.modules[copy.__name__] for copy in changed]
    return any(
        value is original or (getattr(original, name, None) is value and _home(value) == original.__name__)
        for original in originals
        for name, value in vars(module).items()
        if not name.startswith("__")
    )


def _home(value: object) -> str:
    return getattr(value, "__module__", "")


@contextmanager
def _in_place(changed: Iterable[ModuleType]) -> Iterator[None]:
    """Put copies of modules in place of the originals, for imports of any form."""
    originals = {copy.__name__: sys.modules[copy.__name__] for copy in changed}

    def put(modules: Mapping[str, ModuleType]) -> None:
        for path, module in modules.items():
            folder, _, name = path.rpartition(".")
            sys.modules[path] = module
            setattr(sys.modules[folder], name, module)

    put({copy.__name__: copy for copy in changed})
    try:
        yield
    finally:
        put(originals)


def schedule_with(*modules: ModuleType) -> ModuleType:
    """The schedule, with operations from the changed modules in place of those of the same class name."""

    def build_iteration(operations: tuple[Operation, ...], **options: Any) -> schedule.Iteration:
        return schedule.build_iteration(_replaced(operations, modules), **options)

    changed = mutant(schedule)
    changed.build_iteration = build_iteration  # type: ignore[attr-defined]
    return changed


def _replaced(operations: tuple[Operation, ...], modules: tuple[ModuleType, ...]) -> tuple[Operation, ...]:
    replaced = []
    for operation in operations:
        settings = {field.name: getattr(operation, field.name) for field in fields(operation)}
        if operation.inner:
            settings["operations"] = _replaced(operation.inner, modules)
        name = type(operation).__name__
        kinds = [getattr(module, name) for module in modules if hasattr(module, name)]
        replaced.append((kinds or [type(operation)])[0](**settings))
    return tuple(replaced)
