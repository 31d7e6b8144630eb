"""The metadata files and draw coordinates of a store, checked against the planned arrays."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rayfbnn.errors import StoreCorruptError
from rayfbnn.memory import memory_of_machine
from rayfbnn.store.catalogue import COMMITS, DISCARDED, TUNING, VERDICTS, ArrayPlan
from rayfbnn.store.checking.documents import MOST_DRAWS, parse_json
from rayfbnn.store.hierarchy import METADATA, array_metadata, group_metadata, planned_chunks
from rayfbnn.store.records import SEAL
from rayfbnn.store.root import Root, read_sealed
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

_BATCH = re.compile(r"batch\d+")
_NAMES_OF_TEXT: tuple[object, ...] = (
    "string",
    {"name": "string"},
    {"name": "string", "configuration": {}},
    {"name": "variable_length_utf8"},
    {"name": "variable_length_utf8", "configuration": {}},
)


def read_metadata(fs: Storage, path: Place, plans: Mapping[str, ArrayPlan]) -> tuple[dict[str, bytes], bool]:
    """Return every metadata file, checked and as planned, and True if an extension is unfinished.

    During an extension the result also has the chunks of the draw coordinates, which may be short on disk.
    """
    files = metadata_files(plans)
    contents = fs.each(lambda file: read_metadata_file(fs, path / file, plans, file), files)
    metadata = {file: content for file, (content, _) in zip(files, contents, strict=True)}
    is_pending = any(is_other for _, is_other in contents)
    if is_pending:
        for plan in plans.values():
            if is_draw_coordinate(plan):
                metadata.update(planned_chunks(plan))
    return metadata, is_pending


def read_metadata_file(
    fs: Storage, path: Place, plans: Mapping[str, ArrayPlan], file: str
) -> tuple[bytes, bool]:
    """Return one metadata file as planned, and True if the file itself is still from before an extension."""
    raw = read_sealed(fs, path)
    plan = plans.get(file.rpartition("/")[0])
    if plan is None:
        if file != METADATA and parse_json(raw, path) != parse_json(group_metadata({}), path):
            raise StoreCorruptError(f"{path}: does not describe a group of this run")
        return raw, False
    document = parse_json(raw, path)
    if matches(raw, plan):
        return array_metadata(plan), False
    shape = tuple(document["shape"]) if isinstance(document.get("shape"), list) else ()
    is_other = len(shape) == len(plan.shape) and all(
        type(n) is int and (0 <= n <= MOST_DRAWS if dim == "draw" else n == planned)
        for n, planned, dim in zip(shape, plan.shape, plan.dims, strict=True)
    )
    if is_other and matches(raw, replace(plan, shape=shape)):
        return array_metadata(plan), True
    raise StoreCorruptError(f"{path}: does not describe the array {plan.path} of this run")


def metadata_files(plans: Mapping[str, ArrayPlan]) -> list[str]:
    """Return the paths of the metadata files of groups and arrays in the store."""
    groups = dict.fromkeys(path.partition("/")[0] for path in plans if "/" in path)
    return [METADATA, *(f"{path}/{METADATA}" for path in (*groups, *plans))]


def check_layout(fs: Storage, path: Place, plans: Mapping[str, ArrayPlan]) -> None:
    """Raise StoreCorruptError if a folder of the store is a link, or if chunks do not fit into memory."""
    memory = memory_of_machine()
    for plan in plans.values():
        if plan.most_bytes > memory:
            raise StoreCorruptError(
                f"{path / plan.path}: a chunk has {plan.most_bytes} bytes, more than the memory of this"
                f" machine ({memory} bytes)"
            )
    groups = dict.fromkeys(name.partition("/")[0] for name in plans)
    commits = path / COMMITS
    fs.check_folders(path / name for name in (*groups, *plans))
    # Only existing folders: a store may claim to have a million batches.
    names = _listed(fs, commits)
    others = (DISCARDED, TUNING, VERDICTS)
    fs.check_folders(commits / name for name in names if name in others or _BATCH.fullmatch(name))


def _listed(fs: Storage, folder: Place) -> list[str]:
    try:
        return fs.listdir(folder)
    except FileNotFoundError:
        return []


def check_fixed_chunks(path: Place, fixed: Mapping[str, str], plans: Mapping[str, ArrayPlan]) -> None:
    """Raise StoreCorruptError unless the root metadata has a digest of each chunk written at creation."""
    planned = set()
    for plan in plans.values():
        if plan.dims[:2] == ("chain", "draw") or is_draw_coordinate(plan):
            continue
        for file in plan.files_of_rows():
            if file not in fixed:  # stop here, because a store may claim any number of chunks
                raise StoreCorruptError(f"{path / METADATA}: has no digest of {file}")
            planned.add(file)
    for file in fixed:
        if file not in planned:
            raise StoreCorruptError(
                f"{path / METADATA}: has a digest of a file that is not part of the run: {file}"
            )


def matches(raw: bytes, plan: ArrayPlan) -> bool:
    """Return True if a metadata file describes the planned array, in every key that Zarr knows."""
    return _as_compared(raw, plan) == _as_compared(array_metadata(plan), plan)


def _as_compared(raw: bytes, plan: ArrayPlan) -> dict[str, Any]:
    """Return the metadata in one form for all versions of Zarr, which differ in the name of the text type."""
    document = json.loads(raw)
    if not isinstance(document, dict):
        return {}
    attributes, codecs = document.get("attributes"), document.get("codecs")
    if isinstance(attributes, dict):
        document["attributes"] = {**attributes, SEAL: ""}
    if isinstance(codecs, list):
        document["codecs"] = [
            {"configuration": {}, **codec} if isinstance(codec, dict) else codec for codec in codecs
        ]
    if plan.is_text and document.get("data_type") in _NAMES_OF_TEXT:
        document["data_type"] = "string"
    return {"storage_transformers": [], **document}


def is_draw_coordinate(plan: ArrayPlan) -> bool:
    """Return True for the coordinate with the numbers of the draws, which an extension lengthens."""
    return plan.path.endswith("/draw")


def draw_chunks(fs: Storage, path: Place, plan: ArrayPlan, root: Root) -> list[Place]:
    """Return the files of a draw coordinate, except files that an unfinished extension has yet to write."""
    file = f"{plan.path}/{METADATA}"
    try:
        _, is_other = read_metadata_file(fs, path / file, {plan.path: plan}, file)
    except StoreCorruptError:
        is_other = False
    length = root.before.n_draws if is_other else plan.shape[0]
    return [path / file for file in plan.chunk_files(range(length))]


def check_draws(fs: Storage, file: Place, plan: ArrayPlan, root: Root) -> None:
    """Raise StoreCorruptError unless a chunk of a draw coordinate has the present or the previous length."""
    raw = fs.read(file)
    lengths = {plan.shape[0]}
    if plan.shape[0] == root.header.n_draws:
        lengths.add(root.before.n_draws)
    for length in lengths:
        planned = replace(plan, shape=(length,), values=np.arange(length, dtype=np.int64))
        contents = {name.rpartition("/")[2]: content for name, content in planned_chunks(planned)}
        if contents.get(file.name) == raw:
            return
    raise StoreCorruptError(f"{file}: damaged: its values are not the numbers of the draws")
