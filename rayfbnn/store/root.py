"""What a store says about itself: its metadata files, written once, and the records that lengthen the run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError, StoreExistsError
from rayfbnn.store.catalogue import COMMITS, ArrayPlan, Header, array_plans
from rayfbnn.store.filesystem import FileSystem
from rayfbnn.store.hierarchy import METADATA, array_metadata, group_metadata, planned_chunks
from rayfbnn.store.records import NO_SEAL, SEAL, seal, seal_of, unseal
from rayfbnn.version import __version__

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

FORMAT = "rayfbnn"
FORMAT_VERSION = 1
LOCK = "lock"
HOLDER = "holder.json"
_FIRST_KERNEL = "plain NumPy"  # what stores without a kernel in their metadata were made with
_EXTENSION = re.compile(r"extension(\d{4,})\.json")


@dataclass(frozen=True)
class Root:
    """The root metadata, with the extensions laid over it.

    identity      digest of the root's metadata file, which never changes: the store's name for itself
    fixed_chunks  chunk file -> SHA-256 of its content, for what is written at creation
    n_extensions  how often the run was lengthened
    before        the header before the last extension, which a crash may have left some arrays at
    version       of rayfbnn that created the store
    kernel        name of the code that the run started with for its leapfrog steps
    """

    identity: str
    header: Header
    spec: RunSpec
    fixed_chunks: dict[str, str]
    n_extensions: int
    before: Header
    version: str
    kernel: str


def create(fs: FileSystem, path: Path, header: Header, spec: RunSpec, data: Dataset, kernel: str) -> None:
    """Build a store in a hidden folder beside `path`, then rename it: a crash leaves nothing at `path`."""
    if fs.exists(path):
        raise StoreExistsError(f"{path}: is there already; choose another path, or resume it")
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
    files[METADATA] = group_metadata(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "rayfbnn_version": __version__,
            "header": asdict(header),
            "spec": spec.to_dict(),
            "fixed_chunks": fixed,
            "kernel": kernel,
        }
    )
    batches = [path / COMMITS / f"batch{batch:04d}" for batch in range(header.n_batches)]
    folders = dict.fromkeys(
        parent for file in files for parent in (path / file).parents if path in parent.parents
    )
    for folder in (*sorted(folders), *batches):
        fs.mkdir(folder)
    for file, content in files.items():
        fs.write_atomic(path / file, content)
    for folder in (*batches, *sorted(folders, reverse=True), path):
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


def read_root(fs: FileSystem, path: Path) -> Root:
    """The root metadata; StoreError if no store is here, StoreCorruptError if it is damaged."""
    file = path / METADATA
    try:
        raw = fs.read(file)
    except FileNotFoundError:
        if not fs.exists(path):
            raise StoreError(f"{path}: there is no store here") from None
        raise StoreError(f"{path}: is not a store, or a damaged one: it has no {METADATA}") from None
    identity = seal_of(raw, file)
    attributes = unseal(raw, file).get("attributes", {})
    if attributes.get("format") != FORMAT:
        raise StoreError(f"{path}: is not a store of this program")
    if attributes.get("format_version") != FORMAT_VERSION:
        raise StoreError(
            f"{path}: has format version {attributes.get('format_version')}, this program knows"
            f" {FORMAT_VERSION}; use the version that wrote it"
        )
    header, spec = Header(**attributes["header"]), _spec(attributes["spec"], file)
    before = header
    extensions = _extensions(fs, path)
    for number in range(extensions):
        file = extension_file(path, number)
        document = unseal(fs.read(file), file)
        if (document.get("store"), document.get("number")) != (identity, number):
            raise StoreCorruptError(f"{file}: belongs to another store, or to another place")
        before = header
        header = replace(header, n_draws=document["n_draws"], n_blocks=document["n_blocks"])
        spec = _spec(document["spec"], file)
    return Root(
        identity,
        header,
        spec,
        attributes["fixed_chunks"],
        extensions,
        before,
        attributes["rayfbnn_version"],
        attributes.get("kernel", _FIRST_KERNEL),
    )


def read_metadata(
    fs: FileSystem, path: Path, plans: Mapping[str, ArrayPlan]
) -> tuple[dict[str, bytes], bool]:
    """Every metadata file, checked, as planned; whether an extension has still to be carried through.

    In that case the numbers of the draws are among them: their files may be short too.
    """
    metadata, is_pending = {}, False
    for file in metadata_files(plans):
        metadata[file], is_short = read_metadata_file(fs, path / file, plans, file)
        is_pending = is_pending or is_short
    if is_pending:
        for plan in plans.values():
            if is_draw_coordinate(plan):
                metadata.update(planned_chunks(plan))
    return metadata, is_pending


def read_metadata_file(
    fs: FileSystem, path: Path, plans: Mapping[str, ArrayPlan], file: str
) -> tuple[bytes, bool]:
    """One metadata file as planned; whether it is still as before an extension."""
    raw = read_sealed(fs, path)
    plan = plans.get(file.rpartition("/")[0])
    if plan is None or _matches(raw, plan):
        return raw, False
    found = tuple(json.loads(raw).get("shape", ()))
    is_short = len(found) == len(plan.shape) and all(
        n <= planned if dim in ("draw", "block") else n == planned
        for n, planned, dim in zip(found, plan.shape, plan.dims, strict=True)
    )
    if is_short and _matches(raw, replace(plan, shape=found)):
        return array_metadata(plan), True
    raise StoreCorruptError(f"{path}: does not describe the array {plan.path} of this run")


def read_fixed(fs: FileSystem, file: Path, expected: str) -> None:
    """Raise StoreCorruptError unless a chunk written at creation is as it was."""
    try:
        raw = fs.read(file)
    except FileNotFoundError:
        raise StoreCorruptError(f"{file}: missing") from None
    if hashlib.sha256(raw).hexdigest() != expected:
        raise StoreCorruptError(f"{file}: damaged: its content is not what was written")


def draw_chunks(fs: FileSystem, path: Path, plan: ArrayPlan, root: Root) -> list[Path]:
    """The files of a draw coordinate; without those that an extension has still to write."""
    file = f"{plan.path}/{METADATA}"
    try:
        _, is_short = read_metadata_file(fs, path / file, {plan.path: plan}, file)
    except StoreCorruptError:
        is_short = False
    length = root.before.n_draws if is_short else plan.shape[0]
    return [path / file for file in plan.chunk_files(range(length))]


def check_draws(fs: FileSystem, file: Path, plan: ArrayPlan, root: Root) -> None:
    """Raise StoreCorruptError unless a chunk of a draw coordinate is as now, or as before an extension."""
    raw = fs.read(file)
    lengths = {plan.shape[0]}
    if plan.shape[0] == root.header.n_draws:
        lengths.add(root.before.n_draws)
    for length in lengths:
        planned = replace(plan, shape=(length,), values=np.arange(length, dtype=np.int64))
        if any(file.name == Path(name).name and content == raw for name, content in planned_chunks(planned)):
            return
    raise StoreCorruptError(f"{file}: damaged: not the numbers of the draws")


def read_sealed(fs: FileSystem, file: Path) -> bytes:
    """A file that must be there and match its checksum."""
    try:
        raw = fs.read(file)
    except FileNotFoundError:
        raise StoreCorruptError(f"{file}: missing") from None
    seal_of(raw, file)
    return raw


def metadata_files(plans: Mapping[str, ArrayPlan]) -> list[str]:
    """The metadata files of groups and arrays, by their path in the store."""
    groups = dict.fromkeys(path.partition("/")[0] for path in plans if "/" in path)
    return [METADATA, *(f"{path}/{METADATA}" for path in (*groups, *plans))]


def publish_extension(fs: FileSystem, path: Path, root: Root, spec: RunSpec, n_draws: int) -> None:
    """Decide that the run is longer: from here on `carry_through` makes it so, whoever runs it."""
    document = {
        "store": root.identity,
        "number": root.n_extensions,
        "n_draws": n_draws,
        "n_blocks": max(spec.total_iterations, n_draws),
        "spec": spec.to_dict(),
        SEAL: NO_SEAL,
    }
    if not fs.write_exclusive(extension_file(path, root.n_extensions), seal(document)):
        raise StoreError(f"{path}: another process has extended the run just now")


def carry_through(fs: FileSystem, path: Path, root: Root) -> None:
    """Lengthen every array as the extensions say; again after a crash, until all are as planned.

    Coordinates first: an index that is longer than its array is not seen, a shorter one would read as 0.
    """
    plans = array_plans(root.header, root.spec)
    for plan in plans.values():
        if is_draw_coordinate(plan) and plan.shape[0] == root.header.n_draws:
            for file, content in planned_chunks(plan, first=root.before.n_draws):
                fs.write_atomic(path / file, content)
            fs.fsync_dir(path / plan.path)
    for plan in plans.values():
        metadata = path / plan.path / METADATA
        if not _matches(read_sealed(fs, metadata), plan):
            fs.write_atomic(metadata, array_metadata(plan))
            fs.fsync_dir(metadata.parent)


def is_draw_coordinate(plan: ArrayPlan) -> bool:
    return plan.path.endswith("/draw")


def _matches(raw: bytes, plan: ArrayPlan) -> bool:
    """Whether a metadata file describes the array as planned. Versions of Zarr name text differently."""
    found = json.loads(raw)
    return (
        found.get("shape") == list(plan.shape)
        and found.get("dimension_names") == list(plan.dims)
        and found.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape") == list(plan.chunks)
        and (plan.is_text or found.get("data_type") == plan.dtype)
    )


def extension_files(fs: FileSystem, path: Path) -> list[Path]:
    """The records of extensions that are there."""
    try:
        return [path / COMMITS / name for name in fs.listdir(path / COMMITS) if _EXTENSION.fullmatch(name)]
    except FileNotFoundError:
        return []


def _extensions(fs: FileSystem, path: Path) -> int:
    try:
        names = fs.listdir(path / COMMITS)
    except FileNotFoundError:
        raise StoreCorruptError(f"{path / COMMITS}: missing: the commits of the run") from None
    numbers = sorted(int(found[1]) for name in names if (found := _EXTENSION.fullmatch(name)))
    for expected, number in enumerate(numbers):
        if number != expected:
            raise StoreCorruptError(f"{extension_file(path, expected)}: missing: an extension of the run")
    return len(numbers)


def extension_file(path: Path, number: int) -> Path:
    return path / COMMITS / f"extension{number:04d}.json"


def _spec(document: Any, file: Path) -> RunSpec:
    from rayfbnn.spec import RunSpec

    try:
        return RunSpec.from_json(json.dumps(document))
    except ConfigError as exc:
        raise StoreError(f"{file}: its configuration is not one this version knows: {exc}") from exc
