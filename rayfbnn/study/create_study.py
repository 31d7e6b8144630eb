"""Creates a study. Everything is checked first, and the plan is written last."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.data import Source, read_training_file
from rayfbnn.errors import ConfigError, DataError, RayFBNNError, StoreExistsError
from rayfbnn.run.hardware import kernel_name
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.building import hidden_name
from rayfbnn.store.storage.homes import storage_of
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store
from rayfbnn.study.grid import TRAIN, grid
from rayfbnn.study.members import FOLDER, Member
from rayfbnn.study.plan import FILE, Configuration, check_size, first_with_cases, lengths, write_plan
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
    """Create a study, and for each set of training cases the store of the first member that has it.

    This store keeps the cases for all other members. A crash before the plan is written leaves a folder that
    is not a study. A second call completes it.
    """
    combinations = grid(vary)
    check_size(len(combinations), len(seeds))
    storage = storage_of(place)
    if storage.exists(place / FILE):
        raise StoreExistsError(f"{place}: is already a study; run it, or choose a new folder")
    if data is not None and any(key.startswith(f"{TRAIN}=") for key in combinations[0]):
        raise ConfigError(f"data: must be left out if {TRAIN} is varied")
    configurations: list[Configuration] = []
    specs: list[RunSpec] = []
    for number, varied in enumerate(combinations):
        with _naming(number, varied):
            asked = read_spec(spec, [*overrides, *varied, f"seed={seeds[0]}"])
            resolved, dataset = read_run_data(asked, data)
            _check(resolved, dataset)
        specs.append(resolved)
        configurations.append(Configuration(number, varied, resolved.to_dict(), dataset.hash))
    _check_are_different(configurations)
    first = {Member(number, seeds[0]).name: number for number in first_with_cases(configurations).values()}
    _check_is_new(place, first)
    folders = (place, place / FOLDER)
    new = [folder for folder in folders if isinstance(folder, Path) and not os.path.lexists(folder)]
    if not storage.exists(place):  # it may be a link to an empty folder, since the user named it
        storage.mkdir(place)
    storage.mkdir(place / FOLDER)
    storage.check_folders(place / FOLDER / name for name in first)
    with _removed_if_empty(new):
        for name, number in first.items():
            if configurations[number].data_hash != dataset.hash:  # one table at a time is in memory
                dataset = read_training_file(specs[number].train_path, specs[number])
            shortest = specs[number].with_iterations(lengths(configurations[number], rule.looks)[0])
            _create_first(place, place / FOLDER / name, shortest, dataset)
    write_plan(storage, place, configurations, seeds, rule)


@contextmanager
def _removed_if_empty(new: Sequence[Path]) -> Iterator[None]:
    """Remove new folders, each in the one before it, if no store can be created in them."""
    try:
        yield
    except RayFBNNError:
        for folder in reversed(new):
            with suppress(OSError):  # something is in the folder
                folder.rmdir()
        raise


def _create_first(study: Place, store: Place, spec: RunSpec, dataset: Dataset) -> None:
    """Create a member that keeps training cases, unless a creation that crashed has left the same one."""
    if not storage_of(store).is_taken(store):
        Store.for_run(store, spec, dataset, kernel=kernel_name(spec))
    elif Store.open(store).data.hash != dataset.hash or Store.open(store).spec != spec:
        raise StoreExistsError(f"{store}: belongs to another, unfinished study; remove {study} first")


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
    if spec.ladder is not None and spec.initial.shared:
        raise ConfigError(
            "initial.shared: ladders must not share a start, because they would agree from the beginning, got"
            " true with [ladder]; leave it (or superchains) out"
        )
    spec.check_gradient()
    spec.check_data(dataset.n_cases)
    check_device(spec.device)


def _check_are_different(configurations: Sequence[Configuration]) -> None:
    """Raise ConfigError if two configurations are the same posterior, sampled in the same way."""
    seen: dict[str, Configuration] = {}
    for one in configurations:
        data = {**one.keys["data"], "train": one.data_hash}
        other = seen.setdefault(json.dumps({**one.keys, "data": data}), one)
        if other is not one:
            raise ConfigError(
                f"vary: configurations {other.number} ({other.label}) and {one.number} ({one.label}) are the"
                " same"
            )


def _check_is_new(place: Place, first: Collection[str]) -> None:
    """Raise ConfigError if the folder has anything but the remains of a creation that crashed."""
    storage = storage_of(place)
    try:
        names = storage.listdir(place)
        members = storage.listdir(place / FOLDER) if FOLDER in names else []
    except FileNotFoundError:
        return
    ours = {*first, *map(hidden_name, first)}
    foreign = [name for name in names if name != FOLDER] + [
        f"{FOLDER}/{name}" for name in members if name not in ours
    ]
    if foreign:
        raise ConfigError(
            f"{place}: has files that do not belong to a study, such as {foreign[0]}; choose a new folder"
        )
