"""Writes a new store whole, in a hidden folder, and then renames it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rayfbnn.data import Dataset
from rayfbnn.errors import StoreError, StoreExistsError
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import COMMITS, Header, array_plans
from rayfbnn.store.commits import CommitLog
from rayfbnn.store.filesystem import FileSystem
from rayfbnn.store.hierarchy import METADATA, array_metadata, group_metadata, planned_chunks
from rayfbnn.store.limits import Length, check_size
from rayfbnn.store.metadata import is_draw_coordinate
from rayfbnn.store.records import seal_of
from rayfbnn.store.root import FORMAT, HEADS, LOCK
from rayfbnn.version import __version__


def create(fs: FileSystem, path: Path, header: Header, spec: RunSpec, data: Dataset, kernel: str) -> None:
    """Build a store in a hidden folder beside `path`, then rename it: a crash leaves nothing at `path`."""
    if fs.exists(path):
        raise StoreExistsError(f"{path}: already exists; choose another path, or resume it")
    length = Length.from_longest(header, spec)
    check_size(header, spec, length, free_bytes=fs.free_bytes(path.parent))
    building = path.parent / f".{path.name}.creating"
    fs.mkdir(building)
    fs.mkdir(building / COMMITS)
    with fs.lock(building / COMMITS / LOCK):  # two creators at once, or what a crash left to clear away
        _clear(fs, building)
        try:
            _build(fs, building, header, spec, data, kernel)
            fs.rename_new(building, path)
        except StoreError:
            with suppress(StoreError):  # the first error is the one to report
                fs.remove_tree(building)
            raise


def _build(fs: FileSystem, path: Path, header: Header, spec: RunSpec, data: Dataset, kernel: str) -> None:
    """Write a whole new store, synced, into the folder `path`."""
    plans = array_plans(header, spec, data)
    files: dict[str, bytes] = {}
    fixed: dict[str, str] = {}
    for plan in plans.values():
        files[f"{plan.path}/{METADATA}"] = array_metadata(plan)
        if plan.values is not None:
            for file, content in planned_chunks(plan):
                files[file] = content
                if not is_draw_coordinate(plan):  # the one that an extension lengthens
                    fixed[file] = hashlib.sha256(content).hexdigest()
    for group in dict.fromkeys(plan.partition("/")[0] for plan in plans if "/" in plan):
        files[f"{group}/{METADATA}"] = group_metadata({})
    sizes = asdict(header)
    version = sizes.pop("format_version")
    files[METADATA] = group_metadata(
        {
            "format": FORMAT,
            "format_version": version,
            "rayfbnn_version": __version__,
            "header": sizes,
            "spec": spec.to_dict(),
            "fixed_chunks": fixed,
            "kernel": kernel,
            HEADS: True,
        }
        | ({} if spec.encoding is None else {"encoding": spec.encoding.to_dict()})
    )
    commits = CommitLog(fs, path, seal_of(files[METADATA], path / METADATA), has_heads=True)
    batches = [commits.folder(batch) for batch in range(header.n_batches)]
    folders = dict.fromkeys(
        parent for file in files for parent in (path / file).parents if path in parent.parents
    )
    for folder in (*sorted(folders), *batches):
        fs.mkdir(folder)
    for file, content in files.items():
        fs.write_atomic(path / file, content)
    for batch in range(header.n_batches):
        commits.set_head(batch, 0)
    for folder in (*sorted(folders, reverse=True), path):
        fs.fsync_dir(folder)


def _clear(fs: FileSystem, building: Path) -> None:
    """Empty the folder of a creation that crashed, but for the lock that is held on it."""
    for name in fs.listdir(building):
        if name != COMMITS:
            fs.remove_tree(building / name) if fs.is_directory(building / name) else fs.unlink(
                building / name
            )
    for name in fs.listdir(building / COMMITS):
        if name != LOCK:
            inner = building / COMMITS / name
            fs.remove_tree(inner) if fs.is_directory(inner) else fs.unlink(inner)
