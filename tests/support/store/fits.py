"""Small configurations of every approximation, whose fits take a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayfbnn.data import read_dataset
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.store import Store
from rayfbnn.verbs.sampling import new_fit
from tests.support.small import small, write_train

SETTINGS: dict[str, dict[str, Any]] = {
    "laplace": {"starts": 3, "draws": 70, "steps": 8, "first": 3, "between": 2},
    "bbb": {"starts": 3, "draws": 70, "steps": 20, "refresh": 4, "batch": 5},
    "vep": {"starts": 3, "draws": 70, "sweeps": 5},
    "map": {"starts": 3, "draws": 70, "steps": 20, "refresh": 4, "validation": 0.2},
}


def fit_spec(
    folder: Path, method: str, *, settings: dict[str, Any] | None = None, **replaced: Any
) -> RunSpec:
    """Return the small specification for a method, two starts a batch; its training file is written."""
    write_train(folder)
    raw = small(**replaced) | {"methods": {method: SETTINGS[method] | (settings or {})}}
    return RunSpec.from_dict(raw, base_dir=folder).for_method(method)


def make_fit(path: Path, spec: RunSpec) -> Store:
    """Create the store of a fit, before its first step."""
    return new_fit(place_of(path), spec, read_dataset(spec))
