"""Creates a study. Everything is checked first, and the plan is written last."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source
from rayfbnn.errors import ConfigError, DataError, RayFBNNError, StoreExistsError
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.building import hidden_name
from rayfbnn.store.storage.homes import storage_of
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from rayfbnn.study.grid import grid
from rayfbnn.study.members import FOLDER, Member
from rayfbnn.study.plan import FILE, Configuration, lengths, write_plan
from rayfbnn.study.rule import Rule
from rayfbnn.verbs.arguments import Spec, check_device, read_run_data, read_spec

if TYPE_CHECKING:
    from rayfbnn.data import Dataset


def create_study(
    place: Place,
    spec: Spec,
    seeds: tuple[int, ...],
    *,
    data: Source | None,
    vary: Sequence[str],
    overrides: Sequence[str],
    rule: Rule,
) -> None:
    """Create a study. The store of its first member comes first: it keeps the training cases of all members.

    A crash before the plan is written leaves a folder that is not a study. A second call completes it.
    """
    combinations = grid(vary)
    storage = storage_of(place)
    if storage.exists(place / FILE):
        raise StoreExistsError(f"{place}: is already a study; run it, or choose a new folder")
    specs: list[tuple[tuple[str, ...], RunSpec]] = []
    dataset: Dataset | None = None
    for number, varied in enumerate(combinations):
        with _naming(number, varied):
            asked = read_spec(spec, [*overrides, *varied, f"seed={seeds[0]}"])
            resolved, dataset = read_run_data(asked, data)
            _check(resolved, dataset)
        specs.append((varied, resolved))
    assert dataset is not None
    first = Member(0, seeds[0]).name
    _check_is_new(place, first)
    folders = (place, place / FOLDER)
    new = [folder for folder in folders if isinstance(folder, Path) and not os.path.lexists(folder)]
    if not storage.exists(place):  # it may be a link to an empty folder, since the user named it
        storage.mkdir(place)
    storage.mkdir(place / FOLDER)
    storage.check_folders([place / FOLDER / first])
    planned = lengths(Configuration(0, (), specs[0][1].to_dict()), rule.looks)
    shortest = specs[0][1].with_iterations(planned[0])
    store = place / FOLDER / first
    if not storage.is_taken(store):
        try:
            Store.for_run(store, shortest, dataset, kernel=kernel_name(shortest))
        except RayFBNNError:
            for folder in reversed(new):
                with suppress(OSError):  # something else is in the folder
                    folder.rmdir()
            raise
    elif Store.open(store).data.hash != dataset.hash or Store.open(store).spec != shortest:
        raise StoreExistsError(f"{store}: belongs to another, unfinished study; remove {place} first")
    write_plan(storage, place, specs, seeds, rule, dataset.hash)


@contextmanager
def _naming(number: int, varied: Sequence[str]) -> Iterator[None]:
    """Name the configuration of a grid in an error about its keys or its training cases."""
    try:
        yield
    except (ConfigError, DataError) as exc:
        if not varied:
            raise
        raise type(exc)(f"configuration {number} ({', '.join(varied)}): {exc}") from exc


def _check(spec: RunSpec, dataset: Dataset) -> None:
    """Raise ConfigError for a configuration that no member can have."""
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    check_device(spec.device)


def _check_is_new(place: Place, first: str) -> None:
    """Raise ConfigError if the folder has anything but the remains of a creation that crashed."""
    storage = storage_of(place)
    try:
        names = storage.listdir(place)
        members = storage.listdir(place / FOLDER) if FOLDER in names else []
    except FileNotFoundError:
        return
    foreign = [name for name in names if name != FOLDER] + [
        f"{FOLDER}/{name}" for name in members if name not in (first, hidden_name(first))
    ]
    if foreign:
        raise ConfigError(
            f"{place}: has files that do not belong to a study, such as {foreign[0]}; choose a new folder"
        )
