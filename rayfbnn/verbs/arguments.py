"""Arguments that several verbs have: how they are read and checked before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfbnn.arrays import gpu_is_available
from rayfbnn.errors import ConfigError, StoreExistsError
from rayfbnn.spec import RunSpec
from rayfbnn.store.root import store_around
from rayfbnn.store.store import Store

Spec = RunSpec | Mapping[str, Any] | str | Path  # a configuration, its tables, or the TOML file they are in


def read_spec(spec: Spec, overrides: Sequence[str]) -> RunSpec:
    """Return the configuration, with "key.path=value" overrides laid over it."""
    if isinstance(spec, RunSpec):
        return RunSpec.from_dict(with_absolute_train_path(spec).to_dict(), overrides) if overrides else spec
    if isinstance(spec, Mapping):
        return RunSpec.from_dict(spec, overrides)
    return RunSpec.from_toml(spec, overrides)


def with_absolute_train_path(spec: RunSpec) -> RunSpec:
    """Return the configuration as a store keeps it: `resume` then finds the training file from anywhere."""
    raw = spec.to_dict()
    raw["data"]["train"] = str(spec.train_path.resolve())
    return RunSpec.from_dict(raw)


def open_without_first(path: str | Path, skip: int) -> Store:
    """Open a store for reading, without the first `skip` draws of each chain."""
    from rayfbnn.reduce.skipping import without_first

    check_counts(least=0, skip=skip)
    return without_first(Store.open(Path(path)), skip)


def check_counts(*, least: int, **values: int) -> None:
    """Raise ConfigError, naming the argument, unless each value is a whole number of at least `least`."""
    for name, value in values.items():
        if value % 1 != 0:  # true of NaN and the infinities as well
            raise ConfigError(f"{name}: must be a whole number, got {value}")
        if value < least:
            raise ConfigError(f"{name}: must be at least {least}, got {value}")


def check_decisive(decisive: str) -> None:
    """Raise ConfigError unless `decisive` names a verdict."""
    if decisive not in ("predictions", "all"):
        raise ConfigError(f'decisive: must be "predictions" or "all", got "{decisive}"')


def check_new_path(path: Path) -> None:
    """Raise an error unless a store can be created at `path`; nothing is ever replaced."""
    if os.path.lexists(path):
        raise StoreExistsError(f"{path}: already exists; resume it, or give a new path")
    check_folder(path)
    store = store_around(path)
    if store is not None:
        raise ConfigError(f"{path}: lies inside the store {store}; give a path outside of it")


def check_folder(path: Path) -> None:
    """Raise ConfigError unless the folder that `path` is in exists and can be written to."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{path}: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: the folder {folder} cannot be written to; give another path")


def check_output(path: Path, *, inputs: Sequence[Path]) -> None:
    """Raise ConfigError if writing `path` would change one of the inputs, or something inside a store.

    An input is found under any of its names: by a link, or by another spelling of its path.
    """
    for file in inputs:
        if path.exists() and file.exists() and path.samefile(file):
            raise ConfigError(f"out: {path} is the input {file} itself; give another path")
    store = store_around(path)
    if store is not None:
        raise ConfigError(f"out: {path} lies inside the store {store}; give a path outside of it")


def check_workers(spec: RunSpec, workers: int | None, address: str | None, max_failures: int) -> None:
    """Raise ConfigError for workers that make no sense, or a GPU that is not there."""
    if workers is not None and (workers % 1 != 0 or workers < 0):
        raise ConfigError(f"workers: must be 0 (this process) or more, got {workers}")
    if workers == 0 and address is not None:
        raise ConfigError(
            f"workers: 0 means this process, which needs no cluster, got address {address}; leave one out"
        )
    check_counts(least=0, max_failures=max_failures)
    if address is None:
        check_device(spec.device)


def check_device(device: str) -> None:
    """Raise ConfigError for "gpu" on a machine where CuPy cannot use one."""
    if device == "gpu" and not gpu_is_available():
        raise ConfigError('device: there is no GPU here that CuPy can use, got "gpu"; use "cpu"')
