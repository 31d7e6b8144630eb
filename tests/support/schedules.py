"""Schedules whose operations are built by changed modules, so that tests can put bugs into updates."""

from __future__ import annotations

from dataclasses import fields
from types import ModuleType
from typing import Any

from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operation import Operation
from tests.support.mutants import mutant


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
