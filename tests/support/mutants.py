"""Bugs put in on purpose: a module of the package with one piece of its source replaced."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rayfbnn.model.likelihood.data_model import DataModel


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


def importing(module: ModuleType, changed: ModuleType) -> ModuleType:
    """A copy of `module` with all that it imports by name from the original of `changed` taken from that."""
    copy, original = mutant(module), sys.modules[changed.__name__]
    for name, value in vars(module).items():
        if not name.startswith("__") and value is getattr(original, name, copy):
            setattr(copy, name, getattr(changed, name))
    return copy


def data_model_in(module: ModuleType) -> Callable[..., DataModel]:
    """Return what builds the data model of a changed file of model/likelihood/ from its settings."""
    (kind,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, DataModel) and value.__module__ == module.__name__
    )
    return kind.from_spec


def with_data_model(posterior: ModuleType, module: ModuleType) -> ModuleType:
    """Return a copy of `posterior` whose data model is that of a changed file of model/likelihood/."""
    copy: Any = mutant(posterior)
    copy.data_model_from_spec = data_model_in(module)
    return copy  # type: ignore[no-any-return]
